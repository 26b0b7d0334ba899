//! Reading positions and ranges.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::task::gather;

use super::decide::Deciding;
use super::error::{ClientError, Phase};
use super::view::View;
use super::{CallError, Inner};
use crate::entry::{EntryMeta, StreamPlace, StreamPlaces};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch, LogPos, NodeId, StreamId};
use crate::wire::{Kind, MessageError, Read, ReceivedRuns, RunRef, StateRef, table_entries};

/// Bytes that one piece of a range asks each unit for.
const PIECE_BYTES: u32 = 1 << 20;
/// Positions of one piece at the most.
const PIECE_MAX_COUNT: u64 = 16_384;

/// What a position holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// An entry.
    Data,
    /// Junk: a position that was given up.
    Junk,
    /// Trimmed: whatever it held is gone.
    Trimmed,
}

/// A position of the log and what it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The position.
    pub pos: LogPos,
    /// What it holds.
    pub kind: EntryKind,
    /// The epoch that the position was granted in, or filled in if it is junk; 0 if it is trimmed. No later epoch grants a position
    /// below it.
    pub epoch: Epoch,
    /// The streams that it belongs to, and its place in each.
    pub streams: StreamPlaces,
    /// Its data, compared with the checksum that the appender made. Empty unless it is data. Shares memory with other
    /// entries that came with it: copy it to keep one for long.
    pub data: Bytes,
}

impl Entry {
    /// What a position holds that was trimmed.
    pub(super) fn trimmed(pos: LogPos) -> Self {
        Self {
            pos,
            kind: EntryKind::Trimmed,
            epoch: Epoch(0),
            streams: StreamPlaces::new(),
            data: Bytes::new(),
        }
    }

    /// Its place in `stream`, if it belongs to it.
    pub fn place_in(&self, stream: StreamId) -> Option<StreamPlace> {
        self.streams.iter().copied().find(|place| place.stream == stream)
    }
}

/// Who sent something, and when.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) addr: SocketAddr,
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
}

impl Origin {
    pub(super) fn failed(self, error: CallError) -> ClientError {
        let Self { addr, epoch, phase } = self;
        ClientError::Node { addr, epoch, phase, error }
    }
}

/// What a unit sent: runs in order, and the data of those that were not taken yet.
pub(super) struct UnitRuns {
    pub(super) origin: Origin,
    pub(super) runs: ReceivedRuns,
    pub(super) data: Bytes,
}

impl UnitRuns {
    /// Gives each run to `each`, which takes its entries off the data.
    pub(super) fn each(
        mut self,
        mut each: impl FnMut(RunEntries<'_>) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for run in self.runs.runs() {
            each(RunEntries { run, origin: self.origin, data: &mut self.data })?;
        }
        Ok(())
    }
}

/// A run, and the data from its first entry on.
pub(super) struct RunEntries<'a> {
    pub(super) run: RunRef<'a>,
    origin: Origin,
    data: &'a mut Bytes,
}

impl RunEntries<'_> {
    pub(super) fn is_unwritten(&self) -> bool {
        self.run.state == StateRef::Unwritten
    }

    /// The entries, given the position of each address. An entry that does not match its checksum is `Damaged`.
    pub(super) fn take(
        self,
        mut position: impl FnMut(Addr) -> Option<LogPos>,
        mut take: impl FnMut(Entry),
    ) -> Result<(), ClientError> {
        let first = self.run.addr.0;
        let (kind, epoch) = match self.run.state {
            StateRef::Data { epoch, meta, table } => {
                let meta = self.meta(meta)?;
                for (nth, (len, checksum)) in (0..).zip(table_entries(table)) {
                    let data = self.data.split_to(len);
                    let addr = Addr(first + nth);
                    let Some(pos) = position(addr) else { continue };
                    if crc32c::crc32c(&data) != checksum {
                        return Err(ClientError::Damaged { pos });
                    }
                    let streams = meta.places_at(addr, pos);
                    take(Entry { pos, kind: EntryKind::Data, epoch, streams, data });
                }
                return Ok(());
            }
            StateRef::Junk { epoch } => (EntryKind::Junk, epoch),
            StateRef::Trimmed => (EntryKind::Trimmed, Epoch(0)),
            StateRef::Unwritten => {
                let pos = (0..self.run.count).find_map(|nth| position(Addr(first + nth)));
                return pos.map_or(Ok(()), |pos| Err(ClientError::Unwritten { pos }));
            }
        };
        for nth in 0..self.run.count {
            if let Some(pos) = position(Addr(first + nth)) {
                take(Entry { pos, kind, epoch, streams: StreamPlaces::new(), data: Bytes::new() });
            }
        }
        Ok(())
    }

    fn meta(&self, meta: &[u8]) -> Result<EntryMeta, ClientError> {
        let malformed =
            |error| self.origin.failed(MessageError::Malformed { kind: Kind::Runs, error }.into());
        EntryMeta::decode(meta).map_err(malformed)
    }
}

impl Inner {
    pub(super) async fn read_many(self: &Rc<Self>, positions: &[LogPos]) -> Result<Vec<Entry>, ClientError> {
        self.read_many_by(positions, self.deadline()).await
    }

    pub(super) async fn read_many_by(
        self: &Rc<Self>,
        positions: &[LogPos],
        deadline: Time,
    ) -> Result<Vec<Entry>, ClientError> {
        let mut entries = Vec::new();
        let mut end = positions.len();
        while entries.len() < positions.len() {
            let rest = &positions[entries.len()..end];
            let piece = &rest[..rest.len().min(limits::RANGES_MAX_COUNT)];
            let read = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    inner.read_piece(view, piece).await
                })
                .await;
            let read = match read {
                Err(ClientError::Damaged { pos }) if pos == piece[0] => {
                    vec![self.read_copy(pos, deadline).await?]
                }
                Err(ClientError::Damaged { pos }) if piece.contains(&pos) => {
                    // What comes before it first.
                    end = entries.len() + piece.iter().take_while(|&&before| before != pos).count();
                    continue;
                }
                read => read?,
            };
            end = positions.len();
            if read.is_empty() {
                return Err(ClientError::Unwritten { pos: rest[0] });
            }
            if entries.is_empty() {
                entries = read;
            } else {
                entries.extend(read);
            }
        }
        Ok(entries)
    }

    /// The first of these positions, in their order: as many as the units' answers cover.
    async fn read_piece(
        self: &Rc<Self>,
        view: &View,
        positions: &[LogPos],
    ) -> Result<Vec<Entry>, ClientError> {
        let mut shares: Vec<Share<'_>> = Vec::new();
        // Of what lies below every range nobody needs to be asked.
        let mut trimmed = Vec::new();
        for (index, &pos) in positions.iter().enumerate() {
            if pos < view.layout.start() {
                trimmed.push(index);
                continue;
            }
            let location = view.layout.locate(pos).ok_or(ClientError::Unwritten { pos })?;
            match shares.iter_mut().find(|share| share.replicas == location.replicas) {
                Some(share) => share.wanted.push((index, location.addr)),
                None => {
                    let wanted = vec![(index, location.addr)];
                    shares.push(Share { replicas: location.replicas, wanted });
                }
            }
        }
        // All are asked at the same time.
        let reads = shares.iter().map(|Share { replicas, wanted }| {
            let ranges = wanted.iter().map(|&(_, addr)| (addr.0..addr.0 + 1).into()).collect();
            self.read_at(view, replicas, ranges, limits::READ_MAX_BYTES as u32)
        });
        let answers = all_or_failed(reads).await?;
        let mut found: Vec<Option<Entry>> = Vec::new();
        for index in trimmed {
            found.resize(positions.len(), None);
            found[index] = Some(Entry::trimmed(positions[index]));
        }
        for (Share { wanted, .. }, answer) in shares.iter().zip(answers) {
            // A unit answers in the order of the ranges, each of one address, up to where it is cut off.
            let (mut next, mut read) = (wanted.iter(), Vec::with_capacity(wanted.len()));
            answer.each(|run| {
                let place = |found| {
                    next.next().filter(|(_, addr)| *addr == found).map(|&(index, _)| positions[index])
                };
                run.take(place, |entry| read.push(entry))
            })?;
            if wanted.len() == positions.len() {
                return Ok(read);
            }
            found.resize(positions.len(), None);
            for (&(index, _), entry) in wanted.iter().zip(read) {
                found[index] = Some(entry);
            }
        }
        Ok(found.into_iter().map_while(|entry| entry).collect())
    }

    pub(super) async fn read_range(
        self: &Rc<Self>,
        from: LogPos,
        to: LogPos,
    ) -> Result<Vec<Entry>, ClientError> {
        let to = to.min(LogPos(from.0.saturating_add(PIECE_MAX_COUNT)));
        let mut to = self.cut_at_tail(to, self.deadline()).await?;
        let deadline = self.deadline();
        let mut waited = false;
        while from < to {
            let read = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    let (entries, holes) = inner.scan(view, from, to).await?;
                    // What stands before the first hole is a piece; only a hole at the very start is waited for.
                    if waited && entries.is_empty() && to <= inner.tail_in(view) {
                        inner.fill_holes(view, &holes, deadline).await?;
                    }
                    Ok((entries, !holes.is_empty()))
                })
                .await;
            let (entries, has_holes) = match read {
                Err(ClientError::Damaged { pos }) if pos == from => {
                    return Ok(vec![self.read_copy(pos, deadline).await?]);
                }
                Err(ClientError::Damaged { pos }) if from < pos && pos < to => {
                    // What comes before it first.
                    to = pos;
                    continue;
                }
                read => read?,
            };
            if !entries.is_empty() || !has_holes {
                return Ok(entries);
            }
            if !waited {
                self.env.sleep(self.options.hole_wait).await;
                waited = true;
            } else if self.env.now() >= deadline {
                return Err(ClientError::Slow { phase: Phase::Fill, waited: self.options.timeout });
            }
            // With its epoch a tail is over.
            to = self.cut_at_tail(to, deadline).await?;
        }
        Ok(Vec::new())
    }

    /// Reads a position that is damaged on the last replica from another one, the nearest first. Whatever an earlier one holds
    /// there is what the position holds for ever: the first replica has decided it.
    pub(super) async fn read_copy(
        self: &Rc<Self>,
        pos: LogPos,
        deadline: Time,
    ) -> Result<Entry, ClientError> {
        self.retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view: &View| {
            let location = view.layout.locate(pos).ok_or(ClientError::Unwritten { pos })?;
            let addrs = AddrRange::from(location.addr.0..location.addr.0 + 1);
            for &unit in location.replicas.iter().rev().skip(1) {
                let limit_bytes = limits::READ_MAX_BYTES as u32;
                let read = Read { limit_bytes, committed: false, ranges: vec![addrs] };
                let mut found = None;
                let read = inner
                    .read_one(view, unit, read)
                    .await
                    .and_then(|runs| runs.each(|run| run.take(|_| Some(pos), |entry| found = Some(entry))));
                match (read, found) {
                    (Ok(()), Some(entry)) => return Ok(entry),
                    (Ok(()) | Err(ClientError::Damaged { .. } | ClientError::Unwritten { .. }), _) => {}
                    (Err(error), _) => return Err(error),
                }
            }
            Err(ClientError::Damaged { pos })
        })
        .await
    }

    /// Decides holes that a scan with the same view has seen.
    pub(super) async fn fill_holes(
        self: &Rc<Self>,
        view: &View,
        holes: &[Hole],
        deadline: Time,
    ) -> Result<(), ClientError> {
        let deciding = Deciding { inner: self, view, phase: Phase::Fill, deadline };
        for hole in holes {
            deciding.decide(&hole.replicas, hole.addrs).await?;
        }
        Ok(())
    }

    /// The entries of `[from, to)` up to the first hole or the end of what the units gave, and the holes that were seen.
    pub(super) async fn scan(
        self: &Rc<Self>,
        view: &View,
        from: LogPos,
        to: LogPos,
    ) -> Result<(Vec<Entry>, Vec<Hole>), ClientError> {
        let forgotten = from.0..view.layout.start().min(to).0;
        let mut entries: Vec<Entry> = forgotten.map(|pos| Entry::trimmed(LogPos(pos))).collect();
        let mut holes = Vec::new();
        // Nothing at or past this position is known for sure.
        let mut end = to;
        let pieces = view.layout.pieces(from, to);
        let reads =
            pieces.iter().map(|piece| self.read_at(view, piece.replicas, vec![piece.addrs], PIECE_BYTES));
        let answers = all_or_failed(reads).await?;
        for (piece, answer) in pieces.iter().zip(answers) {
            let mut next = piece.addrs.start;
            answer.each(|run| {
                next = run.run.range().end;
                if run.is_unwritten() {
                    let addrs = run.run.range();
                    end = end.min(piece.find(addrs.start).unwrap_or(end));
                    holes.push(Hole { replicas: piece.replicas.to_vec(), addrs });
                    return Ok(());
                }
                run.take(|addr| piece.find(addr), |entry| entries.push(entry))
            })?;
            if next < piece.addrs.end {
                end = end.min(piece.find(next).unwrap_or(end));
            }
        }
        entries.sort_by_key(|entry| entry.pos);
        entries.retain(|entry| entry.pos >= from && entry.pos < end);
        Ok((entries, holes))
    }
}

/// Positions of a read that the same replicas hold.
struct Share<'a> {
    replicas: &'a [NodeId],
    /// Each by its place among those that were asked for, and its address.
    wanted: Vec<(usize, Addr)>,
}

/// Runs all reads at the same time: every answer in their order, or why one has failed.
pub(super) async fn all_or_failed<T>(
    reads: impl Iterator<Item = impl Future<Output = Result<T, ClientError>>>,
) -> Result<Vec<T>, ClientError> {
    let answers = gather(reads.collect(), Result::is_err).await;
    // Those that were not waited for are left out, and then one has failed.
    answers.into_iter().flatten().collect()
}

/// Addresses of a stripe that its last replica holds nothing at.
pub(super) struct Hole {
    pub(super) replicas: Vec<NodeId>,
    pub(super) addrs: AddrRange,
}
