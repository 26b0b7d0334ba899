//! The requests of a connection: decoded, checked against the export, and counted. Pure.
//!
//! What a request can get wrong is answered here, with the error that the protocol's text names, and the connection goes on.
//! What is no request ends it: where the next one begins is then not known.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use super::handshake::{ExportInfo, ProtocolError, Terms};
use super::limits::{
    EXTENT_BYTES, EXTENTS_MAX, PAYLOAD_MAX_BYTES, PIECE_BYTES, REQUESTS_MAX, REQUESTS_MAX_BYTES,
};
use super::reply::{Replies, Sink};
use super::wire::{Errno, REQUEST_MAGIC, command, flag};

/// Bytes before a request's payload.
const REQUEST_HEAD_BYTES: usize = 28;

/// What is to be done. Ranges are bytes of the export, not empty, and lie within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Send these bytes; in one piece if it is not to be fragmented.
    Read { range: Range<u64>, whole: bool },
    /// Store `data` at `offset`, durably if it is to be stable.
    Write { offset: u64, data: Bytes, stable: bool },
    /// Make everything durable that was answered.
    Flush,
    /// These bytes are not needed.
    Trim { range: Range<u64>, stable: bool },
    /// These bytes are zeros; with `stored` room is kept for them.
    Zero { range: Range<u64>, stable: bool, stored: bool },
    /// Have these bytes at hand.
    Cache { range: Range<u64> },
    /// Say which of these bytes are stored; of the first extent only, if one is enough.
    Status { range: Range<u64>, one: bool },
}

impl Command {
    /// Whether it is answered as reads are.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Status { .. })
    }
}

/// A request: what is to be done, and the client's name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub cookie: u64,
    pub command: Command,
    /// What [`Transmission::done`] is to be told when it was answered.
    pub cost_bytes: u64,
}

/// How a transmission goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// With more bytes of the client: so many are needed at the least.
    Read(usize),
    /// When there is room for so many bytes, which [`Transmission::give_room`] says: more than none.
    Room(usize),
    /// With this request, beside those that are under way.
    Do(Request),
    /// When one of those that are under way is done.
    Full,
    /// Not at all: the client disconnects. What is under way is to be done first.
    End,
}

/// The transmission of one connection.
pub(super) struct Transmission {
    size_bytes: u64,
    read_only: bool,
    terms: Terms,
    under_way: usize,
    under_way_bytes: u64,
    /// Bytes of a payload that was refused already.
    skip: u64,
    /// The next request has room.
    has_room: bool,
    has_refused_write: bool,
    stopping: bool,
}

/// The head of a request.
struct Head {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Transmission {
    pub fn new(info: &ExportInfo, terms: Terms) -> Self {
        let (size_bytes, read_only) = (info.size_bytes, info.read_only);
        let (under_way, under_way_bytes, skip) = (0, 0, 0);
        let (has_room, has_refused_write, stopping) = (false, false, false);
        Self {
            size_bytes,
            read_only,
            terms,
            under_way,
            under_way_bytes,
            skip,
            has_room,
            has_refused_write,
            stopping,
        }
    }

    /// How replies look on this connection.
    pub fn replies(&self) -> Replies {
        Replies { structured: self.terms.structured }
    }

    /// Requests that were given out and are not [done](Self::done).
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether a write was refused here, which the export was not told of.
    pub fn has_refused_write(&self) -> bool {
        self.has_refused_write
    }

    /// A request was answered.
    pub fn done(&mut self, cost_bytes: u64) {
        assert!(self.under_way > 0 && self.under_way_bytes >= cost_bytes, "it was under way");
        self.under_way -= 1;
        self.under_way_bytes -= cost_bytes;
    }

    /// There is room for the next request, which has asked for it.
    pub fn give_room(&mut self) {
        self.has_room = true;
    }

    /// From now on every request is refused: the server stops.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Takes the next request of `received`; what cannot be done is answered to `out`. `take_room` says whether there is room for so many bytes,
    /// which the request then has; it is asked at most once. Errors: the connection ends.
    pub fn next(
        &mut self,
        received: &mut BytesMut,
        out: &mut impl Sink,
        take_room: impl FnOnce(usize) -> bool,
    ) -> Result<Next, ProtocolError> {
        loop {
            if self.skip > 0 {
                let len = received.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                received.advance(len);
                self.skip -= len as u64;
                if self.skip > 0 {
                    return Ok(Next::Read(1));
                }
            }
            if received.len() < REQUEST_HEAD_BYTES {
                return Ok(Next::Read(REQUEST_HEAD_BYTES - received.len()));
            }
            let head = Head::decode(&received[..REQUEST_HEAD_BYTES])?;
            if head.kind == command::DISC {
                received.clear();
                return Ok(Next::End);
            }
            if let Err((error, words)) = self.check(&head) {
                received.advance(REQUEST_HEAD_BYTES);
                self.has_refused_write |= matches!(head.kind, command::WRITE | command::WRITE_ZEROES);
                self.skip = if head.kind == command::WRITE { u64::from(head.len) } else { 0 };
                self.refuse(&head, error, words, out);
                continue;
            }
            let payload = if head.kind == command::WRITE { head.len as usize } else { 0 };
            let needed = REQUEST_HEAD_BYTES + payload;
            let cost = head.cost_bytes();
            if self.under_way >= REQUESTS_MAX || self.under_way_bytes + cost as u64 > REQUESTS_MAX_BYTES {
                return Ok(Next::Full);
            }
            if cost > 0 && !self.has_room {
                if !take_room(cost) {
                    return Ok(Next::Room(cost));
                }
                self.has_room = true;
            }
            if received.len() < needed {
                return Ok(Next::Read(needed - received.len()));
            }
            received.advance(REQUEST_HEAD_BYTES);
            let data = received.split_to(payload).freeze();
            self.has_room = false;
            return Ok(Next::Do(self.begin(&head, data)));
        }
    }

    fn begin(&mut self, head: &Head, data: Bytes) -> Request {
        let range = head.offset..head.offset + u64::from(head.len);
        let stable = head.flags & flag::FUA != 0;
        let command = match head.kind {
            command::READ => Command::Read { range, whole: head.flags & flag::DF != 0 },
            command::WRITE => Command::Write { offset: head.offset, data, stable },
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim { range, stable },
            command::WRITE_ZEROES => Command::Zero { range, stable, stored: head.flags & flag::NO_HOLE != 0 },
            command::CACHE => Command::Cache { range },
            command::BLOCK_STATUS => Command::Status { range, one: head.flags & flag::REQ_ONE != 0 },
            _ => unreachable!("other commands are refused"),
        };
        let cost_bytes = head.cost_bytes() as u64;
        self.under_way += 1;
        self.under_way_bytes += cost_bytes;
        Request { cookie: head.cookie, command, cost_bytes }
    }

    /// Whether a request can be done at all.
    fn check(&self, head: &Head) -> Result<(), (Errno, &'static str)> {
        if self.stopping {
            return Err((Errno::Shutdown, "the server stops"));
        }
        let Some(allowed) = self.allowed_flags(head.kind) else {
            return Err((Errno::Invalid, "this command is not known here"));
        };
        // Old clients are known to set FUA on anything.
        if head.flags & !(allowed | flag::FUA) != 0 {
            return Err((Errno::Invalid, "this command does not have such a flag"));
        }
        let writes = matches!(head.kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && self.read_only {
            return Err((Errno::NotPermitted, "the export is read-only"));
        }
        if head.kind == command::FLUSH {
            let is_bare = head.offset == 0 && head.len == 0;
            return is_bare.then_some(()).ok_or((Errno::Invalid, "a flush has neither offset nor length"));
        }
        if head.len == 0 {
            return Err((Errno::Invalid, "a request of no bytes"));
        }
        let carries = matches!(head.kind, command::READ | command::WRITE);
        if carries && head.len > PAYLOAD_MAX_BYTES {
            return Err((Errno::Invalid, "more bytes than one request may carry"));
        }
        match head.offset.checked_add(u64::from(head.len)) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ if matches!(head.kind, command::WRITE | command::WRITE_ZEROES) => {
                Err((Errno::NoSpace, "past the end of the export"))
            }
            _ => Err((Errno::Invalid, "past the end of the export")),
        }
    }

    /// The flags of a command beside FUA; `None` if it is not known.
    fn allowed_flags(&self, kind: u16) -> Option<u16> {
        match kind {
            command::READ if self.terms.structured => Some(flag::DF),
            command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => Some(0),
            command::WRITE_ZEROES => Some(flag::NO_HOLE),
            command::BLOCK_STATUS if self.terms.status => Some(flag::REQ_ONE),
            _ => None,
        }
    }

    fn refuse(&self, head: &Head, error: Errno, words: &str, out: &mut impl Sink) {
        match head.kind {
            command::READ | command::BLOCK_STATUS => {
                self.replies().read_failed(out, head.cookie, error, words);
            }
            _ => self.replies().ended(out, head.cookie, Some(error)),
        }
    }
}

impl Head {
    fn decode(mut bytes: &[u8]) -> Result<Self, ProtocolError> {
        let magic = bytes.get_u32();
        if magic != REQUEST_MAGIC {
            let (found, expected) = (u64::from(magic), u64::from(REQUEST_MAGIC));
            return Err(ProtocolError::Magic { what: "a request", found, expected });
        }
        let (flags, kind, cookie) = (bytes.get_u16(), bytes.get_u16(), bytes.get_u64());
        Ok(Self { flags, kind, cookie, offset: bytes.get_u64(), len: bytes.get_u32() })
    }

    /// Bytes of memory that it holds while it is under way.
    fn cost_bytes(&self) -> usize {
        let len = self.len as usize;
        match self.kind {
            command::READ | command::WRITE => len,
            // It is read piece by piece.
            command::CACHE => len.min(PIECE_BYTES),
            command::BLOCK_STATUS => EXTENTS_MAX * EXTENT_BYTES,
            _ => 0,
        }
    }
}
