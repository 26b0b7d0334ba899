//! A non-blocking socket with what was received and not yet consumed, and what the system would not yet take.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

/// Room for at least this much is kept for each read.
const READ_BYTES: usize = 256 << 10;

/// One connection on an epoll loop, level-triggered.
pub struct Pipe {
    socket: TcpStream,
    inbox: Vec<u8>,
    start: usize,
    filled: usize,
    outbox: Vec<u8>,
    sent: usize,
    awaits_room: bool,
}

impl Pipe {
    /// Takes `socket` and registers it under `token`.
    pub fn new(socket: TcpStream, loop_fd: &OwnedFd, token: u64) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        epoll::add(loop_fd, &socket, EventData::new_u64(token), EventFlags::IN)?;
        let inbox = vec![0; 2 * READ_BYTES];
        Ok(Self { socket, inbox, start: 0, filled: 0, outbox: Vec::new(), sent: 0, awaits_room: false })
    }

    /// One read. `false` when the peer has ended.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.start == self.filled {
            (self.start, self.filled) = (0, 0);
        } else if self.inbox.len() - self.filled < READ_BYTES {
            self.inbox.copy_within(self.start..self.filled, 0);
            (self.start, self.filled) = (0, self.filled - self.start);
            if self.inbox.len() - self.filled < READ_BYTES {
                self.inbox.resize(2 * self.inbox.len(), 0);
            }
        }
        match self.socket.read(&mut self.inbox[self.filled..]) {
            Ok(0) => Ok(false),
            Ok(read) => {
                self.filled += read;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// What was received and not consumed.
    pub fn received(&self) -> &[u8] {
        &self.inbox[self.start..self.filled]
    }

    /// Consumes `len` received bytes.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.filled, "consumed what was not received");
    }

    /// Bytes to send: append to it, then [`flush`](Pipe::flush).
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Sends `parts` in one system call without copying them, unless the system does not take all.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut taken = 0;
        if self.outbox.is_empty() {
            taken = match self.socket.write_vectored(parts) {
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
        }
        for part in parts {
            let skipped = taken.min(part.len());
            self.outbox.extend_from_slice(&part[skipped..]);
            taken -= skipped;
        }
        Ok(())
    }

    /// Sends what the system takes of the outbox, and watches for room if something is left.
    pub fn flush(&mut self, loop_fd: &OwnedFd, token: u64) -> io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.socket.write(&self.outbox[self.sent..]) {
                Ok(taken) => self.sent += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let is_done = self.sent == self.outbox.len();
        if is_done {
            self.outbox.clear();
            self.sent = 0;
        }
        if self.awaits_room == is_done {
            self.awaits_room = !is_done;
            let flags = if is_done { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
            epoll::modify(loop_fd, &self.socket, EventData::new_u64(token), flags)?;
        }
        Ok(())
    }
}
