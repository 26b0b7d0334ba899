//! What a transaction has done to one block.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::fragments::{Fragments, Grain};
use crate::limits::VOLUME_BLOCK_BYTES;

/// Which fragments were read, or written. A whole access that a mark follows counts as the mark says; one that none follows counts whole.
#[derive(Clone, Copy, Debug, Default)]
struct Access {
    /// The last whole access, which a mark may follow.
    is_open: bool,
    is_whole: bool,
    marked: Fragments,
}

impl Access {
    fn whole(&mut self) {
        self.is_whole |= self.is_open;
        self.is_open = true;
    }

    fn mark(&mut self, fragments: Fragments) {
        self.is_open = false;
        self.marked = self.marked.or(fragments);
    }

    /// No mark can follow the last whole access any more.
    fn close(&mut self) {
        self.is_whole |= self.is_open;
        self.is_open = false;
    }

    /// Parts that are known without a mark.
    fn part(&mut self, fragments: Fragments) {
        self.close();
        self.marked = self.marked.or(fragments);
    }

    fn fragments(&self) -> Fragments {
        if self.is_open || self.is_whole { Fragments::ALL } else { self.marked }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    Read,
    Write,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    read: Access,
    written: Access,
    /// What the transaction makes of the block.
    data: Option<Bytes>,
    last: Last,
}

impl Touched {
    /// What the transaction itself has written; the rest of it is as in its snapshot.
    pub(crate) fn own(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// Whether the transaction writes the block.
    pub(crate) fn is_written(&self) -> bool {
        self.data.is_some()
    }

    /// The block was read whole.
    pub(crate) fn note_read(&mut self) {
        if self.writes() == Fragments::ALL {
            // What it has written whole tells it nothing of others.
            self.read.close();
        } else {
            self.read.whole();
        }
        self.last = Last::Read;
    }

    /// Some bytes of the block were read.
    pub(crate) fn note_read_part(&mut self, grain: Grain, bytes: Range<usize>) {
        self.read.part(grain.touched(bytes));
        self.last = Last::Read;
    }

    /// The block was written whole. The data is kept as it is, with whatever it is a part of.
    pub(crate) fn write(&mut self, data: Bytes) {
        assert_eq!(data.len(), VOLUME_BLOCK_BYTES, "a whole block");
        self.data = Some(data);
        self.written.whole();
        self.last = Last::Write;
    }

    /// Some bytes were written; `base` is what the block is in the snapshot, if it was not written before.
    pub(crate) fn write_part(&mut self, grain: Grain, at: usize, bytes: &[u8], base: Option<&Bytes>) {
        let range = at..at + bytes.len();
        let before = self.data.take().or(base.cloned()).expect("its base is read first");
        // Others may hold it: the base is what the volume has, and what was read of it is the reader's.
        let mut data = before.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        data[range.clone()].copy_from_slice(bytes);
        self.data = Some(data.freeze());
        self.written.part(grain.touched(range.clone()));
        self.read_in_part(grain, range);
        self.last = Last::Write;
    }

    /// Of the last access, only these bytes count.
    pub(crate) fn mark(&mut self, grain: Grain, bytes: Range<usize>) {
        match self.last {
            Last::Read => self.read.mark(grain.touched(bytes)),
            Last::Write => {
                self.written.mark(grain.touched(bytes.clone()));
                self.read_in_part(grain, bytes);
            }
        }
    }

    /// A fragment that is written in part is written back whole: what the rest of it holds must be as it was read.
    fn read_in_part(&mut self, grain: Grain, bytes: Range<usize>) {
        let in_part = grain.in_part(bytes);
        if !in_part.is_empty() {
            self.read.marked = self.read.marked.or(in_part);
        }
    }

    /// Fragments that the transaction depends on.
    pub(crate) fn reads(&self) -> Fragments {
        self.read.fragments()
    }

    /// Fragments that it writes.
    pub(crate) fn writes(&self) -> Fragments {
        if self.is_written() { self.written.fragments() } else { Fragments::default() }
    }

    /// What the block is after the commit; `latest` is what others have made of it since the snapshot.
    pub(crate) fn merged(&self, grain: Grain, latest: Option<&Option<Bytes>>) -> Bytes {
        let own = self.data.as_ref().expect("only what is written is merged");
        let Some(latest) = latest.filter(|_| self.writes() != Fragments::ALL) else {
            return own.clone();
        };
        let mut merged = BytesMut::zeroed(VOLUME_BLOCK_BYTES);
        if let Some(latest) = latest {
            merged.copy_from_slice(latest);
        }
        for bytes in grain.bytes_of(self.writes()) {
            merged[bytes.clone()].copy_from_slice(&own[bytes]);
        }
        merged.freeze()
    }
}
