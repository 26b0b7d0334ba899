//! What a connection has yet to send: small frames gathered in one buffer, large pieces shared without a copy.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::sync::Notify;

/// Small frames are gathered up to about this size before a new buffer is begun.
const GATHER_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Outbox {
    /// Pieces in order; `open`, where frames are encoded, follows the last.
    pieces: RefCell<VecDeque<Bytes>>,
    open: RefCell<BytesMut>,
    queued_bytes: Cell<usize>,
    /// Messages that were pushed since this was asked for.
    messages: Cell<u64>,
    closed: Cell<bool>,
    drained: Notify,
}

impl Outbox {
    pub(crate) fn push(&self, encode: impl FnOnce(&mut BytesMut)) {
        if self.closed.get() {
            return;
        }
        let mut open = self.open.borrow_mut();
        let before = open.len();
        encode(&mut open);
        assert!(open.len() >= before, "an encoder only appends");
        self.queued_bytes.set(self.queued_bytes.get() + open.len() - before);
        self.messages.set(self.messages.get() + 1);
        if open.len() >= GATHER_BYTES {
            self.pieces.borrow_mut().push_back(open.split().freeze());
        }
    }

    pub(crate) fn push_shared(&self, bytes: Bytes) {
        if self.closed.get() || bytes.is_empty() {
            return;
        }
        self.queued_bytes.set(self.queued_bytes.get() + bytes.len());
        self.seal_open();
        self.pieces.borrow_mut().push_back(bytes);
    }

    fn seal_open(&self) {
        let mut open = self.open.borrow_mut();
        if !open.is_empty() {
            self.pieces.borrow_mut().push_back(open.split().freeze());
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// Messages encoded since the last call; what is [shared](Self::push_shared) belongs to the one before it.
    pub(crate) fn take_messages(&self) -> u64 {
        self.messages.take()
    }

    /// Gives the pieces that are queued to `send`, which says how many bytes it took. Returns its answer.
    pub(crate) fn flush<E>(
        &self,
        send: impl FnOnce(&VecDeque<Bytes>) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.seal_open();
        let taken = send(&self.pieces.borrow())?;
        self.advance(taken);
        Ok(taken)
    }

    fn advance(&self, mut taken: usize) {
        self.queued_bytes.set(self.queued_bytes.get() - taken);
        let mut pieces = self.pieces.borrow_mut();
        while taken > 0 {
            let Some(front) = pieces.front_mut() else { unreachable!("more was taken than queued") };
            if front.len() > taken {
                front.advance(taken);
                break;
            }
            taken -= front.len();
            pieces.pop_front();
        }
        drop(pieces);
        self.drained.ring();
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.pieces.borrow_mut().clear();
        self.open.borrow_mut().clear();
        self.queued_bytes.set(0);
        self.drained.ring();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) async fn below(&self, bytes: usize) -> Result<(), ()> {
        self.drained
            .until(|| {
                if self.closed.get() {
                    return Some(Err(()));
                }
                (self.queued_bytes.get() < bytes).then_some(Ok(()))
            })
            .await
    }
}
