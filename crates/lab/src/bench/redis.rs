//! Redis on the same workload: `INCR` for tokens, `XADD` with `appendfsync always` for appends, pipelined alike.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bare::{Client, ServerProcess, Work};
use crate::measure::{Figure, process_cpu_nanos};

use super::plan::{Bench, Operation};
use super::side::{MakeSide, Side, WARM_UP};
use super::started::Started;

/// How long a server may take to answer at first.
const START_MAX: Duration = Duration::from_secs(10);

/// A running Redis. It ends, and its data goes, when this is dropped.
pub struct Server {
    /// Killed when this is dropped.
    _started: Started,
    control: TcpStream,
    addr: SocketAddr,
}

/// A running Redis and a client of it.
pub struct Redis {
    server: Server,
    client: Client,
}

impl Redis {
    /// Starts `redis-server` on a free port, its files below `folder`.
    pub fn start(bench: &Bench, folder: &Path) -> io::Result<Self> {
        let work = match bench.operation {
            Operation::Token => Work::RedisIncr,
            Operation::Append => Work::RedisXadd { size: bench.size },
            _ => {
                return Err(io::Error::other("not measured against Redis"));
            }
        };
        let server = Server::start(folder, bench.operation == Operation::Append)?;
        let client = Client::connect(server.addr, work, bench.clients, bench.batch())?;
        Ok(Self { server, client })
    }
}

impl Server {
    /// Starts `redis-server` on a free port, its files below `folder`; one that `is_durable` syncs each write before it answers.
    pub fn start(folder: &Path, is_durable: bool) -> io::Result<Self> {
        let folder = folder.join("redis");
        std::fs::create_dir_all(&folder)?;
        let addr = free_port()?;
        let append_only = if is_durable { "yes" } else { "no" };
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", ""]);
        command.args([
            "--appendonly",
            append_only,
            "--appendfsync",
            "always",
            "--auto-aof-rewrite-percentage",
            "0",
        ]);
        command.arg("--dir").arg(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let started = Started::with_files(&mut command, folder)?;
        Ok(Self { _started: started, control: connect(addr)?, addr })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends one inline command and gives its answer, which must fit one buffer.
    fn ask(&mut self, command: &str) -> io::Result<String> {
        self.control.write_all(command.as_bytes())?;
        self.control.write_all(b"\r\n")?;
        let mut answer = vec![0; 64 << 10];
        let len = self.control.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
    }

    /// User and system time of the server so far, in nanoseconds.
    pub fn cpu_nanos(&mut self) -> io::Result<u64> {
        let info = self.ask("INFO cpu")?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|seconds| seconds.parse::<f64>().ok()).unwrap_or(0.0)
        };
        Ok(((field("used_cpu_sys:") + field("used_cpu_user:")) * 1e9) as u64)
    }
}

impl Side for Redis {
    fn name(&self) -> &'static str {
        MakeSide::Redis.name()
    }

    fn slice(&mut self, _: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        self.server.ask("FLUSHALL")?;
        self.client.run(WARM_UP)?;
        let (server_before, client_before) = (self.server.cpu_nanos()?, process_cpu_nanos());
        let run = self.client.run(span)?;
        let client_nanos = process_cpu_nanos() - client_before;
        let server_nanos = self.server.cpu_nanos()?.saturating_sub(server_before);
        Ok(run.figure(client_nanos, server_nanos, 0))
    }
}

/// A port that is free now. Another process may take it before it is used: the server then fails to start, and says so.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A connection to a server that may be about to start.
pub fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(addr) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > START_MAX => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
