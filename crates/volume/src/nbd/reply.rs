//! Replies of the transmission: simple ones, and those made of chunks, which tell holes from data.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::net::Writer;

use super::wire::{CHUNK_MAGIC, Errno, HOLE_AND_ZERO, SIMPLE_REPLY_MAGIC, ZEROS, chunk};

/// Data of a reply up to this length is copied behind its head, so that a system call sends many; longer data is sent
/// from where it lies.
const COPY_MAX_BYTES: usize = 16 << 10;
/// Words of an error that are sent at the most.
const WORDS_MAX_BYTES: usize = 512;

/// Where replies are put: a connection, or a buffer in tests.
pub(super) trait Sink {
    /// Appends what `encode` writes.
    fn push(&mut self, encode: impl FnOnce(&mut BytesMut));
    /// Appends `bytes`, without a copy where that pays.
    fn push_data(&mut self, bytes: &Bytes);
}

impl Sink for &Writer {
    fn push(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        Writer::push(self, encode);
    }

    fn push_data(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPY_MAX_BYTES {
            Writer::push(self, |out| out.put_slice(bytes));
        } else {
            self.push_shared(bytes.clone());
        }
    }
}

impl Sink for BytesMut {
    fn push(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        encode(self);
    }

    fn push_data(&mut self, bytes: &Bytes) {
        self.put_slice(bytes);
    }
}

/// A part of what was read, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// These bytes.
    Data(Bytes),
    /// This many zeros, for which nothing is stored.
    Hole(u64),
}

impl Part {
    /// How many bytes of the export it stands for.
    pub fn len(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Hole(len) => *len,
        }
    }
}

/// How this connection's replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replies {
    /// The client asked for structured ones.
    pub structured: bool,
}

impl Replies {
    /// Says that a request was done, or why not; not for reads and queries of what is stored.
    pub fn ended(self, out: &mut impl Sink, cookie: u64, error: Option<Errno>) {
        out.push(|out| put_simple(out, cookie, error.map_or(0, |error| error as u32)));
    }

    /// Says why a read, or a query of what is stored, was not done.
    pub fn read_failed(self, out: &mut impl Sink, cookie: u64, error: Errno, words: &str) {
        if !self.structured {
            return self.ended(out, cookie, Some(error));
        }
        // Cut between two letters.
        let len = words.floor_char_boundary(WORDS_MAX_BYTES);
        out.push(|out| {
            put_chunk(out, cookie, chunk::DONE, chunk::ERROR, 6 + len);
            out.put_u32(error as u32);
            out.put_u16(len as u16);
            out.put_slice(&words.as_bytes()[..len]);
        });
    }

    /// Sends what was read at `offset`: at least one part, none of them empty; as one chunk if it is to be `whole`.
    pub fn read(self, out: &mut impl Sink, cookie: u64, offset: u64, parts: &[Part], whole: bool) {
        assert!(!parts.is_empty(), "a read of nothing");
        if !self.structured || whole {
            let len: u64 = parts.iter().map(Part::len).sum();
            out.push(|out| match self.structured {
                true => put_data_chunk(out, cookie, chunk::DONE, len as usize, offset),
                false => put_simple(out, cookie, 0),
            });
            return parts.iter().for_each(|part| push_bytes(out, part));
        }
        let mut at = offset;
        for (nth, part) in parts.iter().enumerate() {
            let done = if nth + 1 == parts.len() { chunk::DONE } else { 0 };
            match part {
                Part::Hole(len) => out.push(|out| {
                    put_chunk(out, cookie, done, chunk::HOLE, 12);
                    out.put_u64(at);
                    out.put_u32(*len as u32);
                }),
                Part::Data(bytes) => {
                    out.push(|out| put_data_chunk(out, cookie, done, bytes.len(), at));
                    out.push_data(bytes);
                }
            }
            at += part.len();
        }
    }

    /// Sends which bytes are stored, from the query's first one on: lengths, and whether each is data.
    pub fn status(self, out: &mut impl Sink, cookie: u64, context: u32, extents: &[(u32, bool)]) {
        out.push(|out| {
            put_chunk(out, cookie, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
            out.put_u32(context);
            for &(len, is_data) in extents {
                out.put_u32(len);
                out.put_u32(if is_data { 0 } else { HOLE_AND_ZERO });
            }
        });
    }
}

fn push_bytes(out: &mut impl Sink, part: &Part) {
    match part {
        Part::Data(bytes) => out.push_data(bytes),
        Part::Hole(len) => {
            let mut left = *len as usize;
            while left > 0 {
                let zeros = &ZEROS[..left.min(ZEROS.len())];
                out.push_data(&Bytes::from_static(zeros));
                left -= zeros.len();
            }
        }
    }
}

/// The head of a chunk of `len` bytes of data at `offset`.
fn put_data_chunk(out: &mut BytesMut, cookie: u64, flags: u16, len: usize, offset: u64) {
    put_chunk(out, cookie, flags, chunk::DATA, 8 + len);
    out.put_u64(offset);
}

fn put_simple(out: &mut BytesMut, cookie: u64, error: u32) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
}

fn put_chunk(out: &mut BytesMut, cookie: u64, flags: u16, kind: u16, len: usize) {
    out.put_u32(CHUNK_MAGIC);
    out.put_u16(flags);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}
