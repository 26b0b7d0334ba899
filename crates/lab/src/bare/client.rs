//! The bare client: one thread over all its connections, or several with a part of them each. A connection has one message out at a time that carries all
//! the operations it may have in flight, as a client with range grants would send them.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event};

use super::frame::{self, HEADER_BYTES, Kind, TABLE_ENTRY_BYTES, u64_at};
use super::grpc::{self, Calls, Method};
use super::pipe::Pipe;
use crate::measure::{Figure, Histogram};

/// Entries that a read workload reads: 64 MiB of 4 KB entries.
pub const PRELOADED: u64 = 16_384;
/// Bytes of one echo.
const ECHO_BYTES: usize = 16;
/// Keys of the map that is read.
pub const MAP_KEYS: u64 = 10_000;
/// Bytes of a round trip's request and of its answer: a header and one word, or two.
const TRIP_BYTES: [usize; 2] = [HEADER_BYTES + 8, HEADER_BYTES + 16];

/// What a client does, `batch` operations a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Asks for tokens.
    Token,
    /// Appends entries of `size` bytes durably.
    Append {
        /// Bytes of an entry.
        size: usize,
    },
    /// Reads preloaded entries of `size` bytes at random positions and verifies them.
    Read {
        /// Bytes of an entry.
        size: usize,
    },
    /// Sends 16 bytes an operation and waits for them to come back.
    Echo,
    /// Asks for a token by a message of its own, and verifies the answer: a question to a counter, as a read of a map asks one.
    RoundTrip,
    /// etcd: the value of `size` bytes of a random key, linearizable.
    EtcdGet {
        /// Bytes of a value.
        size: usize,
    },
    /// etcd: gives keys, in their order, values of `size` bytes.
    EtcdPut {
        /// Bytes of a value.
        size: usize,
    },
    /// Redis: `INCR`.
    RedisIncr,
    /// Redis: `XADD` of `size` bytes to one stream a connection.
    RedisXadd {
        /// Bytes of an entry.
        size: usize,
    },
}

impl Work {
    /// Lines that Redis answers to one operation.
    fn answer_lines(self) -> usize {
        if matches!(self, Self::RedisXadd { .. }) { 2 } else { 1 }
    }

    /// What etcd is asked to do, and the bytes of the value.
    fn of_etcd(self) -> Option<(Method, usize)> {
        match self {
            Self::EtcdGet { size } => Some((Method::Range, size)),
            Self::EtcdPut { size } => Some((Method::Put, size)),
            _ => None,
        }
    }
}

/// What a run of the client saw.
#[derive(Default)]
pub struct Run {
    /// Operations done.
    pub operations: u64,
    /// How long each took.
    pub latencies: Histogram,
    /// Seconds from the first message to the last answer.
    pub seconds: f64,
}

impl Run {
    /// What both saw, who worked at the same time.
    fn with(mut self, other: &Self) -> Self {
        self.operations += other.operations;
        self.latencies.merge(&other.latencies);
        self.seconds = self.seconds.max(other.seconds);
        self
    }

    /// The figure of this run, given what CPU both sides used and the median flush, in nanoseconds.
    pub fn figure(&self, client_nanos: u64, server_nanos: u64, flush_nanos: u64) -> Figure {
        let per_operation = |nanos: u64| nanos as f64 / 1000.0 / self.operations.max(1) as f64;
        Figure {
            ops_per_s: self.operations as f64 / self.seconds,
            p50_us: self.latencies.quantile_us(0.5),
            p99_us: self.latencies.quantile_us(0.99),
            client_cpu_us: per_operation(client_nanos),
            server_cpu_us: per_operation(server_nanos),
            flush_us: flush_nanos as f64 / 1000.0,
        }
    }
}

struct Connection {
    pipe: Pipe,
    message: Vec<u8>,
    calls: Calls,
    sent_at: Instant,
    is_waiting: bool,
}

/// Connections and the work that is done over them.
pub struct Client {
    loop_fd: OwnedFd,
    connections: Vec<Connection>,
    work: Work,
    batch: usize,
    next_request: u64,
    random: u64,
}

/// Has all of them work for `span` at the same time, each on a thread of its own.
pub fn run_all(clients: &mut [Client], span: Duration) -> io::Result<Run> {
    std::thread::scope(|scope| {
        let started: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || client.run(span))).collect();
        let ended =
            started.into_iter().map(|run| run.join().map_err(|_| io::Error::other("a client panicked"))?);
        ended.into_iter().try_fold(Run::default(), |all, run| Ok(all.with(&run?)))
    })
}

impl Client {
    /// Connects `connections` times to `addr`; each has `batch` operations in flight.
    pub fn connect(addr: SocketAddr, work: Work, connections: usize, batch: usize) -> io::Result<Self> {
        let loop_fd = epoll::create(CreateFlags::CLOEXEC)?;
        let mut all = Vec::with_capacity(connections);
        for token in 0..connections {
            let mut pipe = Pipe::new(TcpStream::connect(addr)?, &loop_fd, token as u64)?;
            if work.of_etcd().is_some() {
                *pipe.outbox() = grpc::preface();
            }
            let message = template(work, batch, token);
            let calls = Calls::default();
            all.push(Connection { pipe, message, calls, sent_at: Instant::now(), is_waiting: false });
        }
        Ok(Self { loop_fd, connections: all, work, batch, next_request: 0, random: 0x1234_5678_9abc_def1 })
    }

    /// Works for `span`, then waits for what is still out.
    pub fn run(&mut self, span: Duration) -> io::Result<Run> {
        let mut run = Run::default();
        let begin = Instant::now();
        for token in 0..self.connections.len() {
            self.send(token)?;
        }
        let mut waiting = self.connections.len();
        let mut events: Vec<Event> = Vec::with_capacity(64);
        while waiting > 0 {
            events.clear();
            match epoll::wait(&self.loop_fd, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let token = event.data.u64() as usize;
                if !self.receive(token)? {
                    continue;
                }
                let nanos = self.connections[token].sent_at.elapsed().as_nanos() as u64;
                run.operations += self.batch as u64;
                run.latencies.add(nanos, self.batch as u64);
                if begin.elapsed() < span {
                    self.send(token)?;
                } else {
                    waiting -= 1;
                }
            }
        }
        run.seconds = begin.elapsed().as_secs_f64();
        Ok(run)
    }

    /// Makes this turn's message in place and sends it.
    fn send(&mut self, token: usize) -> io::Result<()> {
        let connection = &mut self.connections[token];
        let message = &mut connection.message;
        self.next_request += 1;
        match self.work {
            Work::Token => frame::seal(message, Kind::Token, self.next_request, 0),
            Work::Append { size } => stamp_entries(message, self.batch, size, self.next_request),
            Work::Read { .. } => {
                for position in message[HEADER_BYTES..].chunks_exact_mut(8) {
                    position.copy_from_slice(&(drawn(&mut self.random) % PRELOADED).to_le_bytes());
                }
                frame::seal(message, Kind::Read, self.next_request, 0);
            }
            Work::RoundTrip => {
                for (nth, trip) in message.chunks_exact_mut(TRIP_BYTES[0]).enumerate() {
                    frame::seal(trip, Kind::Token, nth as u64, 0);
                }
            }
            Work::EtcdGet { .. } => {
                message.clear();
                for _ in 0..self.batch {
                    let key = etcd_key(drawn(&mut self.random));
                    connection.calls.push(message, Method::Range, &key, &[]);
                }
            }
            Work::EtcdPut { size } => {
                message.clear();
                for nth in 0..self.batch as u64 {
                    let key = etcd_key(self.next_request * self.batch as u64 + nth);
                    connection.calls.push(message, Method::Put, &key, &vec![b'x'; size]);
                }
            }
            Work::Echo | Work::RedisIncr | Work::RedisXadd { .. } => {}
        }
        connection.sent_at = Instant::now();
        connection.is_waiting = true;
        connection.pipe.send(&[IoSlice::new(&connection.message)])?;
        connection.pipe.flush(&self.loop_fd, token as u64)
    }

    /// Takes in what came; `true` when the answer is complete and right.
    fn receive(&mut self, token: usize) -> io::Result<bool> {
        let connection = &mut self.connections[token];
        connection.pipe.flush(&self.loop_fd, token as u64)?;
        if !connection.pipe.fill()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !connection.is_waiting {
            return Ok(false);
        }
        if let Some((method, size)) = self.work.of_etcd() {
            connection.take_calls(&self.loop_fd, token as u64)?;
            let least = if method == Method::Range { size } else { 0 };
            let is_done = connection.calls.have_ended(self.batch, least)?;
            connection.is_waiting = !is_done;
            return Ok(is_done);
        }
        let received = connection.pipe.received();
        let (len, is_right) = match self.work {
            Work::RoundTrip if received.len() < self.batch * TRIP_BYTES[1] => return Ok(false),
            Work::RoundTrip => (self.batch * TRIP_BYTES[1], are_round_trips(received, self.batch)?),
            Work::Echo if received.len() < connection.message.len() => return Ok(false),
            Work::Echo => (connection.message.len(), true),
            Work::RedisIncr | Work::RedisXadd { .. } => {
                let lines = received.iter().filter(|byte| **byte == b'\n').count();
                if lines < self.batch * self.work.answer_lines() && received.first() != Some(&b'-') {
                    return Ok(false);
                }
                (received.len(), received.first() != Some(&b'-'))
            }
            work => {
                let Some(frame) = frame::parse(received)? else {
                    return Ok(false);
                };
                let is_right = match work {
                    Work::Read { .. } => {
                        frame.body.len() == self.batch * TABLE_ENTRY_BYTES
                            && frame::verifies(frame.body, frame.data)
                    }
                    _ => u64_at(frame.body, 8) == self.batch as u64,
                };
                (frame.bytes.len(), is_right)
            }
        };
        if !is_right {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an answer that does not fit its request",
            ));
        }
        connection.pipe.consume(len);
        connection.is_waiting = false;
        Ok(true)
    }
}

impl Connection {
    /// Takes what etcd has sent, and answers what is no answer.
    fn take_calls(&mut self, loop_fd: &OwnedFd, token: u64) -> io::Result<()> {
        let mut answers = Vec::new();
        let taken = self.calls.take(self.pipe.received(), &mut answers);
        self.pipe.consume(taken);
        self.pipe.outbox().extend_from_slice(&answers);
        self.pipe.flush(loop_fd, token)
    }
}

/// The next random number.
fn drawn(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// A key's name in etcd.
fn etcd_key(number: u64) -> [u8; 8] {
    let mut key = *b"key 0000";
    let digits = (number % MAP_KEYS).to_le_bytes();
    key[4..].copy_from_slice(&digits[..4]);
    key
}

/// Whether `received` begins with the answers of so many round trips.
fn are_round_trips(received: &[u8], count: usize) -> io::Result<bool> {
    for (nth, answer) in received.chunks_exact(TRIP_BYTES[1]).take(count).enumerate() {
        match frame::parse(answer)? {
            Some(frame) if frame.request_id == nth as u64 && frame.bytes.len() == TRIP_BYTES[1] => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The message of a connection, its parts that stay the same.
fn template(work: Work, batch: usize, connection: usize) -> Vec<u8> {
    match work {
        Work::Token => {
            let mut message = Vec::new();
            frame::push_words(&mut message, Kind::Token, 0, &[batch as u64]);
            message
        }
        Work::Append { size } => {
            let mut message = vec![0; HEADER_BYTES + batch * TABLE_ENTRY_BYTES];
            message.extend((0..batch * size).map(|at| ((at * 131) >> 3) as u8));
            message
        }
        Work::Read { .. } => vec![0; HEADER_BYTES + batch * 8],
        Work::Echo => vec![7; ECHO_BYTES * batch],
        Work::RoundTrip => {
            let mut message = Vec::new();
            (0..batch).for_each(|_| frame::push_words(&mut message, Kind::Token, 0, &[1]));
            message
        }
        Work::EtcdGet { .. } | Work::EtcdPut { .. } => Vec::new(),
        Work::RedisIncr => b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n".repeat(batch),
        Work::RedisXadd { size } => {
            let stream = format!("stream{connection:02}");
            let head = format!("*5\r\n$4\r\nXADD\r\n$8\r\n{stream}\r\n$1\r\n*\r\n$1\r\nd\r\n${size}\r\n");
            [head.as_bytes(), &vec![b'x'; size], b"\r\n"].concat().repeat(batch)
        }
    }
}

/// Makes every entry differ from the last message's, then computes its checksum, as a client with new data must.
fn stamp_entries(message: &mut [u8], batch: usize, size: usize, stamp: u64) {
    let (head, data) = message.split_at_mut(HEADER_BYTES + batch * TABLE_ENTRY_BYTES);
    let table = head[HEADER_BYTES..].chunks_exact_mut(TABLE_ENTRY_BYTES);
    for (table, entry) in table.zip(data.chunks_exact_mut(size)) {
        let stamped = size.min(8);
        entry[..stamped].copy_from_slice(&stamp.to_le_bytes()[..stamped]);
        frame::put_table_entry(table, entry);
    }
    frame::seal(head, Kind::Append, stamp, data.len());
}
