//! Calls over a volume's socket, by the client in C, beside a bare socket on which two processes send as many bytes to and fro.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "socket";
/// Each call, what it is judged beside, and how many round trips it is.
const CALLS: [(&str, &str, f64); 3] =
    [("hint", "bare", 1.0), ("read-block", "bare-block", 1.0), ("begin-abort", "bare", 2.0)];
/// What a round trip may take, of a bare one.
const MOST: f64 = 1.5;

/// A server that is killed when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures as many rounds as asked. Returns whether a round trip takes as little as it should.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let program = compile(&arguments.data)?;
    let disk = arguments.data.join(NAME);
    let server = serve(&disk)?;
    let what = "one client in C, one call at a time; bare: 40 bytes to another process and back, bare-block: 40 bytes and 4128 back; hint: \
                please_cache; read-block: 4 KB that are kept in memory; transaction: begin, read, write and commit of a block, durable";
    let mut results = Results::new(what, "round,flush_us,call,calls,ns_each");
    let mut ratios = CALLS.map(|_| Vec::new());
    for round in 0..arguments.rounds {
        let flush_us = flush_probe_us(probe)?;
        let measured = measure(&program, &disk.join("volume.sock"), arguments.seconds)?;
        for (call, calls, ns) in &measured {
            let row = format!("{round},{flush_us:.0},{call},{calls},{ns}");
            println!("{NAME} {row}");
            results.row(&row);
        }
        let of = |name: &str| measured.iter().find(|(call, ..)| call == name).map_or(0.0, |(.., ns)| *ns);
        for ((call, beside, trips), ratios) in CALLS.iter().zip(&mut ratios) {
            ratios.push(of(call) / trips / of(beside).max(1.0));
        }
    }
    drop(server);
    let mut all_met = true;
    for ((call, beside, _), ratios) in CALLS.iter().zip(ratios) {
        let ratio = median(ratios);
        let met = ratio <= MOST;
        all_met &= met;
        let said = if met { "met" } else { "MISSED" };
        println!("{NAME} {call}: a round trip takes {ratio:.2} of `{beside}`, at most {MOST}: {said}");
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

fn compile(data: &Path) -> io::Result<std::path::PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c");
    let program = data.join("round_trip");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-O2", "-o"]).arg(&program);
    gcc.args([sources.join("bench/round_trip.c"), sources.join("ithaca_volume.c")]);
    let status = gcc.status().map_err(|error| io::Error::other(format!("gcc: {error}")))?;
    if status.success() { Ok(program) } else { Err(io::Error::other(format!("gcc: {status}"))) }
}

fn serve(disk: &Path) -> io::Result<Server> {
    let program = std::env::current_exe()?.with_file_name("ithaca");
    let mut create = Command::new(&program);
    create.args(["volume", "create"]).arg(disk).args(["--size", "64M"]).stdout(Stdio::null());
    let created = create.status()?;
    if !created.success() {
        return Err(io::Error::other(format!("ithaca volume create: {created}")));
    }
    let mut serve = Command::new(&program);
    serve.args(["volume", "serve"]).arg(disk).args(["--nbd", "127.0.0.1:0"]);
    let mut server = Server(serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let mut ready = String::new();
    if let Some(stdout) = server.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut ready)?;
    }
    if ready.contains("socket") { Ok(server) } else { Err(io::Error::other(format!("no socket: {ready}"))) }
}

/// One round: each call's name, how many were made, and nanoseconds of one.
fn measure(program: &Path, socket: &Path, seconds: f64) -> io::Result<Vec<(String, u64, f64)>> {
    let output = Command::new(program).arg(socket).arg(seconds.to_string()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let parse = |line: &str| {
        let mut fields = line.split(',');
        Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect())
}
