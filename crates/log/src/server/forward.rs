//! Appends that are sent whole: the node of the sequencer grants their positions and hands the entries to the units.
//!
//! ```text
//!   Append ─► sequencer: positions ─► layout: parts ─► relay: the replicas of each ─► join ─► Appended
//! ```
//!
//! A unit of this process takes its part without a socket in between. Positions are granted and the first replicas asked in
//! one turn, so that nobody sees a position of a batch granted and not yet on its way.
//!
//! Entries keep the request numbers that they were sent with, whatever was refused before them: so their client finds each by its own
//! number. A run numbers its entries one by one, so what was granted behind a refused entry is a run of its own.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, TABLE_ENTRY_BYTES, Table};

use super::relay::{Relay, Sender};
use super::reply::ReplyRoute;
use crate::entry::{EntryMeta, StreamGroup, StreamPlaces};
use crate::join::Join;
use crate::layout::{Layout, Piece};
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Epoch, LogPos};
use crate::sequencer::{Granted, Placed, Sequencer};
use crate::wire::{Append, Appended, Grant, GroupGrant, Refusal, Roles, TokenGroup};

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

    /// Appends a batch; `route` is answered when every replica of every part has answered. `note` is told what this copy of it
    /// was granted, or why nothing was.
    pub(super) fn append(
        &self,
        sequencer: &mut Sequencer,
        route: ReplyRoute,
        append: Append,
        data: Bytes,
        note: impl FnOnce(&Result<Grant, Refusal>),
    ) {
        let (epoch, count) = (route.epoch(), append.table.count() as u32);
        let admitted = self.relay.admits(&self.layout, epoch, data.len());
        if append.groups.is_empty() {
            match sequencer.append(epoch, &append.batch, count, admitted) {
                Ok(Placed::New(grant)) => {
                    let Granted { first, count } = grant;
                    let whole = GroupGrant::Granted { count, places: StreamPlaces::new() };
                    note(&Ok(Grant { first, groups: vec![whole] }));
                    self.write(route, grant, Vec::new(), &[Section::whole(grant)], &append, &data);
                }
                Ok(Placed::Again(Granted { first, count })) => {
                    note(&Ok(Grant { first, groups: Vec::new() }));
                    // The earlier copy's entries are on their way; whether they arrive, the units know.
                    route.send(&Appended { first, count, written: false, groups: Vec::new() });
                }
                Err(refusal) => {
                    note(&Err(refusal));
                    route.refuse(refusal);
                }
            }
            return;
        }
        let granted = sequencer.append_groups(epoch, &append.batch, &append.groups, admitted);
        note(&granted);
        match granted {
            Ok(grant) => {
                let granted = Granted { first: grant.first, count: grant.count() };
                let sections = sections(&grant, &append.groups, self.planted);
                self.write(route, granted, grant.groups, &sections, &append, &data);
            }
            Err(refusal) => route.refuse(refusal),
        }
    }

    fn write(
        &self,
        route: ReplyRoute,
        grant: Granted,
        answers: Vec<GroupGrant>,
        sections: &[Section],
        append: &Append,
        data: &Bytes,
    ) {
        let epoch = route.epoch();
        let parts: Vec<(Piece<'_>, &Section)> = sections
            .iter()
            .flat_map(|section| {
                let pieces = self.layout.pieces(section.first, section.end());
                pieces.into_iter().map(move |piece| (piece, section))
            })
            .collect();
        if parts.is_empty() {
            let Granted { first, count } = grant;
            return route.send(&Appended { first, count, written: true, groups: answers });
        }
        let join = RefCell::new(Join::new(parts.len(), self.planted));
        let joining = Rc::new(Joining { join, route, grant, answers: RefCell::new(answers) });
        for (piece, section) in &parts {
            let run = part(piece, epoch, section, append, data);
            self.relay.write(piece.replicas, run, Sender::Part(Rc::clone(&joining)));
        }
    }
}

/// Entries in a row of a batch that have positions in a row.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    first: LogPos,
    /// Which of the batch's entries.
    entries: Range<usize>,
    /// By how much their request numbers lie above that of the batch.
    number: u64,
    /// The streams that they are in; none if no entry of the batch is in any.
    groups: Vec<StreamGroup>,
}

impl Section {
    /// All of a batch that is in no stream.
    fn whole(grant: Granted) -> Self {
        Self { first: grant.first, entries: 0..grant.count as usize, number: 0, groups: Vec::new() }
    }

    fn end(&self) -> LogPos {
        LogPos(self.first.0 + self.entries.len() as u64)
    }
}

/// What was granted of a batch of groups, in pieces between what was refused.
fn sections(grant: &Grant, asked: &[TokenGroup], planted: Planted) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let (mut entry, mut next) = (0, grant.first);
    for (group, answer) in asked.iter().zip(&grant.groups) {
        let entries = entry..entry + group.count as usize;
        entry = entries.end;
        let GroupGrant::Granted { count, places } = answer else { continue };
        let group = StreamGroup { count: *count, places: places.clone() };
        match sections.last_mut() {
            Some(last) if last.entries.end == entries.start => {
                last.entries.end = entries.end;
                group.add_to(&mut last.groups);
            }
            _ => {
                let closes_up = planted.is(PlantedBug::NumbersCloseUp);
                let number = if closes_up { next.0 - grant.first.0 } else { entries.start as u64 };
                let mut groups = Vec::with_capacity(asked.len());
                groups.push(group);
                sections.push(Section { first: next, entries, number, groups });
            }
        }
        next = LogPos(next.0 + u64::from(*count));
    }
    sections
}

/// The entries of one piece of a section, as a run. The only piece of a batch is the batch as it came, without a copy.
fn part(piece: &Piece<'_>, epoch: Epoch, section: &Section, append: &Append, data: &Bytes) -> Run {
    let skipped = piece.first.0 - section.first.0;
    let number = append.batch.request.after(section.number);
    let bare = EntryMeta {
        stride: piece.stride as u16,
        ..EntryMeta::new(append.batch.client, piece.addrs.start, number.after(skipped))
    };
    let count = piece.addrs.count() as usize;
    let first = section.entries.start + skipped as usize;
    let (meta, table, data) = match piece.stride {
        1 if count == append.table.count() => {
            (bare.to_bytes_with(number, &section.groups), append.table.clone(), data.clone())
        }
        stride => {
            let meta = bare.in_groups(number, &section.groups, piece.addrs).to_bytes();
            let (table, data) = gather(append, data, first, stride as usize, count);
            (meta, table, data)
        }
    };
    Run { first_key: piece.addrs.start.0, version: epoch.0, kind: RunKind::Data, meta, table, data }
}

/// Every `step`-th entry from the one at index `first` on, `count` of them.
fn gather(append: &Append, data: &Bytes, first: usize, step: usize, count: usize) -> (Table, Bytes) {
    let table = append.table.as_bytes();
    let (mut entries, mut gathered, mut at) = (BytesMut::new(), BytesMut::new(), 0);
    for (index, entry) in append.table.entries().enumerate().take(first + (count - 1) * step + 1) {
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
    /// What each group of the batch got, until it is told.
    answers: RefCell<Vec<GroupGrant>>,
}

impl Joining {
    /// One part was answered; `written` says that all of it is on stable storage.
    pub(super) fn answered(&self, written: bool) {
        if let Some(written) = self.join.borrow_mut().answered(written) {
            let Granted { first, count } = self.grant;
            self.route.send(&Appended { first, count, written, groups: self.answers.take() });
        }
    }
}

/// What a node without a forwarder says.
pub(super) const NO_FORWARDER: Refusal = Refusal::NotServing { roles: Roles::FORWARDER };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::StreamPlace;
    use crate::pos::{Addr, BatchNo, ClientId, NodeId, RequestNo, StreamId, StreamPos};
    use crate::stream::{ConflictKey, KeyHash};
    use crate::wire::BatchHead;

    fn group(count: u32) -> TokenGroup {
        TokenGroup { count, streams: vec![StreamId(300)].into(), condition: Some(Box::default()) }
    }

    fn granted(count: u32, position: u64) -> GroupGrant {
        let place = StreamPlace { stream: StreamId(300), position: StreamPos(position), previous: None };
        GroupGrant::Granted { count, places: vec![place].into() }
    }

    fn refused() -> GroupGrant {
        let key = ConflictKey { stream: StreamId(300), key: KeyHash::ALL };
        GroupGrant::Conflict { key, pos: LogPos(33) }
    }

    /// The entries of a batch numbered from 50 on by number, address and content, as they are written from position 40 on.
    fn written(asked: &[TokenGroup], answers: Vec<GroupGrant>, planted: Planted) -> Vec<(u64, u64, String)> {
        let payloads: Vec<String> = (0..asked.iter().map(|it| it.count).sum())
            .map(|nth: u32| format!("entry {}", 50 + nth))
            .collect();
        let batch =
            BatchHead { client: ClientId(1), number: BatchNo(0), request: RequestNo(50), after: LogPos(0) };
        let append = Append { batch, table: Table::of_payloads(&payloads), groups: asked.to_vec() };
        let data = Bytes::from(payloads.concat());
        let grant = Grant { first: LogPos(40), groups: answers };
        let mut entries = Vec::new();
        for section in sections(&grant, asked, planted) {
            let addrs = (section.first.0..section.end().0).into();
            let replicas = [NodeId(1)];
            let piece = Piece { replicas: &replicas, addrs, first: section.first, stride: 1 };
            let run = part(&piece, Epoch(1), &section, &append, &data);
            let meta = EntryMeta::decode(&run.meta).expect("it decodes");
            let mut at = 0;
            for (addr, entry) in (run.first_key..).zip(run.table.entries()) {
                let content = &run.data[at..at + entry.len as usize];
                at += content.len();
                let place = meta.places_at(Addr(addr), LogPos(addr));
                assert_eq!(place[0].position.0, addr - 36, "its place in the stream is its own");
                entries.push((meta.request_at(Addr(addr)).0, addr, String::from_utf8_lossy(content).into()));
            }
        }
        entries
    }

    #[test]
    fn an_entry_keeps_its_number_whatever_was_refused_before_it() {
        // Its client would find another one where its own should be, and take that for its own.
        let asked = [group(2), group(1), group(3), group(1), group(1)];
        let answers = vec![granted(2, 4), refused(), granted(3, 6), granted(1, 9), refused()];
        let run = |planted| written(&asked, answers.clone(), planted);
        let own = |(number, _, content): &(u64, u64, String)| *content == format!("entry {number}");
        let entries = run(Planted::NONE);
        assert_eq!(entries.iter().map(|entry| entry.1).collect::<Vec<_>>(), [40, 41, 42, 43, 44, 45]);
        assert!(entries.iter().all(own), "{entries:?}");
        assert!(!run(Planted::bug(PlantedBug::NumbersCloseUp)).iter().all(own));
    }

    #[test]
    fn a_batch_of_which_nothing_is_refused_is_one_run_and_one_of_which_everything_is_none() {
        let asked = [group(2), group(1)];
        let grant = |answers| Grant { first: LogPos(40), groups: answers };
        let all = sections(&grant(vec![granted(2, 4), granted(1, 6)]), &asked, Planted::NONE);
        assert_eq!((all.len(), all[0].groups.len()), (1, 1), "{all:?}");
        let places = written(&asked, vec![granted(2, 4), granted(1, 6)], Planted::NONE);
        assert_eq!(places.iter().map(|entry| entry.0).collect::<Vec<_>>(), [50, 51, 52]);
        assert_eq!(sections(&grant(vec![refused(), refused()]), &asked, Planted::NONE), []);
    }
}
