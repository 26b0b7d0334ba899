//! A volume over NBD beside nbdkit's file plugin, on files of one file system, by fio's NBD engine.
//!
//! nbdkit answers from the page cache and writes to it; a volume remembers what it has read, in as much memory as the disk is large, reads the
//! rest from its drive, and writes a log. Everything was read once before it is measured. So what the two do differs, and the ratio says what a
//! user of a file as a disk gains or loses.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::started::Started;
use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "volume";
const SIZE: &str = "1G";
const SIZE_BYTES: u64 = 1 << 30;
/// What is asked of the volume, against nbdkit.
const LEAST: f64 = 0.8;
/// Each with how fio is asked for it.
const WORKLOADS: [(&str, &[&str]); 3] = [
    ("read", &["--rw=randread"]),
    ("write", &["--rw=randwrite"]),
    ("write-flush", &["--rw=randwrite", "--fsync=32"]),
];

/// A server and where it listens.
struct NbdServer {
    name: &'static str,
    started: Started,
    port: u16,
}

/// What a slice gave.
struct Slice {
    ops_per_s: f64,
    cpu_us: f64,
}

/// Measures as many rounds as asked. Returns whether every target is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let image = arguments.data.join("image");
    fill(&image)?;
    let servers = [serve_file(&image)?, serve_volume(&arguments.data, &image)?];
    let what = format!(
        "random 4 KB requests of one connection, 32 under way, on {SIZE} that was written and read before; a write is not durable until a flush, \
         write-flush asks for one every 32 writes; processor time of the server in microseconds a request"
    );
    let mut results = Results::new(&what, "round,load,flush_us,workload,side,ops_per_s,server_cpu_us");
    let mut ratios = WORKLOADS.map(|_| Vec::new());
    for round in 0..arguments.rounds {
        let flush_us = flush_probe_us(probe)?;
        for ((workload, options), ratios) in WORKLOADS.iter().zip(&mut ratios) {
            let mut found = [0.0; 2];
            for turn in 0..servers.len() {
                let side = (turn + round) % servers.len();
                let slice = slice(&servers[side], options, Duration::from_secs_f64(arguments.seconds))?;
                found[side] = slice.ops_per_s;
                let (load, name, Slice { ops_per_s, cpu_us }) = (load(), servers[side].name, slice);
                let row =
                    format!("{round},{load},{flush_us:.0},{workload},{name},{ops_per_s:.0},{cpu_us:.1}");
                println!("{NAME} {row}");
                results.row(&row);
            }
            ratios.push(found[1] / found[0]);
        }
    }
    let mut all_met = true;
    for ((workload, _), ratios) in WORKLOADS.iter().zip(ratios) {
        let ratio = median(ratios);
        let met = ratio >= LEAST;
        all_met &= met;
        let said = if met { "met" } else { "MISSED" };
        println!("{NAME} {workload}: {ratio:.2} of nbdkit's file plugin, at least {LEAST}: {said}");
    }
    results.write(&arguments.results, "nbd")?;
    Ok(all_met)
}

/// A file without a hole, and without two blocks that are the same.
fn fill(image: &Path) -> io::Result<()> {
    let mut file = io::BufWriter::with_capacity(1 << 20, std::fs::File::create(image)?);
    for block in 0..SIZE_BYTES / 4096 {
        file.write_all(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(512))?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn serve_file(image: &Path) -> io::Result<NbdServer> {
    // Nothing else says which port is free; between this and nbdkit's start it may be taken, which ends the bench.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &port.to_string(), "file"]).arg(image);
    let started = Started::new(command.stdin(Stdio::null()))?;
    let server = NbdServer { name: "nbdkit", started, port };
    for _ in 0..100 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(server);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(io::Error::other("nbdkit does not listen after 5 s"))
}

fn serve_volume(data: &Path, image: &Path) -> io::Result<NbdServer> {
    let program = std::env::current_exe()?.with_file_name("ithaca");
    let dir = data.join(NAME);
    let mut create = Command::new(&program);
    create.args(["volume", "create"]).arg(&dir).args(["--size", SIZE, "--room", "3G"]).stdout(Stdio::null());
    done(create)?;
    let mut serve = Command::new(&program);
    serve.args(["volume", "serve"]).arg(&dir).args(["--nbd", "127.0.0.1:0", "--read-cache", SIZE, "--json"]);
    let mut started = Started::new(serve.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let ready = started.first_line()?;
    let port = ready.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
    let server = NbdServer { name: "volume", started, port: port.unwrap_or(0) };
    let mut copy = Command::new("nbdcopy");
    copy.arg("--flush").arg(image).arg(uri(&server));
    done(copy)?;
    // nbdkit's file is in the page cache since it was written; what a volume remembers it has to have read.
    let mut look = Command::new("nbdcopy");
    look.arg(uri(&server)).arg("null:");
    done(look)?;
    Ok(server)
}

fn uri(server: &NbdServer) -> String {
    format!("nbd://127.0.0.1:{}", server.port)
}

fn done(mut command: Command) -> io::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program}: {status}"))) }
}

fn slice(server: &NbdServer, options: &[&str], span: Duration) -> io::Result<Slice> {
    let before = server.started.cpu_nanos()?;
    let mut fio = Command::new("fio");
    fio.args(["--name=slice", "--ioengine=nbd", "--bs=4k", "--iodepth=32", "--time_based", "--randrepeat=0"]);
    fio.args([&format!("--uri={}", uri(server)), &format!("--size={SIZE}")]).args(options);
    fio.args([&format!("--runtime={}ms", span.as_millis()), "--output-format=terse", "--terse-version=3"]);
    let output = fio.output().map_err(|error| io::Error::other(format!("fio: {error}")))?;
    let ops_per_s = rate(&output).map_err(|why| io::Error::other(format!("{}: {why}", server.name)))?;
    let nanos = server.started.cpu_nanos()? - before;
    let ops = (ops_per_s * span.as_secs_f64()).max(1.0);
    Ok(Slice { ops_per_s, cpu_us: nanos as f64 / 1e3 / ops })
}

/// Reads and writes a second by what fio has printed. Errors: it has failed, or measured nothing; a side that does nothing is not to be compared
/// with.
fn rate(output: &Output) -> Result<f64, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    // Of the terse format's fields, the rates of reads and of writes.
    let fields = text
        .lines()
        .rev()
        .find(|line| line.starts_with("3;"))
        .map(|line| line.split(';').collect::<Vec<_>>());
    let field = |at: usize| fields.as_ref().and_then(|fields| fields.get(at)?.parse::<f64>().ok());
    match field(7).zip(field(48)).map(|(reads, writes)| reads + writes) {
        Some(rate) if rate > 0.0 && output.status.success() => Ok(rate),
        found => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let said = errors.lines().find(|line| !line.trim().is_empty()).unwrap_or("and has not said why");
            Err(format!("fio did {} requests a second ({}): {said}", found.unwrap_or(0.0), output.status))
        }
    }
}

/// Processes that wanted to run of late, as the system counts them.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, reads: &str, stderr: &str) -> Output {
        let mut fields = vec!["0"; 100];
        (fields[0], fields[7]) = ("3", reads);
        let (stdout, stderr) = (format!("a note\n{}\n", fields.join(";")).into(), stderr.into());
        Output { status: ExitStatus::from_raw(code << 8), stdout, stderr }
    }

    #[test]
    fn a_side_that_did_nothing_or_failed_is_no_side_to_compare_with() {
        assert_eq!(rate(&output(0, "81063", "")), Ok(81063.0));
        let refused = rate(&output(1, "0", "\nfio: nbd_connect_uri: Connection refused\nmore")).unwrap_err();
        assert_eq!(
            refused,
            "fio did 0 requests a second (exit status: 1): fio: nbd_connect_uri: Connection refused"
        );
        assert!(rate(&output(0, "0", "")).is_err(), "nothing was done");
        assert!(rate(&output(1, "5", "")).is_err(), "it has ended early");
        assert!(
            rate(&Output { stdout: Vec::new(), ..output(0, "1", "") }).is_err(),
            "it has printed nothing"
        );
    }
}
