//! The same workloads on Redis, a thread and a connection for each worker: a record is a string, read by GET and written by SET.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::redis::{Server, connect};
use super::Slice;
use super::workload::{FIELD_BYTES, FIELDS, Operation, Operations, RECORDS, Workload, key_of};
use crate::measure::Histogram;

/// What becomes of an operation if it is none that a string can do.
const NO_SCANS: &str = "Redis keeps strings in no order";

/// A connection, one command at a time.
struct Connection {
    socket: BufReader<TcpStream>,
    value: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    fn new(addr: SocketAddr) -> io::Result<Self> {
        let socket = connect(addr)?;
        socket.set_nodelay(true)?;
        let value = vec![7; FIELDS * FIELD_BYTES];
        Ok(Self { socket: BufReader::new(socket), value, answer: Vec::new() })
    }

    fn operate(&mut self, operation: Operation) -> io::Result<()> {
        match operation {
            Operation::Read(record) => self.get(record),
            Operation::Update(record) | Operation::Insert(record) => self.set(record),
            Operation::Change(record) => {
                self.get(record)?;
                self.set(record)
            }
            Operation::Scan(..) => Err(io::Error::other(NO_SCANS)),
        }
    }

    fn get(&mut self, record: u64) -> io::Result<()> {
        let key = key_of(record);
        let command = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        self.socket.get_mut().write_all(command.as_bytes())?;
        let line = self.line()?;
        let len = line.strip_prefix('$').and_then(|len| len.parse::<i64>().ok());
        match len {
            // It is not there: its insert is under way.
            Some(-1) => Ok(()),
            Some(len) => {
                self.answer.resize(usize::try_from(len).unwrap_or(0) + 2, 0);
                self.socket.read_exact(&mut self.answer)
            }
            None => Err(io::Error::other(format!("redis-server says {line:?} to GET"))),
        }
    }

    fn set(&mut self, record: u64) -> io::Result<()> {
        let key = key_of(record);
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), self.value.len());
        let command = [head.as_bytes(), &self.value, b"\r\n"].concat();
        self.socket.get_mut().write_all(&command)?;
        match self.line()? {
            line if line == "+OK" => Ok(()),
            line => Err(io::Error::other(format!("redis-server says {line:?} to SET"))),
        }
    }

    /// A line of the answer, without its end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        io::BufRead::read_line(&mut self.socket, &mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// Writes every record.
pub fn load(server: &Server) -> io::Result<()> {
    let mut connection = Connection::new(server.addr())?;
    (0..RECORDS).try_for_each(|record| connection.set(record))
}

/// So many workers for `span`. They take their operations from one place, as those of the other sides.
pub fn slice(
    server: &mut Server,
    workload: &Workload,
    workers: usize,
    operations: &Mutex<Operations>,
    span: Duration,
) -> io::Result<Slice> {
    if workload.has_scans() {
        return Err(io::Error::other(NO_SCANS));
    }
    let addr = server.addr();
    let (client_before, server_before) = (crate::measure::process_cpu_nanos(), server.cpu_nanos()?);
    let begun = Instant::now();
    let work = || -> io::Result<Histogram> {
        let (mut connection, mut latencies) = (Connection::new(addr)?, Histogram::default());
        while begun.elapsed() < span {
            let operation =
                operations.lock().map_err(|_| io::Error::other("a worker panicked"))?.next(workload);
            let started = Instant::now();
            connection.operate(operation)?;
            latencies.add(started.elapsed().as_nanos() as u64, 1);
        }
        Ok(latencies)
    };
    let mut latencies = Histogram::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            let found = thread.join().map_err(|_| io::Error::other("a worker panicked"))??;
            latencies.merge(&found);
            Ok::<(), io::Error>(())
        })
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let client_nanos = crate::measure::process_cpu_nanos() - client_before;
    let server_nanos = server.cpu_nanos()?.saturating_sub(server_before);
    Ok(Slice { latencies, seconds, client_nanos, server_nanos })
}
