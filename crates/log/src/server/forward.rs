//! Appends that are sent whole: the node of the sequencer grants their positions and hands the entries to the units.
//!
//! ```text
//!   Append ─► sequencer: positions ─► layout: parts ─► relay: the replicas of each ─► join ─► Appended
//! ```
//!
//! A unit of this process takes its part without a socket in between. Positions are granted and the first replicas asked in
//! one turn, so that nobody sees a position of a batch granted and not yet on its way.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, TABLE_ENTRY_BYTES, Table};

use super::relay::{Relay, Sender};
use super::reply::ReplyRoute;
use crate::entry::EntryMeta;
use crate::join::Join;
use crate::layout::{Layout, Piece};
use crate::planted::Planted;
use crate::pos::{Epoch, LogPos};
use crate::sequencer::{Granted, Placed, Sequencer};
use crate::wire::{Append, Appended, Refusal, Roles};

/// Hands entries to the units of one epoch's layout.
pub(super) struct Forwarder {
    layout: Rc<Layout>,
    relay: Rc<Relay>,
    planted: Planted,
}

impl Forwarder {
    /// A forwarder to the units of `layout`, which `relay` can write to.
    pub(super) fn new(layout: Rc<Layout>, relay: Rc<Relay>, planted: Planted) -> Self {
        Self { layout, relay, planted }
    }

    /// Appends a batch; `route` is answered when every replica of every part has answered.
    pub(super) fn append(&self, sequencer: &mut Sequencer, route: ReplyRoute, append: Append, data: Bytes) {
        let (epoch, count) = (route.epoch(), append.table.count() as u32);
        let admitted = self.relay.admits(&self.layout, epoch, data.len());
        match sequencer.append(epoch, &append.batch, count, admitted) {
            Ok(Placed::New(grant)) => self.write(route, grant, append, data),
            Ok(Placed::Again(Granted { first, count })) => {
                // The earlier copy's entries are on their way; whether they arrive, the units know.
                route.send(&Appended { first, count, written: false });
            }
            Err(refusal) => route.refuse(refusal),
        }
    }

    fn write(&self, route: ReplyRoute, grant: Granted, append: Append, data: Bytes) {
        let epoch = route.epoch();
        let pieces = self.layout.pieces(grant.first, grant.end());
        let join = RefCell::new(Join::new(pieces.len(), self.planted));
        let joining = Rc::new(Joining { join, route, grant });
        for piece in &pieces {
            let run = part(piece, epoch, grant.first, &append, &data);
            self.relay.write(piece.replicas, run, Sender::Part(Rc::clone(&joining)));
        }
    }
}

/// The entries of one piece, as a run. The only piece of a batch is the batch as it came, without a copy.
fn part(piece: &Piece<'_>, epoch: Epoch, first: LogPos, append: &Append, data: &Bytes) -> Run {
    let skipped = piece.first.0 - first.0;
    let meta = EntryMeta {
        stride: piece.stride as u16,
        ..EntryMeta::new(append.batch.client, piece.addrs.start, append.batch.request.after(skipped))
    };
    let (table, data) = match piece.stride {
        1 => (append.table.clone(), data.clone()),
        stride => gather(append, data, skipped as usize, stride as usize),
    };
    Run {
        first_key: piece.addrs.start.0,
        version: epoch.0,
        kind: RunKind::Data,
        meta: meta.to_bytes(),
        table,
        data,
    }
}

/// Every `step`-th entry from the one at index `first` on.
fn gather(append: &Append, data: &Bytes, first: usize, step: usize) -> (Table, Bytes) {
    let table = append.table.as_bytes();
    let (mut entries, mut gathered, mut at) = (BytesMut::new(), BytesMut::new(), 0);
    for (index, entry) in append.table.entries().enumerate() {
        let end = at + entry.len as usize;
        if index >= first && (index - first).is_multiple_of(step) {
            entries.extend_from_slice(&table[index * TABLE_ENTRY_BYTES..(index + 1) * TABLE_ENTRY_BYTES]);
            gathered.extend_from_slice(&data[at..end]);
        }
        at = end;
    }
    (Table::from_bytes(entries.freeze()).expect("whole entries"), gathered.freeze())
}

/// An append that waits for its units.
pub(super) struct Joining {
    join: RefCell<Join>,
    route: ReplyRoute,
    grant: Granted,
}

impl Joining {
    /// One part was answered; `written` says that all of it is on stable storage.
    pub(super) fn answered(&self, written: bool) {
        if let Some(written) = self.join.borrow_mut().answered(written) {
            let Granted { first, count } = self.grant;
            self.route.send(&Appended { first, count, written });
        }
    }
}

/// What a node without a forwarder says.
pub(super) const NO_FORWARDER: Refusal = Refusal::NotServing { roles: Roles::FORWARDER };
