//! Repair between replicas: what a unit holds by its account and has lost, because its drives were harmed, is copied from another
//! replica of the stripe (docs/protocol/rebuild.md).
//!
//! * Records that readers or the scrub found damaged are known to the chain. Of groups that are lost as a whole nobody knows what
//!   was in them: then all that the unit should have is compared with what its chain has.
//! * What the other replicas hold is stored if it is what was lost, as far as that is known, and if they agree. What differs
//!   is named and left as it is.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_chain::{Damage, Described, RangeSet, Run};
use ithaca_env::task::race;

use super::member::Member;
use crate::client::CallError;
use crate::entry::EntryMeta;
use crate::layout::Layout;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, NodeId};
use crate::server::unit_shell::{Copied, UnitShell};
use crate::unit::junk;
use crate::wire::{Read, ReceivedRuns, Refusal, StateRef};

/// Addresses that are tried in one pass.
const PASS_MAX: usize = 4096;
/// How long a replica may take to give an entry.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer that holds one entry.
const LIMIT_BYTES: u32 = 1;

/// What came of it, since the node started.
#[derive(Default)]
pub(in crate::server) struct Repairs {
    /// Addresses that were found to be lost.
    pub(in crate::server) found: Cell<u64>,
    /// Those that are there again.
    pub(in crate::server) repaired: Cell<u64>,
    /// Those that could not be repaired when they were looked at last.
    pub(in crate::server) open: Cell<u64>,
}

/// Why a lost address was not repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unrepaired {
    /// No other replica that can be asked holds it, or not yet all of those that are written before this one.
    NoCopy,
    /// Its place is not closed yet, or the unit did not take it now.
    Later,
    /// What replicas hold is not what was lost, or not the same.
    Differs,
}

/// What another replica holds.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Record(Run),
    Trimmed,
    Unwritten,
    /// It has lost it as well.
    Damaged,
}

/// What is known to be lost and is not repaired, and what it was looked for in.
#[derive(Default)]
struct Known {
    lost: RangeSet,
    /// How many addresses these are.
    count: u64,
    /// The one behind that was tried last.
    next: u64,
    /// Where groups are lost, and the epoch, when what they held was found last.
    looked: Option<(Vec<Damage>, u64)>,
}

impl Known {
    /// Adds what was found to be lost; how much of it was not known.
    fn add(&mut self, lost: &RangeSet) -> u64 {
        let added = lost.ranges().map(|range| self.lost.insert(range)).sum();
        self.count += added;
        added
    }

    /// An address is repaired, or not needed any more.
    fn remove(&mut self, addr: u64) {
        self.count -= self.lost.remove(addr..addr + 1);
    }

    /// What a pass tries: it goes on behind the one before, and then from the lowest address on, so that those which cannot be repaired keep
    /// no others from it.
    fn next_pass(&self) -> Vec<u64> {
        let behind = self.lost.overlaps(self.next..u64::MAX);
        behind.chain(self.lost.overlaps(0..self.next)).flatten().take(PASS_MAX).collect()
    }
}

/// Repairs what is lost, for as long as the member lives.
pub(super) async fn repair_lost(member: Weak<Member>) {
    let mut known = Known::default();
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, keeper) = (strong.env.clone(), Rc::clone(&strong.keeper));
        let (ticket, every) = (keeper.changed().ticket(), strong.options.repair_every);
        if let (Some(layout), Ok(unit)) = (keeper.latest(), strong.unit())
            && unit.check_epoch(layout.epoch).is_ok()
        {
            pass(&strong, &layout, &unit, &mut known).await;
        }
        drop(strong);
        race(keeper.changed().after(ticket), env.sleep(every)).await;
    }
}

/// Finds what is lost, and tries as much of it as is tried together, unless a newer layout comes first.
async fn pass(member: &Rc<Member>, layout: &Layout, unit: &Rc<UnitShell>, known: &mut Known) {
    let repairs = &member.node.counters.repairs;
    let lost = find(member, layout, unit, known).await;
    repairs.found.set(repairs.found.get() + known.add(&lost));
    let mut silent = BTreeSet::new();
    for addr in known.next_pass() {
        if member.epoch() > layout.epoch {
            break;
        }
        known.next = addr + 1;
        let began = member.env.now();
        let stripe = layout.stripe_at(member.options.id, Addr(addr));
        let is_needed = stripe.is_some() && unit.is_stored(Addr(addr));
        let outcome = match stripe.filter(|_| is_needed) {
            // It was trimmed, or is others' by now.
            None => Ok(0),
            Some(stripe) => repair(member, layout, unit, &stripe.replicas, Addr(addr), &mut silent).await,
        };
        match outcome {
            Ok(bytes) => {
                known.remove(addr);
                unit.chain().forget_damage(addr..addr + 1);
                repairs.repaired.set(repairs.repaired.get() + u64::from(is_needed));
                let share = bytes as f64 / member.options.rebuild_bytes_per_second as f64;
                member.env.sleep_until(began + Duration::from_secs_f64(share)).await;
            }
            Err(Unrepaired::Differs) => {
                tracing::error!(node = member.options.id.0, addr, "replicas do not hold what was lost here");
            }
            Err(why) => tracing::info!(node = member.options.id.0, addr, ?why, "not repaired yet"),
        }
    }
    repairs.open.set(known.count);
}

/// Addresses of this node's stripes that have lost what they held.
async fn find(member: &Member, layout: &Layout, unit: &Rc<UnitShell>, known: &mut Known) -> RangeSet {
    let (damaged, has_lost_groups) = unit.chain().damaged_keys();
    let mut lost = RangeSet::new();
    let lost_groups = unit.chain().stats().damage.into_iter().filter(Damage::is_of_groups);
    let looked = Some((lost_groups.collect(), layout.epoch.0));
    let looks = has_lost_groups && known.looked != looked;
    if damaged.is_empty() && !looks {
        return lost;
    }
    let mut is_all = true;
    for extent in layout.extents_of(member.options.id) {
        for stored in unit.stored_parts(extent) {
            damaged.overlaps(stored.numbers()).for_each(|keys| _ = lost.insert(keys));
            if !looks {
                continue;
            }
            let Ok(described) = unit.chain().describe(stored.numbers()).await else {
                // The next pass looks again.
                is_all = false;
                continue;
            };
            let held = described.iter().map(Described::keys).collect::<RangeSet>();
            // Not what was trimmed meanwhile.
            let gone = held.gaps(stored.numbers()).flat_map(|gap| unit.stored_parts(gap.into()));
            gone.for_each(|part| _ = lost.insert(part.numbers()));
        }
    }
    if looks && is_all {
        known.looked = looked;
    }
    lost
}

/// Copies one address from another replica; its bytes.
async fn repair(
    member: &Rc<Member>,
    layout: &Layout,
    unit: &Rc<UnitShell>,
    replicas: &[NodeId],
    addr: Addr,
    silent: &mut BTreeSet<NodeId>,
) -> Result<usize, Unrepaired> {
    let own = unit.chain().describe(addr.0..addr.0 + 1).await.map_err(|_| Unrepaired::Later)?;
    let own = own.into_iter().next();
    if own.as_ref().is_some_and(|own| !own.is_closed) {
        return Err(Unrepaired::Later);
    }
    let mut found: Option<Run> = None;
    let mut is_before = true;
    for &node in replicas {
        if node == member.options.id {
            is_before = false;
            continue;
        }
        match ask(member, layout, node, addr, silent).await {
            Some(Held::Record(run)) => match &found {
                Some(other) if !is_same(other, &run) => return Err(Unrepaired::Differs),
                _ => found = Some(run),
            },
            Some(Held::Damaged) => {}
            // Were this copy there before that of a replica that is written earlier, it could be the only one.
            Some(Held::Unwritten) | None if is_before => return Err(Unrepaired::NoCopy),
            // A trim goes from replica to replica in their order: this one is next.
            Some(Held::Trimmed) if is_before => return trim(layout, unit, addr).await,
            Some(Held::Trimmed) => return Err(Unrepaired::Later),
            Some(Held::Unwritten) | None => {}
        }
    }
    let run = found.ok_or(Unrepaired::NoCopy)?;
    let is_checked = !member.options.planted.is(PlantedBug::RepairUnchecked);
    store(layout, unit, own.filter(|_| is_checked), run).await
}

/// Completes a trim that has come to a replica before this one: what was lost is not wanted any more.
async fn trim(layout: &Layout, unit: &Rc<UnitShell>, addr: Addr) -> Result<usize, Unrepaired> {
    let copied = Copied { trimmed: vec![AddrRange::new(addr, Addr(addr.0 + 1))], ..Copied::default() };
    unit.restore(layout.epoch, copied).await.map_err(|_| Unrepaired::Later)?;
    Ok(0)
}

/// Stores what was lost, if it is that; its bytes.
async fn store(
    layout: &Layout,
    unit: &Rc<UnitShell>,
    own: Option<Described>,
    run: Run,
) -> Result<usize, Unrepaired> {
    if own.as_ref().is_some_and(|own| (own.kind, &own.table) != (run.kind, &run.table)) {
        return Err(Unrepaired::Differs);
    }
    let (keys, bytes) = (run.keys(), run.data.len());
    let expected = run.table.clone();
    // The same record has the same version, also in a second place.
    let run = Run { version: own.map_or(run.version, |own| own.version), ..run };
    let copied = Copied { runs: vec![run], lost: vec![keys.clone().into()], ..Copied::default() };
    unit.restore(layout.epoch, copied).await.map_err(|_| Unrepaired::Later)?;
    let held = unit.holdings(keys.into()).await.map_err(|_| Unrepaired::Later)?;
    let is_there = held.iter().flat_map(|(_, _, runs)| runs).any(|run| run.table == expected);
    if is_there { Ok(bytes) } else { Err(Unrepaired::Later) }
}

/// What another replica holds at an address; `None` if it cannot be asked. One that gives no answer joins those that are `silent`, which are
/// not waited for.
async fn ask(
    member: &Rc<Member>,
    layout: &Layout,
    node: NodeId,
    addr: Addr,
    silent: &mut BTreeSet<NodeId>,
) -> Option<Held> {
    let peer = member.peer(layout, node).filter(|_| !silent.contains(&node))?;
    let read = Read {
        limit_bytes: LIMIT_BYTES,
        committed: false,
        ranges: vec![AddrRange::new(addr, Addr(addr.0 + 1))],
    };
    let answer = peer.call::<_, ReceivedRuns>(layout.epoch, &read, member.env.now() + PATIENCE).await;
    let (runs, mut data, _) = match answer {
        Ok(answer) => answer,
        Err(CallError::Refused(Refusal::Damaged { .. })) => return Some(Held::Damaged),
        Err(CallError::Refused(_)) => return None,
        Err(_) => {
            silent.insert(node);
            return None;
        }
    };
    let run = runs.runs().next().filter(|run| run.addr == addr)?;
    match run.state {
        StateRef::Unwritten => Some(Held::Unwritten),
        StateRef::Trimmed => Some(Held::Trimmed),
        StateRef::Junk { epoch } => junk(addr.0..addr.0 + 1, epoch).next().map(Held::Record),
        StateRef::Data { .. } => {
            let run = run.to_run(&mut data)?;
            run.table.first_mismatch(&run.data).is_none().then_some(Held::Record(run))
        }
    }
}

/// Whether two replicas hold the same append. The epochs in which they stored it may differ, and how much of its batch came with it.
fn is_same(one: &Run, other: &Run) -> bool {
    let whose = |run: &Run| {
        let meta = EntryMeta::decode(&run.meta).unwrap_or_default();
        (meta.client, meta.request_at(Addr(run.first_key)))
    };
    (one.kind, &one.table, whose(one)) == (other.kind, &other.table, whose(other))
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
