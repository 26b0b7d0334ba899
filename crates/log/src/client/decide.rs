//! Deciding addresses on every replica of their stripe, in chain order.
//!
//! The first replica decides: what it holds is what the position holds. Where it holds nothing, junk is written there first.
//! Then each later replica in turn is made to hold the same: entries with their own meta, junk, nothing any more where the
//! first is trimmed. When the last replica has it the position is decided. (Wei 3.3.4; docs/protocol/fill.md)
//!
//! A trim may go on meanwhile, from the first replica to the last as well. What it has taken from under a copy shows when
//! the copy is refused, and the first replica is asked again.

use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{RangeSet, Run};
use ithaca_env::Time;

use super::error::{ClientError, Phase};
use super::view::View;
use super::{CallError, Inner};
use crate::entry::EntryMeta;
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, NodeId};
use crate::wire::{
    self, Check, Fill, Filled, Head, Outcome, Read, Refusal, Tail, Taken, Trim, Trimmed, Write, Written,
};

/// Attempts before replicas that differ are taken for damaged. A trim that is under way explains a few.
const ATTEMPTS_MAX: u32 = 8;
/// The wait before the next.
const ATTEMPT_WAIT: Duration = Duration::from_millis(1);
/// Bytes of entries that are read at a time to be copied.
const COPY_BYTES: u32 = 1 << 20;

/// Decides addresses in the epoch of one view. Each call is one attempt: an error of a unit ends it, and what was done so
/// far is completed by whoever tries again.
pub(super) struct Deciding<'a> {
    pub(super) inner: &'a Rc<Inner>,
    pub(super) view: &'a View,
    pub(super) phase: Phase,
    pub(super) deadline: Time,
}

/// A replica holds something else at an address than the one before it did a moment ago.
struct Differs {
    addr: Addr,
}

type Attempt<T> = Result<Result<T, Differs>, ClientError>;

impl Deciding<'_> {
    /// Decides every address of `addrs`: those not listed are junk on every replica; listed ones hold data, or are trimmed,
    /// on every replica.
    pub(super) async fn decide(
        &self,
        replicas: &[NodeId],
        addrs: AddrRange,
    ) -> Result<Vec<Outcome>, ClientError> {
        let mut outcomes = Vec::new();
        let mut numbers = addrs.numbers();
        while !numbers.is_empty() {
            let end = numbers.end.min(numbers.start + limits::FILL_MAX_COUNT);
            outcomes.extend(self.decide_part(replicas, (numbers.start..end).into()).await?);
            numbers.start = end;
        }
        Ok(outcomes)
    }

    /// Trims `addrs` on every replica, in order. Holes among them that lie past all that a unit holds are filled there first:
    /// a unit gives up only what is decided.
    pub(super) async fn trim(&self, replicas: &[NodeId], addrs: AddrRange) -> Result<(), ClientError> {
        for &unit in replicas {
            self.trim_at(unit, addrs).await?;
        }
        Ok(())
    }

    async fn decide_part(&self, replicas: &[NodeId], part: AddrRange) -> Result<Vec<Outcome>, ClientError> {
        let planted = self.inner.options.planted;
        if planted.is(PlantedBug::FillSkipsCopy) {
            let mut taken = self.fill(replicas[0], part).await?;
            for &unit in &replicas[1..] {
                taken = self.fill(unit, part).await?;
            }
            return Ok(taken);
        }
        let mut replicas = replicas.to_vec();
        if planted.is(PlantedBug::FilledFromLast) {
            replicas.reverse();
        }
        let mut attempts = 0;
        loop {
            let differs = match self.attempt(&replicas, part).await? {
                Ok(outcomes) => return Ok(outcomes),
                Err(differs) => differs,
            };
            attempts += 1;
            if attempts >= ATTEMPTS_MAX {
                let pos = self.view.position(replicas[0], differs.addr).unwrap_or_default();
                return Err(ClientError::Damaged { pos });
            }
            self.inner.env.sleep(ATTEMPT_WAIT).await;
        }
    }

    /// Fills what is free at the first replica, and makes the others hold what it holds.
    async fn attempt(&self, replicas: &[NodeId], part: AddrRange) -> Attempt<Vec<Outcome>> {
        let (&first, rest) = replicas.split_first().expect("a stripe has replicas");
        // Asked before the first replica is: what the last held then, all held, and the first holds still or is trimmed.
        let open = match rest.last() {
            Some(&last) => AddrRange::new(self.settled(last, part).await?, part.end),
            None => AddrRange::new(part.end, part.end),
        };
        let taken = self.fill(first, part).await?;
        let of = |wanted: fn(&Taken) -> bool| {
            taken.iter().filter(move |outcome| wanted(&outcome.taken)).map(Outcome::range)
        };
        let trimmed: Vec<AddrRange> = of(|taken| *taken == Taken::Trimmed).collect();
        let data: RangeSet = of(|taken| matches!(taken, Taken::Data { .. }))
            .map(|range| range.start.max(open.start).0..range.end.0)
            .filter(|numbers| !numbers.is_empty())
            .collect();
        for &unit in rest {
            for &range in &trimmed {
                self.trim_at(unit, range).await?;
            }
            for range in data.ranges() {
                if let Err(differs) = self.copy(first, unit, range.into()).await? {
                    return Ok(Err(differs));
                }
            }
            // All that the first replica holds is there by now: what is free is junk on the first.
            for outcome in if open.is_empty() { Vec::new() } else { self.fill(unit, open).await? } {
                let is_data = matches!(outcome.taken, Taken::Data { .. });
                if is_data && data.gaps(outcome.range().numbers()).next().is_some() {
                    return Ok(Err(Differs { addr: outcome.addr }));
                }
            }
        }
        Ok(Ok(taken))
    }

    /// Up to where every address of `part` is resolved on a unit.
    async fn settled(&self, unit: NodeId, part: AddrRange) -> Result<Addr, ClientError> {
        let check = Check { extents: vec![part], ..Check::default() };
        let (answer, _, _) =
            self.inner.call::<_, Tail>(self.view, unit, self.phase, &check, self.deadline).await?;
        Ok(answer.extents.first().map_or(part.start, |bounds| bounds.watermark.clamp(part.start, part.end)))
    }

    /// Makes junk of what is free on one unit; what is taken there by anything else.
    async fn fill(&self, unit: NodeId, range: AddrRange) -> Result<Vec<Outcome>, ClientError> {
        let fill = Fill { ranges: vec![range] };
        let filled = self.inner.call::<_, Filled>(self.view, unit, self.phase, &fill, self.deadline).await;
        let (filled, _, _) = filled.map_err(|error| self.view.by_position(unit, error))?;
        Ok(filled.taken)
    }

    /// Copies entries from one unit to another, with their meta.
    async fn copy(&self, source: NodeId, target: NodeId, range: AddrRange) -> Attempt<()> {
        let mut next = range.start;
        while next < range.end {
            let ranges = vec![AddrRange::new(next, range.end)];
            let read = Read { limit_bytes: COPY_BYTES, committed: false, ranges };
            let read = self.inner.read_one(self.view, source, read).await?;
            let mut data = read.data;
            for run in read.runs.runs() {
                let Some(run) = run.to_run(&mut data) else {
                    return Ok(Err(Differs { addr: run.addr }));
                };
                let run = Run { version: self.view.layout.epoch.0, ..run };
                next = Addr(run.keys().end);
                if let Err(differs) = self.put(target, run).await? {
                    return Ok(Err(differs));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Writes a copy of a run, cut to what a unit takes.
    async fn put(&self, unit: NodeId, run: Run) -> Attempt<()> {
        let Ok(meta) = EntryMeta::decode(&run.meta) else {
            return Ok(Err(Differs { addr: Addr(run.first_key) }));
        };
        let limits = self.inner.write_limits.get();
        let mut keys = run.keys();
        while !keys.is_empty() {
            let (mut end, mut bytes) = (keys.start, 0);
            for entry in run.slice(keys.clone()).table.entries() {
                bytes += entry.len as usize;
                let is_full = bytes > limits.bytes || end - keys.start >= limits.count as u64;
                if end > keys.start && is_full {
                    break;
                }
                end += 1;
            }
            let written = self.put_part(unit, run.slice(keys.start..end)).await?;
            if let Some(other) = written.taken.iter().find(|outcome| !is_same(outcome, &meta)) {
                return Ok(Err(Differs { addr: other.addr }));
            }
            keys.start = end;
        }
        Ok(Ok(()))
    }

    async fn put_part(&self, unit: NodeId, run: Run) -> Result<Written, ClientError> {
        let connection = self.inner.connection(self.view, unit, self.deadline).await?;
        let epoch = self.view.layout.epoch;
        let write = Write { addr: Addr(run.first_key), meta: run.meta, table: run.table };
        let (data, len) = (std::iter::once(run.data.clone()), run.data.len());
        let answer = connection.call_with::<Written>(
            &self.inner.env,
            |id, out| wire::encode_head(out, Head::new(id, epoch), &write, len),
            data,
            self.deadline,
        );
        let (addr, phase) = (self.view.addr(unit), self.phase);
        let answer = answer.await.map_err(|error| ClientError::Node { addr, epoch, phase, error });
        let (written, _, _) = answer.map_err(|error| self.view.by_position(unit, error))?;
        Ok(written)
    }

    async fn trim_at(&self, unit: NodeId, range: AddrRange) -> Result<(), ClientError> {
        match self.try_trim(unit, range).await {
            Err(ClientError::Node { error: CallError::Refused(Refusal::Unwritten { addr }), .. }) => {
                // What is decided goes first: on a full drive that makes the room to decide the rest.
                if range.start < addr {
                    self.try_trim(unit, AddrRange::new(range.start, addr)).await?;
                }
                let mut numbers = addr.max(range.start).0..range.end.0;
                while !numbers.is_empty() {
                    let end = numbers.end.min(numbers.start + limits::FILL_MAX_COUNT);
                    self.fill(unit, (numbers.start..end).into()).await?;
                    numbers.start = end;
                }
                self.try_trim(unit, AddrRange::new(addr.max(range.start), range.end)).await
            }
            trimmed => trimmed,
        }
    }

    async fn try_trim(&self, unit: NodeId, range: AddrRange) -> Result<(), ClientError> {
        let trim = Trim { ranges: vec![range] };
        let trimmed = self.inner.call::<_, Trimmed>(self.view, unit, self.phase, &trim, self.deadline).await;
        trimmed.map(|_| ())
    }
}

/// Whether what an address was found to hold is the entry that `meta` names.
fn is_same(outcome: &Outcome, meta: &EntryMeta) -> bool {
    match outcome.taken {
        Taken::Data { client, request, stride } => {
            client == meta.client
                && request == meta.request_at(outcome.addr)
                && (outcome.count == 1 || stride == meta.stride)
        }
        Taken::Junk | Taken::Trimmed => false,
    }
}
