//! Where a reply goes.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::net::Writer;
use ithaca_env::sync::Notify;

use super::unit_shell::FoundRun;
use crate::pos::{Epoch, RequestId};
use crate::wire::{self, FLAG_PUSH, Head, Message, Refusal, Runs};

/// Pieces of data up to this size are copied behind their head; larger ones are sent from where they lie.
const GATHERED_MAX_BYTES: usize = 2048;

/// Requests of one connection that have no reply yet.
#[derive(Default)]
pub(super) struct UnderWay {
    count: Cell<usize>,
    ended: Notify,
}

impl UnderWay {
    /// Waits until fewer than `limit` are under way.
    pub(super) async fn below(&self, limit: usize) {
        self.ended.until(|| (self.count.get() < limit).then_some(())).await;
    }
}

/// One request's way back. It is under way until this is dropped.
pub(super) struct ReplyRoute {
    writer: Writer,
    request: RequestId,
    epoch: Epoch,
    under_way: Rc<UnderWay>,
}

impl ReplyRoute {
    pub(super) fn new(writer: &Writer, head: Head, under_way: &Rc<UnderWay>) -> Self {
        under_way.count.set(under_way.count.get() + 1);
        Self {
            writer: writer.clone(),
            request: head.request,
            epoch: head.epoch,
            under_way: Rc::clone(under_way),
        }
    }

    /// The epoch of the request.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Sends the reply.
    pub(super) fn send<M: Message>(&self, reply: &M) {
        self.send_in(self.epoch, reply);
    }

    /// Sends the reply in another epoch than that of the request: the one that the node serves in.
    pub(super) fn send_in<M: Message>(&self, epoch: Epoch, reply: &M) {
        let head = Head::new(self.request, epoch);
        self.writer.push(|out| wire::encode_message(out, head, reply));
    }

    /// Sends a refusal.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.send(&refusal);
    }

    /// Sends runs and their data.
    pub(super) fn send_runs(&self, found: Vec<FoundRun>) {
        send_runs(&self.writer, Head::new(self.request, self.epoch), found);
    }
}

impl Drop for ReplyRoute {
    fn drop(&mut self) {
        self.under_way.count.set(self.under_way.count.get() - 1);
        self.under_way.ended.ring();
    }
}

/// Sends runs that nobody asked for one by one; returns the bytes of their frame that count against the credit.
pub(super) fn push_runs(writer: &Writer, request: RequestId, epoch: Epoch, found: Vec<FoundRun>) -> u64 {
    send_runs(writer, Head { request, epoch, flags: FLAG_PUSH }, found)
}

fn send_runs(writer: &Writer, head: Head, found: Vec<FoundRun>) -> u64 {
    let (runs, data): (Vec<_>, Vec<Bytes>) = found.into_iter().unzip();
    let runs = Runs { runs };
    let data_len: usize = data.iter().map(Bytes::len).sum();
    let mut body_len = 0;
    writer.push(|out| {
        let before = out.len();
        wire::encode_head(out, head, &runs, data_len);
        body_len = out.len() - before - wire::HEADER_BYTES;
    });
    for piece in data {
        if piece.len() <= GATHERED_MAX_BYTES {
            writer.push(|out| out.extend_from_slice(&piece));
        } else {
            writer.push_shared(piece);
        }
    }
    (body_len + data_len) as u64
}
