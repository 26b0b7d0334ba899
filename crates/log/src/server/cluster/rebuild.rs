//! Copying closed ranges that a node should have and lacks, wholly or in part (docs/protocol/rebuild.md).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{RangeSet, Run, RunKind};
use ithaca_env::Time;
use thiserror::Error;

use super::member::Member;
use super::same::Same;
use super::space::holds_any;
use crate::client::{CallError, ClientError};
use crate::layout::{Copy, Layout};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch, LogPos, NodeId};
use crate::server::peers::Peer;
use crate::server::unit_shell::{Copied, UnitShell};
use crate::unit::{Holding, junk};
use crate::wire::{GetTrims, Message, Read, ReceivedRuns, Refusal, StateRef, Trim, Trimmed, Trims};

/// Bytes that are read at a time.
pub(super) const PIECE_BYTES: u32 = 1 << 20;
/// How long a replica may take to give a piece.
pub(super) const PIECE_PATIENCE: Duration = Duration::from_secs(5);

/// How long a replica may take to tell of its trims: the cluster stands still meanwhile.
const TRIMS_PATIENCE: Duration = Duration::from_millis(200);

/// Why a stripe is not copied.
#[derive(Debug, Error)]
pub(super) enum RebuildError {
    /// No replica of it can be reached.
    #[error("no replica of the stripe at {base} can be reached")]
    NoReplica {
        /// Where the stripe begins.
        base: Addr,
    },
    /// The layout has no such stripe.
    #[error("there is no such stripe at {start}")]
    NoStripe {
        /// Where its range would begin.
        start: LogPos,
    },
    /// The replica that would be asked for trims may still take some in the epoch that ends.
    #[error("node {node} was not sealed")]
    NotSealed {
        /// Which.
        node: NodeId,
    },
    /// A trim that reached this node and not the replica: it is completed before the copy is listed.
    #[error("{addr} is trimmed here and not on node {node}")]
    TrimBegun {
        /// Where.
        addr: Addr,
        /// The replica.
        node: NodeId,
    },
    /// A hole could not be decided.
    #[error(transparent)]
    Hole(Box<ClientError>),
    /// A replica did not give a piece.
    #[error("node {node}: {error}")]
    Replica {
        /// Which.
        node: NodeId,
        /// Why.
        error: CallError,
    },
    /// The unit did not take what was copied.
    #[error("the unit: {0}")]
    Unit(Refusal),
    /// Two replicas hold different entries at one address.
    #[error("{addr} holds another entry here than on node {node}")]
    Differs {
        /// Where.
        addr: Addr,
        /// The other replica.
        node: NodeId,
    },
}

impl From<ClientError> for RebuildError {
    fn from(error: ClientError) -> Self {
        Self::Hole(Box::new(error))
    }
}

/// A closed stripe, and a replica of it to copy from.
pub(super) struct Source {
    pub(super) extent: AddrRange,
    peer: Rc<Peer>,
    /// The replicas that serve, in chain order; `peer` is the last.
    replicas: Vec<Rc<Peer>>,
}

impl Source {
    /// The last replica that serves: what it holds is decided.
    fn of(member: &Rc<Member>, layout: &Layout, copy: &Copy) -> Result<Self, RebuildError> {
        let found = layout.stripe_of(copy);
        let (stripe, extent) = found.ok_or(RebuildError::NoStripe { start: copy.start })?;
        let serves = |node: &NodeId| layout.serving().any(|unit| unit == *node);
        let replicas = stripe.replicas.iter().copied().filter(serves);
        let replicas: Vec<_> = replicas.filter_map(|node| member.peer(layout, node)).collect();
        let peer = replicas.last().cloned().ok_or(RebuildError::NoReplica { base: extent.start })?;
        Ok(Self { extent, peer, replicas })
    }

    pub(super) async fn ask<M: Message, R: Message>(
        &self,
        member: &Rc<Member>,
        epoch: Epoch,
        message: &M,
        patience: Duration,
    ) -> Result<(R, Bytes), RebuildError> {
        let answer = self.peer.call::<M, R>(epoch, message, member.env.now() + patience).await;
        let node = self.peer.node();
        answer.map(|(reply, data, _)| (reply, data)).map_err(|error| RebuildError::Replica { node, error })
    }

    /// Completes trims that this node took part in before it was left out, and that did not come to the other replicas: once it
    /// is listed again it says "trimmed", which must be so everywhere.
    async fn trim(
        &self,
        member: &Rc<Member>,
        epoch: Epoch,
        ranges: Vec<AddrRange>,
    ) -> Result<(), RebuildError> {
        let trim = Trim { ranges };
        for peer in &self.replicas {
            let node = peer.node();
            let answer = peer.call::<_, Trimmed>(epoch, &trim, member.env.now() + PIECE_PATIENCE).await;
            answer.map_err(|error| RebuildError::Replica { node, error })?;
        }
        Ok(())
    }

    /// Takes over what the replica says is trimmed. Asked in `epoch`. What is trimmed here and not there is returned, as many ranges
    /// as a request has at the most.
    async fn take_trims(&self, member: &Rc<Member>, epoch: Epoch) -> Result<Vec<AddrRange>, RebuildError> {
        let unit = member.unit()?;
        let (mut extent, mut begun) = (self.extent, Vec::new());
        while !extent.is_empty() {
            let asked = GetTrims { extent };
            let (Trims { ranges }, _) = self.ask(member, epoch, &asked, TRIMS_PATIENCE).await?;
            let own = unit.trimmed_in(extent);
            // Where either has more than this, the next part begins.
            let end = ranges_end(extent, &ranges).min(ranges_end(extent, &own));
            let theirs: RangeSet = ranges.iter().map(|range| range.numbers()).collect();
            let own =
                own.into_iter().filter(|own| own.start < end).map(|own| own.start.0..own.end.min(end).0);
            begun.extend(own.flat_map(|own| theirs.gaps(own)).map(AddrRange::from));
            let copied = Copied { trimmed: ranges, ..Copied::default() };
            unit.restore(epoch, copied).await.map_err(RebuildError::Unit)?;
            extent.start = end;
        }
        begun.truncate(limits::RANGES_MAX_COUNT);
        Ok(begun)
    }
}

/// Up to where `ranges` are all that there are in `extent`: a list that is full may go on.
fn ranges_end(extent: AddrRange, ranges: &[AddrRange]) -> Addr {
    let is_all = ranges.len() < limits::RANGES_MAX_COUNT;
    if is_all { extent.end } else { ranges.last().map_or(extent.end, |last| last.end) }
}

/// Makes the copy that `copy` names. When it returns, all of it is on stable storage here, and nothing of it is undecided. What was
/// copied before is not copied again.
pub(super) async fn make(member: &Rc<Member>, layout: &Layout, copy: &Copy) -> Result<(), RebuildError> {
    let unit = member.unit()?;
    let source = Source::of(member, layout, copy)?;
    // As much as the unit's chain takes at a time, unless the entries have more with them than usual, such as many streams.
    let (bytes_max, mut count_max) = unit.write_limits();
    let limit_bytes = PIECE_BYTES.min(bytes_max as u32);
    // Whatever was copied in an earlier epoch is decided: only trims can have changed it since.
    let mut next = member.copied_up_to(copy).unwrap_or(source.extent.start);
    let mut may_compare = true;
    while next < source.extent.end {
        let began = member.env.now();
        if may_compare {
            // A node of an earlier version has the entries only.
            let same = source.same(member, layout.epoch, next).await.ok();
            may_compare = same.is_some();
            if let Some(Same { end, trimmed, bytes }) = same.filter(|same| same.end > next) {
                let copied = Copied { trimmed, ..Copied::default() };
                unit.restore(layout.epoch, copied).await.map_err(RebuildError::Unit)?;
                next = end;
                member.has_copied(copy, next);
                keep_to_rate(member, began, bytes).await;
                continue;
            }
        }
        let end = source.extent.end.min(Addr(next.0 + count_max as u64));
        let read = Read { limit_bytes, committed: false, ranges: vec![AddrRange::new(next, end)] };
        let (runs, data) = source.ask::<_, ReceivedRuns>(member, layout.epoch, &read, PIECE_PATIENCE).await?;
        let holes: Vec<AddrRange> =
            runs.runs().filter(|run| run.state == StateRef::Unwritten).map(|run| run.range()).collect();
        if !holes.is_empty() {
            decide(member, layout, source.peer.node(), &holes).await?;
            continue;
        }
        let bytes = data.len();
        let (copied, reached) = compare(&unit, source.peer.node(), next, &runs, data).await?;
        if reached == next {
            return Err(RebuildError::Unit(Refusal::Unwritten { addr: next }));
        }
        match unit.restore(layout.epoch, copied).await {
            Err(Refusal::TooLarge { .. }) if reached.0 - next.0 > 1 => {
                count_max = ((reached.0 - next.0) / 2) as usize;
                continue;
            }
            restored => restored.map_err(RebuildError::Unit)?,
        }
        next = reached;
        member.has_copied(copy, next);
        keep_to_rate(member, began, bytes).await;
    }
    loop {
        let begun = source.take_trims(member, layout.epoch).await?;
        if begun.is_empty() {
            return Ok(());
        }
        source.trim(member, layout.epoch, begun).await?;
    }
}

/// Whether this node holds something of the stripe that `copy` names.
pub(super) fn is_begun(member: &Rc<Member>, layout: &Layout, copy: &Copy) -> bool {
    let found = member.unit().ok().zip(layout.stripe_of(copy));
    found.is_some_and(|(unit, (_, extent))| holds_any(&unit, extent))
}

/// Waits until the node may go on that has taken so many bytes since `began`.
async fn keep_to_rate(member: &Member, began: Time, bytes: usize) {
    let share = Duration::from_secs_f64(bytes as f64 / member.options.rebuild_bytes_per_second as f64);
    member.env.sleep_until(began + share).await;
}

/// Has holes decided, as a reader would that meets them: nothing but trims can change a copy then.
async fn decide(
    member: &Rc<Member>,
    layout: &Layout,
    node: NodeId,
    holes: &[AddrRange],
) -> Result<(), RebuildError> {
    let client = member.client().await?;
    for addr in holes.iter().flat_map(|hole| hole.numbers()) {
        if let Some(pos) = layout.position(node, Addr(addr)) {
            client.fill(pos).await?;
        }
    }
    Ok(())
}

/// Takes over what was trimmed since the copy was made, from a replica for which `is_sealed` holds, so that nobody is told of another
/// trim meanwhile. `next` is the epoch that is about to be proposed. An error if this node has a trim that the replica has not.
pub(super) async fn take_last_trims(
    member: &Rc<Member>,
    layout: &Layout,
    next: Epoch,
    copy: &Copy,
    is_sealed: impl Fn(NodeId) -> bool,
) -> Result<(), RebuildError> {
    if member.options.planted.is(PlantedBug::TrimsNotTaken) {
        return Ok(());
    }
    let source = Source::of(member, layout, copy)?;
    let node = source.peer.node();
    if !is_sealed(node) {
        return Err(RebuildError::NotSealed { node });
    }
    match source.take_trims(member, next).await?.first() {
        Some(begun) => Err(RebuildError::TrimBegun { addr: begun.start, node }),
        None => Ok(()),
    }
}

/// Takes over what the replica of a stripe that was written last says is trimmed, in the epoch of `layout`.
pub(super) async fn take_trims(
    member: &Rc<Member>,
    layout: &Layout,
    copy: &Copy,
) -> Result<(), RebuildError> {
    Source::of(member, layout, copy)?.take_trims(member, layout.epoch).await.map(drop)
}

/// What of a replica's runs is not here, or is otherwise here; and where the runs end.
async fn compare(
    unit: &Rc<UnitShell>,
    node: NodeId,
    from: Addr,
    runs: &ReceivedRuns,
    mut data: Bytes,
) -> Result<(Copied, Addr), RebuildError> {
    let mut copied = Copied::default();
    let mut reached = from;
    for run in runs.runs() {
        let range = run.range();
        reached = range.end;
        match run.state {
            StateRef::Unwritten => {}
            StateRef::Trimmed => copied.trimmed.push(range),
            StateRef::Junk { epoch } => {
                match unit.holdings(range).await {
                    Ok(own) => {
                        let is_data = |run: &&Run| run.kind == RunKind::Data;
                        let stored = own.iter().flat_map(|(_, _, runs)| runs).filter(is_data);
                        copied.voided.extend(stored.map(|run| AddrRange::from(run.keys())));
                    }
                    // Whatever stood there.
                    Err(Refusal::Damaged { .. }) => copied.voided.push(range),
                    Err(refusal) => return Err(RebuildError::Unit(refusal)),
                }
                copied.runs.extend(junk(range.numbers(), epoch));
            }
            StateRef::Data { .. } => {
                let run = run.to_run(&mut data).expect("it is entries");
                let lost = check_same(unit, node, &run).await?;
                copied.lost.extend(lost.iter().map(|&addr| AddrRange::new(addr, Addr(addr.0 + 1))));
                copied.runs.push(run);
            }
        }
    }
    Ok((copied, reached))
}

/// Refuses to go on where this unit holds anything but the entries of `run`. What it has lost of them, and can be stored again, is
/// returned.
async fn check_same(unit: &Rc<UnitShell>, node: NodeId, run: &Run) -> Result<Vec<Addr>, RebuildError> {
    match compare_run(unit, node, run).await {
        Err(RebuildError::Unit(Refusal::Damaged { .. })) => {}
        compared => return compared.map(|()| Vec::new()),
    }
    let mut lost = Vec::new();
    for key in run.keys() {
        let part = run.slice(key..key + 1);
        match compare_run(unit, node, &part).await {
            Err(RebuildError::Unit(Refusal::Damaged { addr })) => {
                tracing::warn!(%addr, "an entry of a range that is copied is damaged here");
                let own = unit.chain().describe(key..key + 1).await.unwrap_or_default();
                if own.iter().any(|own| own.table != part.table) {
                    return Err(RebuildError::Differs { addr, node });
                }
                // In a place that is not full yet it stays so, and is read from another replica.
                lost.extend(own.iter().all(|own| own.is_closed).then_some(addr));
            }
            compared => compared?,
        }
    }
    Ok(lost)
}

async fn compare_run(unit: &Rc<UnitShell>, node: NodeId, run: &Run) -> Result<(), RebuildError> {
    let own = unit.holdings(run.keys().into()).await.map_err(RebuildError::Unit)?;
    let expected: BTreeMap<u64, _> = run.keys().zip(run.table.entries()).collect();
    for (part, holding, runs) in own {
        let differs = |addr| RebuildError::Differs { addr: Addr(addr), node };
        if holding == Holding::Voided {
            return Err(differs(part.start.0));
        }
        for own in runs {
            let same = own.kind == RunKind::Data
                && own.keys().zip(own.table.entries()).all(|(key, entry)| expected.get(&key) == Some(&entry));
            if !same {
                return Err(differs(own.first_key));
            }
        }
    }
    Ok(())
}
