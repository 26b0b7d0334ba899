//! Where a reply goes.

use bytes::Bytes;
use ithaca_env::net::Writer;
use ithaca_env::sync::{Count, Counted, Semaphore};

use super::cold_reads::{ColdRead, ColdReads};
use crate::pos::{Epoch, RequestId};
use crate::unit::Found;
use crate::wire::{self, FLAG_PUSH, Head, Message, Refusal};

/// Pieces of data up to this size are copied behind their head; larger ones are sent from where they lie.
const GATHERED_MAX_BYTES: usize = 2048;

/// One request's way back. It is under way until this is dropped.
pub(super) struct ReplyRoute {
    writer: Writer,
    request: RequestId,
    epoch: Epoch,
    cold_turn: Semaphore,
    _under_way: Counted,
}

impl ReplyRoute {
    pub(super) fn new(writer: &Writer, head: Head, under_way: &Count, cold_turn: &Semaphore) -> Self {
        Self {
            writer: writer.clone(),
            request: head.request,
            epoch: head.epoch,
            cold_turn: cold_turn.clone(),
            _under_way: under_way.one_more(),
        }
    }

    /// The epoch of the request.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the request holds while it needs the drive: nothing yet.
    pub(super) fn begin_cold<'a>(&'a self, reads: &'a ColdReads) -> ColdRead<'a> {
        reads.begin(&self.writer, &self.cold_turn)
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

    /// Sends the reply with data after it.
    pub(super) fn send_with<M: Message>(&self, reply: &M, data: Bytes) {
        let head = Head::new(self.request, self.epoch);
        self.writer.push(|out| wire::encode_head(out, head, reply, data.len()));
        send_piece(&self.writer, data);
    }

    /// Sends a refusal.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.send(&refusal);
    }

    /// Sends what was found.
    pub(super) fn send_found(&self, found: &mut Found) {
        send_found(&self.writer, Head::new(self.request, self.epoch), found);
    }

    /// Sends what was found of a stream.
    pub(super) fn send_stream_found(&self, found: &mut Found, heads_only: bool) {
        let head = Head::new(self.request, self.epoch);
        self.writer.push(|out| found.encode_stream_head(out, head, heads_only));
        send_data(&self.writer, found);
    }
}

/// Sends runs that nobody asked for one by one; returns the bytes of their frame that count against the credit.
pub(super) fn push_found(writer: &Writer, request: RequestId, epoch: Epoch, found: &mut Found) -> u64 {
    send_found(writer, Head { request, epoch, flags: FLAG_PUSH }, found)
}

fn send_found(writer: &Writer, head: Head, found: &mut Found) -> u64 {
    let data_len = found.data_bytes();
    let mut body_len = 0;
    writer.push(|out| {
        let before = out.len();
        found.encode_head(out, head);
        body_len = out.len() - before - wire::HEADER_BYTES;
    });
    send_data(writer, found);
    (body_len + data_len) as u64
}

fn send_data(writer: &Writer, found: &mut Found) {
    found.take_data().for_each(|piece| send_piece(writer, piece));
}

fn send_piece(writer: &Writer, piece: Bytes) {
    if piece.len() <= GATHERED_MAX_BYTES {
        writer.push(|out| out.extend_from_slice(&piece));
    } else {
        writer.push_shared(piece);
    }
}
