//! The bare server: one event thread over every connection, and the journal's I/O threads.

use std::io::{self, IoSlice, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::frame::{self, Frame, HEADER_BYTES, Kind, TABLE_ENTRY_BYTES, u64_at};
use super::journal::{Journal, SEGMENTS, Waiting};
use super::pipe::Pipe;
use crate::measure::{Histogram, process_cpu_nanos};

const LISTENER: u64 = u64::MAX;
const ECHO_LISTENER: u64 = u64::MAX - 1;
const JOURNAL: u64 = u64::MAX - 2;
const PARENT: u64 = u64::MAX - 3;
/// Events taken from the system at once.
const EVENTS: usize = 64;

/// A connection: framed, or echoing whatever comes.
struct Connection {
    pipe: Pipe,
    echoes: bool,
}

/// Entries kept in memory for reads: all of one size, found by their position alone.
#[derive(Default)]
struct Preloaded {
    size: usize,
    tables: Vec<u8>,
    data: Vec<u8>,
}

struct Server {
    loop_fd: OwnedFd,
    connections: Vec<Option<Connection>>,
    /// Connections with something in their outbox.
    dirty: Vec<u64>,
    journal: Journal,
    next_position: u64,
    preloaded: Preloaded,
    flushes: Histogram,
}

/// Serves until standard input ends. Prints one line, `ready PORT ECHO_PORT`, when it does; the journal lies in `folder`.
pub fn serve(folder: &Path) -> io::Result<()> {
    let loop_fd = epoll::create(CreateFlags::CLOEXEC)?;
    let journal = Journal::create(&folder.join("bare.journal"), SEGMENTS)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let echo_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    epoll::add(&loop_fd, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&loop_fd, &echo_listener, EventData::new_u64(ECHO_LISTENER), EventFlags::IN)?;
    epoll::add(&loop_fd, journal.wakes(), EventData::new_u64(JOURNAL), EventFlags::IN)?;
    epoll::add(&loop_fd, io::stdin(), EventData::new_u64(PARENT), EventFlags::IN)?;
    println!("ready {} {}", listener.local_addr()?.port(), echo_listener.local_addr()?.port());
    io::stdout().flush()?;
    let mut server = Server {
        loop_fd,
        connections: Vec::new(),
        dirty: Vec::new(),
        journal,
        next_position: 0,
        preloaded: Preloaded::default(),
        flushes: Histogram::default(),
    };
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&server.loop_fd, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for &Event { flags, data } in &events {
            match data.u64() {
                LISTENER => server.accept(&listener, false)?,
                ECHO_LISTENER => server.accept(&echo_listener, true)?,
                JOURNAL => server.acknowledge()?,
                PARENT => return Ok(()),
                connection => server.turn(connection, flags),
            }
        }
        // The drive begins before the answers go out: it is the slower of the two.
        server.journal.start_flights();
        server.flush_dirty();
    }
}

impl Server {
    fn accept(&mut self, listener: &TcpListener, echoes: bool) -> io::Result<()> {
        let (socket, _) = listener.accept()?;
        let token = self.connections.len() as u64;
        let pipe = Pipe::new(socket, &self.loop_fd, token)?;
        self.connections.push(Some(Connection { pipe, echoes }));
        Ok(())
    }

    /// What a ready connection asks for. A connection that fails is closed, the others go on.
    fn turn(&mut self, token: u64, flags: EventFlags) {
        let Some(mut connection) = self.connections[token as usize].take() else {
            return;
        };
        if flags.contains(EventFlags::OUT) {
            self.dirty.push(token);
        }
        let goes_on = match connection.pipe.fill() {
            Ok(true) if connection.echoes => self.echo(token, &mut connection.pipe),
            Ok(true) => self.requests(token, &mut connection.pipe),
            Ok(false) => Ok(false),
            Err(error) => Err(error),
        };
        match goes_on {
            Ok(true) => self.connections[token as usize] = Some(connection),
            Ok(false) => {}
            Err(error) => eprintln!("bare: connection {token}: {error}"),
        }
    }

    fn echo(&mut self, token: u64, pipe: &mut Pipe) -> io::Result<bool> {
        let received = pipe.received().to_vec();
        pipe.consume(received.len());
        pipe.send(&[IoSlice::new(&received)])?;
        self.dirty.push(token);
        Ok(true)
    }

    fn requests(&mut self, token: u64, pipe: &mut Pipe) -> io::Result<bool> {
        let mut answers = std::mem::take(pipe.outbox());
        let mut consumed = 0;
        while let Some(frame) = frame::parse(&pipe.received()[consumed..])? {
            consumed += frame.bytes.len();
            if frame.kind == Kind::Read && answers.is_empty() {
                let (head, positions) = self.preloaded.head_of(&frame)?;
                let parts = self.preloaded.parts_of(&head, positions);
                pipe.send(&parts)?;
                answers = std::mem::take(pipe.outbox());
            } else {
                self.request(token, &frame, &mut answers)?;
            }
        }
        pipe.consume(consumed);
        if !answers.is_empty() {
            self.dirty.push(token);
        }
        *pipe.outbox() = answers;
        Ok(true)
    }

    fn request(&mut self, token: u64, frame: &Frame<'_>, answers: &mut Vec<u8>) -> io::Result<()> {
        let request_id = frame.request_id;
        match frame.kind {
            Kind::Token => {
                let (first, count) = (self.next_position, u64_at(frame.body, 0));
                self.next_position += count;
                frame::push_words(answers, Kind::Token, request_id, &[first, count]);
            }
            Kind::Append => {
                if !frame::verifies(frame.body, frame.data) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "an entry's checksum does not match",
                    ));
                }
                let (first, count) = (self.next_position, (frame.body.len() / TABLE_ENTRY_BYTES) as u64);
                self.next_position += count;
                self.journal.push(frame.bytes, Waiting { connection: token, request_id, first, count });
            }
            Kind::Read => {
                let (head, positions) = self.preloaded.head_of(frame)?;
                self.preloaded
                    .parts_of(&head, positions)
                    .iter()
                    .for_each(|part| answers.extend_from_slice(part));
            }
            Kind::Preload => {
                let (count, size) = (u64_at(frame.body, 0), u64_at(frame.body, 8));
                self.preloaded = Preloaded::new(count as usize, size as usize);
                frame::push_words(answers, Kind::Preload, request_id, &[count, size]);
            }
            Kind::Status => {
                let flush_nanos = (self.flushes.quantile_us(0.5) * 1000.0) as u64;
                self.flushes = Histogram::default();
                frame::push_words(answers, Kind::Status, request_id, &[process_cpu_nanos(), flush_nanos]);
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        let (connections, dirty, flushes) = (&mut self.connections, &mut self.dirty, &mut self.flushes);
        self.journal.acknowledge(|group, nanos| {
            flushes.add(nanos, 1);
            for waiting in &group.waiting {
                let Some(connection) = &mut connections[waiting.connection as usize] else {
                    continue;
                };
                let outbox = connection.pipe.outbox();
                frame::push_words(outbox, Kind::Append, waiting.request_id, &[waiting.first, waiting.count]);
                dirty.push(waiting.connection);
            }
        })
    }

    fn flush_dirty(&mut self) {
        for token in self.dirty.drain(..) {
            let slot = &mut self.connections[token as usize];
            let failed =
                slot.as_mut().is_some_and(|connection| connection.pipe.flush(&self.loop_fd, token).is_err());
            if failed {
                *slot = None;
            }
        }
    }
}

impl Preloaded {
    fn new(count: usize, size: usize) -> Self {
        let mut data = vec![0; count * size];
        let mut tables = vec![0; count * TABLE_ENTRY_BYTES];
        let entries = data.chunks_exact_mut(size).zip(tables.chunks_exact_mut(TABLE_ENTRY_BYTES));
        for (position, (entry, table)) in entries.enumerate() {
            let mut word = position as u64;
            for chunk in entry.chunks_exact_mut(8) {
                word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            frame::put_table_entry(table, entry);
        }
        Self { size, tables, data }
    }

    /// The answer's header and body, and the positions that were asked for.
    fn head_of<'a>(&self, frame: &Frame<'a>) -> io::Result<(Vec<u8>, &'a [u8])> {
        let count = frame.body.len() / 8;
        let mut head = vec![0; HEADER_BYTES];
        for position in frame.body.chunks_exact(8) {
            let at = u64_at(position, 0) as usize * TABLE_ENTRY_BYTES;
            let Some(table) = self.tables.get(at..at + TABLE_ENTRY_BYTES) else {
                return Err(io::Error::new(io::ErrorKind::NotFound, "a position that was not preloaded"));
            };
            head.extend_from_slice(table);
        }
        frame::seal(&mut head, Kind::Read, frame.request_id, count * self.size);
        Ok((head, frame.body))
    }

    fn parts_of<'a>(&'a self, head: &'a [u8], positions: &[u8]) -> Vec<IoSlice<'a>> {
        let mut parts = vec![IoSlice::new(head)];
        for position in positions.chunks_exact(8) {
            let at = u64_at(position, 0) as usize * self.size;
            parts.push(IoSlice::new(&self.data[at..at + self.size]));
        }
        parts
    }
}
