//! Reading positions and ranges.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::error::{ClientError, Phase};
use super::view::View;
use super::{CallError, Inner};
use crate::entry::{EntryMeta, StreamPlace};
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, NodeId};
use crate::wire::{MessageError, Read, Refusal, RunHead, RunState, Runs};

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
    /// The streams that it belongs to.
    pub streams: Vec<StreamPlace>,
    /// Its data, compared with the checksum that the appender made. Empty unless it is data. Shares memory with other
    /// entries that came with it: copy it to keep one for long.
    pub data: Bytes,
}

/// A run of entries on one unit: what several of them need decoded once.
pub(super) struct ReadRun {
    pub(super) head: RunHead,
    data: Bytes,
    streams: Vec<StreamPlace>,
}

impl ReadRun {
    pub(super) fn new(head: RunHead, data: Bytes) -> Result<Self, MessageError> {
        let streams = match &head.state {
            RunState::Data { meta, .. } => {
                let kind = crate::wire::Kind::Runs;
                EntryMeta::decode(meta).map_err(|error| MessageError::Malformed { kind, error })?.streams
            }
            _ => Vec::new(),
        };
        Ok(Self { head, data, streams })
    }

    pub(super) fn is_unwritten(&self) -> bool {
        matches!(self.head.state, RunState::Unwritten)
    }

    /// The entries, given the position of each address. An entry that does not match its checksum is `Damaged`.
    pub(super) fn entries(
        self,
        mut position: impl FnMut(Addr) -> Option<LogPos>,
        mut take: impl FnMut(Entry),
    ) -> Result<(), ClientError> {
        let mut rest = self.data;
        for nth in 0..self.head.count {
            let pos = position(Addr(self.head.addr.0 + nth));
            let (kind, data, is_whole) = match &self.head.state {
                RunState::Data { table, .. } => {
                    let entry = table.get(nth as usize);
                    let data = rest.split_to(entry.len as usize);
                    let is_whole = crc32c::crc32c(&data) == entry.checksum;
                    (EntryKind::Data, data, is_whole)
                }
                RunState::Junk { .. } => (EntryKind::Junk, Bytes::new(), true),
                RunState::Trimmed => (EntryKind::Trimmed, Bytes::new(), true),
                RunState::Unwritten => match pos {
                    Some(pos) => return Err(ClientError::Unwritten { pos }),
                    None => continue,
                },
            };
            let Some(pos) = pos else { continue };
            if !is_whole {
                return Err(ClientError::Damaged { pos });
            }
            take(Entry { pos, kind, streams: self.streams.clone(), data });
        }
        Ok(())
    }
}

impl Inner {
    /// Reads `ranges` of one unit until all are covered or `limit_bytes` came; the runs are in order and without gaps.
    pub(super) async fn read_unit(
        self: &Rc<Self>,
        view: &View,
        unit: NodeId,
        ranges: Vec<AddrRange>,
        limit_bytes: u32,
    ) -> Result<Vec<ReadRun>, ClientError> {
        let read = Read { limit_bytes, ranges };
        let deadline = self.deadline();
        let (runs, data, _) =
            self.call::<_, Runs>(view, unit, Phase::Read, &read, deadline).await.map_err(|error| {
                // The unit names an address; its reader knows positions.
                match error {
                    ClientError::Node { error: CallError::Refused(Refusal::Damaged { addr }), .. } => {
                        view.position(unit, addr).map_or(error, |pos| ClientError::Damaged { pos })
                    }
                    error => error,
                }
            })?;
        let malformed = |error: MessageError| ClientError::Node {
            addr: view.addr(unit),
            epoch: view.layout.epoch,
            phase: Phase::Read,
            error: CallError::Message(error),
        };
        runs.with_data(data).map(|(head, data)| ReadRun::new(head, data).map_err(malformed)).collect()
    }

    pub(super) async fn read_many(self: &Rc<Self>, positions: &[LogPos]) -> Result<Vec<Entry>, ClientError> {
        let deadline = self.deadline();
        let mut entries = Vec::with_capacity(positions.len());
        while entries.len() < positions.len() {
            let rest = &positions[entries.len()..];
            let piece = &rest[..rest.len().min(limits::RANGES_MAX_COUNT)];
            let read = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    inner.read_piece(view, piece).await
                })
                .await?;
            let Some(first) = piece.first().filter(|_| read.is_empty()) else {
                entries.extend(read);
                continue;
            };
            return Err(ClientError::Unwritten { pos: *first });
        }
        Ok(entries)
    }

    /// The first of these positions, in their order: as many as the units' answers cover.
    async fn read_piece(
        self: &Rc<Self>,
        view: &View,
        positions: &[LogPos],
    ) -> Result<Vec<Entry>, ClientError> {
        let mut by_unit: BTreeMap<NodeId, Vec<(usize, Addr)>> = BTreeMap::new();
        for (index, &pos) in positions.iter().enumerate() {
            let (unit, addr) = view.place(pos)?;
            by_unit.entry(unit).or_default().push((index, addr));
        }
        let mut found: Vec<Option<Entry>> = vec![None; positions.len()];
        for (unit, wanted) in by_unit {
            let ranges = wanted.iter().map(|&(_, addr)| (addr.0..addr.0 + 1).into()).collect();
            // A unit answers in the order of the ranges, each of one address, up to where its limit cuts it off.
            let (mut next, mut read) = (wanted.iter(), Vec::with_capacity(wanted.len()));
            for run in self.read_unit(view, unit, ranges, limits::READ_MAX_BYTES as u32).await? {
                let place = |found| {
                    next.next().filter(|(_, addr)| *addr == found).map(|&(index, _)| positions[index])
                };
                run.entries(place, |entry| read.push(entry))?;
            }
            for ((index, _), entry) in wanted.into_iter().zip(read) {
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
        let tail = if to <= self.known_tail.get() { to } else { self.tail().await? };
        let to = to.min(tail).min(LogPos(from.0.saturating_add(PIECE_MAX_COUNT)));
        if from >= to {
            return Ok(Vec::new());
        }
        let deadline = self.deadline();
        let mut waited = false;
        loop {
            let (entries, holes) = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    inner.scan(view, from, to).await
                })
                .await?;
            // What stands before the first hole is a piece; only a hole at the very start is waited for.
            if !entries.is_empty() || holes.is_empty() {
                return Ok(entries);
            }
            if waited {
                for (unit, ranges) in holes {
                    self.fill_ranges(unit, &ranges).await?;
                }
            } else {
                self.env.sleep(self.options.hole_wait).await;
                waited = true;
            }
        }
    }

    /// The entries of `[from, to)` up to the first hole or the end of what the units gave, and the holes that were seen.
    pub(super) async fn scan(
        self: &Rc<Self>,
        view: &View,
        from: LogPos,
        to: LogPos,
    ) -> Result<(Vec<Entry>, Vec<(NodeId, Vec<AddrRange>)>), ClientError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut holes = Vec::new();
        // Nothing at or past this position is known for sure.
        let mut end = to;
        for (unit, range) in view.split(from, to) {
            let mut unit_holes = Vec::new();
            let mut next = range.start;
            for run in self.read_unit(view, unit, vec![range], PIECE_BYTES).await? {
                next = run.head.range().end;
                if run.is_unwritten() {
                    let hole = run.head.range();
                    end = end.min(view.position(unit, hole.start).unwrap_or(end));
                    unit_holes.push(hole);
                } else {
                    run.entries(|addr| view.position(unit, addr), |entry| entries.push(entry))?;
                }
            }
            if next < range.end {
                end = end.min(view.position(unit, next).unwrap_or(end));
            }
            if !unit_holes.is_empty() {
                holes.push((unit, unit_holes));
            }
        }
        entries.sort_by_key(|entry| entry.pos);
        entries.retain(|entry| entry.pos >= from && entry.pos < end);
        Ok((entries, holes))
    }
}
