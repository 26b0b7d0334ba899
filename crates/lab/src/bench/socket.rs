//! Calls over a volume's socket, by the client in C, beside a bare socket on which two processes send as many bytes to and fro; and reads by the
//! client in Rust, many under way.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ithaca_env::real;
use ithaca_env::sim::Random;
use ithaca_volume::socket::{Client, ClientError, ClientOptions};

use super::started::Started;
use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{median, process_cpu_nanos};
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "socket";
/// Calls, in the order in which they are made: neighbours are compared.
const CALLS: [&str; 15] = [
    "bare",
    "hint",
    "bare-block",
    "read-block",
    "framed-read-block",
    "reads-under-way",
    "framed-reads-under-way",
    "write-block",
    "framed-write-block",
    "read-256-blocks",
    "framed-read-256-blocks",
    "write-256-blocks",
    "framed-write-256-blocks",
    "begin-abort",
    "transaction",
];
/// Each call that is judged by the time that it takes, beside which, and how many round trips it is.
const ROUND_TRIPS: [(&str, &str, f64); 3] =
    [("hint", "bare", 1.0), ("read-block", "bare-block", 1.0), ("begin-abort", "bare", 2.0)];
/// What a round trip may take, of a bare one.
const MOST: f64 = 1.5;
/// Calls whose blocks lie in memory that the server has too, judged by processor time beside the same calls with their blocks in frames.
const IN_MEMORY: [(&str, &str); 5] = [
    ("read-block", "framed-read-block"),
    ("reads-under-way", "framed-reads-under-way"),
    ("write-block", "framed-write-block"),
    ("read-256-blocks", "framed-read-256-blocks"),
    ("write-256-blocks", "framed-write-256-blocks"),
];

/// Reads of the client in Rust that are under way at a time, and of how many blocks they are.
const UNDER_WAY: u64 = 32;
const BLOCKS: u64 = 256;

/// What calls of one kind took.
struct Took {
    calls: u64,
    ns_each: f64,
    client_cpu_ns: f64,
    server_cpu_ns: f64,
}

impl Took {
    fn cpu_ns(&self) -> f64 {
        self.client_cpu_ns + self.server_cpu_ns
    }
}

/// Measures as many rounds as asked. Returns whether a round trip takes as little as it should.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let program = compile(&arguments.data)?;
    let disk = arguments.data.join(NAME);
    let server = serve(&disk)?;
    let what = "one client in C, one call at a time, but for reads-under-way: the client in Rust, 32 reads of 4 KB at a time; bare: 40 bytes to another process and back, bare-block: 40 bytes and 4128 back, and the processor time of both \
                processes; hint: please_cache; read: blocks that are kept in memory; write: without a flush; framed: blocks go through the socket, and not through \
                memory that client and server have; transaction: begin, read, write and commit of a block, durable";
    let columns = "round,flush_us,call,calls,ns_each,client_cpu_ns,server_cpu_ns";
    let mut results = Results::new(what, columns);
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds {
        let mut measured = Vec::new();
        for call in CALLS {
            let flush_us = flush_probe_us(probe)?;
            let socket = disk.join("volume.sock");
            let took = match call.ends_with("under-way") {
                true => many_at_a_time(&socket, arguments.seconds, call, &server)?,
                false => measure(&program, &socket, arguments.seconds, call, &server)?,
            };
            let Took { calls, ns_each, client_cpu_ns, server_cpu_ns } = took;
            let row = format!(
                "{round},{flush_us:.0},{call},{calls},{ns_each:.0},{client_cpu_ns:.0},{server_cpu_ns:.0}"
            );
            println!("{NAME} {row}");
            results.row(&row);
            measured.push(took);
        }
        rounds.push(measured);
    }
    drop(server);
    results.write(&arguments.results, NAME)?;
    Ok(judge(&rounds))
}

/// Says whether round trips take as little as they should, and memory less than frames.
fn judge(rounds: &[Vec<Took>]) -> bool {
    let ratio = |call: &str, beside: &str, of: fn(&Took) -> f64| {
        let at = |name: &str| CALLS.iter().position(|call| *call == name).expect("a call that is made");
        let ratios = rounds.iter().map(|took| of(&took[at(call)]) / of(&took[at(beside)]).max(1.0));
        median(ratios)
    };
    let mut all_met = true;
    for (call, beside, trips) in ROUND_TRIPS {
        let ratio = ratio(call, beside, |took| took.ns_each) / trips;
        let said = if ratio <= MOST { "met" } else { "MISSED" };
        println!("{NAME} {call}: a round trip takes {ratio:.2} of `{beside}`, at most {MOST}: {said}");
        all_met &= ratio <= MOST;
    }
    for (call, beside) in IN_MEMORY {
        let ratio = ratio(call, beside, Took::cpu_ns);
        let said = if ratio <= 1.0 { "met" } else { "MISSED" };
        println!("{NAME} {call}: {ratio:.2} of the processor time of `{beside}`, at most 1: {said}");
        all_met &= ratio <= 1.0;
    }
    all_met
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

fn serve(disk: &Path) -> io::Result<Started> {
    let program = std::env::current_exe()?.with_file_name("ithaca");
    let mut create = Command::new(&program);
    create.args(["volume", "create"]).arg(disk).args(["--size", "64M"]).stdout(Stdio::null());
    let created = create.status()?;
    if !created.success() {
        return Err(io::Error::other(format!("ithaca volume create: {created}")));
    }
    let mut serve = Command::new(&program);
    serve.args(["volume", "serve"]).arg(disk).args(["--nbd", "127.0.0.1:0"]);
    let mut server = Started::new(serve.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let ready = server.first_line()?;
    if ready.contains("socket") { Ok(server) } else { Err(io::Error::other(format!("no socket: {ready}"))) }
}

/// Makes calls of one kind for a while.
fn measure(program: &Path, socket: &Path, seconds: f64, call: &str, server: &Started) -> io::Result<Took> {
    let before = server.cpu_nanos()?;
    let output = Command::new(program).arg(socket).arg(seconds.to_string()).arg(call).output()?;
    let server_ns = (server.cpu_nanos()? - before) as f64;
    let said = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> = said.trim().split(',').filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [calls, ns_each, client_cpu_ns] if output.status.success() => {
            let server_cpu_ns = server_ns / calls.max(1.0);
            Ok(Took { calls: calls as u64, ns_each, client_cpu_ns, server_cpu_ns })
        }
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Reads blocks that are kept in memory with the client in Rust, many at a time, for a while.
fn many_at_a_time(socket: &Path, seconds: f64, call: &str, server: &Started) -> io::Result<Took> {
    let mut options = ClientOptions::default();
    if call.starts_with("framed") {
        options.memory_bytes = 0;
    }
    let (before, own_before) = (server.cpu_nanos()?, process_cpu_nanos());
    let (calls, ns) = real::run(async |env| {
        let client = Client::connect_with(&env, socket, options).await?;
        // Answered after it was said that the memory is used.
        client.flush().await?;
        let began = env.now();
        let end = began + Duration::from_secs_f64(seconds);
        let reader = |nth| {
            let (own, client) = (env.clone(), client.clone());
            env.spawn(async move {
                let (mut random, mut calls) = (Random::new(nth), 0_u64);
                while own.now() < end {
                    client.read(random.below(BLOCKS), 1).await?;
                    calls += 1;
                }
                Ok::<_, ClientError>(calls)
            })
        };
        let mut calls = 0;
        for reader in (0..UNDER_WAY).map(reader).collect::<Vec<_>>() {
            calls += reader.join().await.unwrap_or(Ok(0))?;
        }
        Ok::<_, ClientError>((calls, env.now().0 - began.0))
    })
    .map_err(io::Error::other)?;
    let each = |ns: f64| ns / calls.max(1) as f64;
    Ok(Took {
        calls,
        ns_each: each(ns as f64),
        client_cpu_ns: each((process_cpu_nanos() - own_before) as f64),
        server_cpu_ns: each((server.cpu_nanos()? - before) as f64),
    })
}
