//! etcd as a peer: linearizable gets over gRPC, as many in flight as the system has.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::plan::{Bench, Operation};
use super::redis::{connect, free_port};
use super::side::{MakeSide, Side, WARM_UP};
use super::started::Started;
use crate::bare::{Client, MAP_KEYS, ServerProcess, Work};
use crate::measure::{Figure, process_cpu_nanos};

/// How long it may take until it has elected itself.
const START_MAX: Duration = Duration::from_secs(20);

/// A running etcd and a client of it. It ends, and its data goes, when this is dropped.
pub struct Etcd {
    server: Server,
    client: Client,
}

struct Server {
    started: Started,
    addr: SocketAddr,
}

impl Etcd {
    /// Starts `etcd` on free ports, its data below `folder`, and gives every key a value.
    pub fn start(bench: &Bench, folder: &Path) -> io::Result<Self> {
        if bench.operation != Operation::Get {
            return Err(io::Error::other("not measured against etcd"));
        }
        let server = Server::start(folder)?;
        server.fill(bench)?;
        let work = Work::EtcdGet { size: bench.size };
        let client = Client::connect(server.addr, work, bench.clients, bench.batch())?;
        Ok(Self { server, client })
    }
}

impl Server {
    fn start(folder: &Path) -> io::Result<Self> {
        let folder = folder.join("etcd");
        let (addr, peer) = (free_port()?, free_port()?);
        let (client_url, peer_url) = (format!("http://{addr}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.args(["--logger", "zap", "--log-level", "error", "--data-dir"]).arg(&folder);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { started: Started::with_files(&mut command, folder)?, addr };
        connect(addr)?;
        Ok(server)
    }

    /// Gives every key a value; again and again, as long as it has no leader.
    fn fill(&self, bench: &Bench) -> io::Result<()> {
        let (begin, work) = (Instant::now(), Work::EtcdPut { size: bench.size });
        loop {
            match self.put_all(work, bench) {
                Err(error) if begin.elapsed() > START_MAX => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                Ok(()) => return Ok(()),
            }
        }
    }

    fn put_all(&self, work: Work, bench: &Bench) -> io::Result<()> {
        let mut client = Client::connect(self.addr, work, bench.clients, bench.batch())?;
        let mut put = 0;
        // Each run puts what all connections have in flight once.
        while put < MAP_KEYS + bench.inflight as u64 {
            put += client.run(Duration::ZERO)?.operations;
        }
        Ok(())
    }
}

impl Side for Etcd {
    fn name(&self) -> &'static str {
        MakeSide::Etcd.name()
    }

    fn slice(&mut self, _: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        self.client.run(WARM_UP)?;
        let (server_before, client_before) = (self.server.started.cpu_nanos()?, process_cpu_nanos());
        let run = self.client.run(span)?;
        let client_nanos = process_cpu_nanos() - client_before;
        let server_nanos = self.server.started.cpu_nanos()? - server_before;
        Ok(run.figure(client_nanos, server_nanos, 0))
    }
}
