//! The bare server as a process of its own, as the system's is: this program again, under a hidden subcommand.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::client::{Client, PRELOADED, Work, run_all};
use super::frame::{self, HEADER_BYTES, Kind, u64_at};
use crate::measure::{Figure, process_cpu_nanos};

/// A running server; it ends when this is dropped, or when this process ends.
pub struct ServerProcess {
    child: Child,
    control: TcpStream,
    addr: SocketAddr,
    echo_addr: SocketAddr,
}

impl ServerProcess {
    /// Starts one with its journal in `folder`.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.arg("bare-server").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let ports: Vec<u16> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [port, echo_port] = ports[..] else {
            return Err(io::Error::other("the bare server did not say that it is ready"));
        };
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let control = TcpStream::connect(addr)?;
        Ok(Self { child, control, addr, echo_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, echo_port)) })
    }

    /// A client of it with `connections`, `batch` operations in flight on each. Preloads what a read workload reads.
    pub fn client(&mut self, work: Work, connections: usize, batch: usize) -> io::Result<Client> {
        if let Work::Read { size } = work {
            self.ask(Kind::Preload, &[PRELOADED, size as u64])?;
        }
        let addr = if work == Work::Echo { self.echo_addr } else { self.addr };
        Client::connect(addr, work, connections, batch)
    }

    /// Runs all clients for `span` at the same time and gives the figure, server CPU and flushes included.
    pub fn measure(&mut self, clients: &mut [Client], span: Duration) -> io::Result<Figure> {
        let (server_before, _) = self.status()?;
        let client_before = process_cpu_nanos();
        let run = run_all(clients, span)?;
        let client_nanos = process_cpu_nanos() - client_before;
        let (server_after, flush_nanos) = self.status()?;
        Ok(run.figure(client_nanos, server_after - server_before, flush_nanos))
    }

    /// CPU of the server so far and the median flush since the last call, both in nanoseconds.
    fn status(&mut self) -> io::Result<(u64, u64)> {
        let answer = self.ask(Kind::Status, &[])?;
        Ok((answer[0], answer[1]))
    }

    /// One request whose answer is two words.
    fn ask(&mut self, kind: Kind, words: &[u64]) -> io::Result<[u64; 2]> {
        let mut request = Vec::new();
        frame::push_words(&mut request, kind, 0, words);
        self.control.write_all(&request)?;
        let mut answer = [0; HEADER_BYTES + 16];
        self.control.read_exact(&mut answer)?;
        match frame::parse(&answer)? {
            Some(frame) => Ok([u64_at(frame.body, 0), u64_at(frame.body, 8)]),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It ends when its standard input does; a server that hangs is killed.
        drop(self.child.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}
