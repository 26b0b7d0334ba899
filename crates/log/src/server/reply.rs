//! Where a reply goes.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::net::Writer;
use ithaca_env::sync::Counted;

use super::answers::Answers;
use super::cold_reads::{ColdRead, ColdReads};
use crate::pos::{Epoch, RequestId};
use crate::unit::Found;
use crate::wire::{self, FLAG_PUSH, Head, Message, Refusal};

/// Pieces of data up to this size are copied behind their head; larger ones are sent from where they lie.
const GATHERED_MAX_BYTES: usize = 2048;

/// One request's way back. It is under way until this is dropped.
pub(super) struct ReplyRoute {
    answers: Rc<Answers>,
    request: RequestId,
    epoch: Epoch,
    _under_way: Counted,
}

impl ReplyRoute {
    pub(super) fn new(answers: &Rc<Answers>, head: Head) -> Self {
        let under_way = answers.under_way.one_more();
        Self { answers: Rc::clone(answers), request: head.request, epoch: head.epoch, _under_way: under_way }
    }

    /// The answers that this is one of.
    pub(super) fn answers(&self) -> &Rc<Answers> {
        &self.answers
    }

    /// The epoch of the request.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the request holds while it needs the drive: nothing yet.
    pub(super) fn begin_cold<'a>(&'a self, reads: &'a ColdReads) -> ColdRead<'a> {
        reads.begin(&self.answers)
    }

    /// Sends the reply.
    pub(super) fn send<M: Message>(&self, reply: &M) {
        self.send_in(self.epoch, reply);
    }

    /// Sends the reply in another epoch than that of the request: the one that the node serves in.
    pub(super) fn send_in<M: Message>(&self, epoch: Epoch, reply: &M) {
        let head = Head::new(self.request, epoch);
        self.answers.writer.push(|out| wire::encode_message(out, head, reply));
    }

    /// Sends the reply with data after it.
    pub(super) fn send_with<M: Message>(&self, reply: &M, data: Bytes) {
        let head = Head::new(self.request, self.epoch);
        self.answers.writer.push(|out| wire::encode_head(out, head, reply, data.len()));
        send_piece(&self.answers.writer, data);
    }

    /// Sends a refusal.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.send(&refusal);
    }

    /// Sends what was found.
    pub(super) fn send_found(&self, found: &mut Found) {
        send_found(&self.answers.writer, Head::new(self.request, self.epoch), found);
    }

    /// Sends what was found of a stream.
    pub(super) fn send_stream_found(&self, found: &mut Found, heads_only: bool) {
        let head = Head::new(self.request, self.epoch);
        self.answers.writer.push(|out| found.encode_stream_head(out, head, heads_only));
        send_data(&self.answers.writer, found);
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
