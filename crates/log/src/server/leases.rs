//! What a node may say of an epoch: "unwritten" and "the tail is" hold only while it is certain that there is no later one.
//!
//! A cluster in one process is the only one that could begin a later epoch, and needs nobody's leave. A node of a cluster of
//! processes holds a lease from a majority of the acceptors (docs/protocol/reconfigure.md).
//!
//! What is there needs no lease, but for one thing: it may have been trimmed. So the same grants give leave to *show* committed
//! entries in an epoch that is over, for longer, and where a replica may have been left out trims wait until its leave has ended
//! (docs/protocol/read.md).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::{Env, Time};

use crate::layout::{Layout, LeaseHolder};
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Addr, Epoch, NodeId};
use crate::wire::Refusal;

/// A node's leave to say what is not there.
pub(super) struct Leases {
    env: Env,
    /// None if it needs none.
    held: Option<RefCell<Option<LeaseHolder>>>,
    /// When the latest grants of a majority were asked for, in whatever epoch.
    asked: Cell<Option<Time>>,
    /// Who holds what, by the newest layout.
    replicas: RefCell<BTreeSet<(Addr, NodeId)>>,
    /// No replica that a layout has left out shows anything from here on.
    all_told_at: Cell<Time>,
    planted: Planted,
}

/// How long committed entries may be shown after the question for the lease.
const SHOW: Duration = Duration::from_millis(limits::SHOW_MS);
/// How long trims wait for that.
const SHOW_WAIT: Duration = Duration::from_millis(limits::SHOW_WAIT_MS);

impl Leases {
    /// For a node that needs nobody's leave.
    pub(super) fn not_needed(env: &Env) -> Rc<Self> {
        Self::new(env, None, Planted::NONE)
    }

    /// For a node that has to ask; it may say nothing yet.
    pub(super) fn needed(env: &Env, planted: Planted) -> Rc<Self> {
        Self::new(env, Some(RefCell::default()), planted)
    }

    fn new(env: &Env, held: Option<RefCell<Option<LeaseHolder>>>, planted: Planted) -> Rc<Self> {
        let (asked, replicas, all_told_at) = (Cell::default(), RefCell::default(), Cell::new(env.now()));
        Rc::new(Self { env: env.clone(), held, asked, replicas, all_told_at, planted })
    }

    /// From here on leave is needed for the epoch of `layout`.
    pub(super) fn renew(&self, layout: &Layout) {
        let Some(held) = &self.held else { return };
        let before = held.replace(Some(LeaseHolder::new(layout, self.planted)));
        let stripes = || layout.ranges.iter().flat_map(|range| &range.stripes);
        let replicas: BTreeSet<(Addr, NodeId)> =
            stripes().flat_map(|stripe| stripe.replicas.iter().map(|node| (stripe.base, *node))).collect();
        let is_next = before.is_some_and(|before| layout.epoch <= before.epoch().next());
        // A stripe that is gone was trimmed, or nothing was in it.
        let bases: BTreeSet<Addr> = stripes().map(|stripe| stripe.base).collect();
        let is_left_out = |known: &&(Addr, NodeId)| bases.contains(&known.0) && !replicas.contains(known);
        let none_left_out = is_next && !self.replicas.borrow().iter().any(|known| is_left_out(&known));
        // Nobody was in the first layout's place.
        if !none_left_out && layout.epoch > Epoch(1) {
            self.all_told_at.set(self.env.now() + SHOW_WAIT);
        }
        self.replicas.replace(replicas);
    }

    /// When a trim of `epoch` may be carried out: no replica that is not told of it shows anything from then on. Now, if it may be now.
    pub(super) fn trims_from(&self, epoch: Epoch) -> Time {
        let now = self.env.now();
        let Some(held) = &self.held else { return now };
        if self.planted.is(PlantedBug::TrimNotHeld) {
            return now;
        }
        match held.borrow().as_ref() {
            Some(holder) if holder.epoch() >= epoch => self.all_told_at.get().max(now),
            // The layout of that epoch was decided before somebody asked in it.
            _ => now + SHOW_WAIT,
        }
    }

    /// Whether committed entries may be shown in an epoch that is over, or to whoever does not know which epoch it is. To be asked right
    /// before they are.
    pub(super) fn may_show(&self) -> bool {
        self.held.is_none() || self.asked.get().is_some_and(|asked| self.env.now() < asked + SHOW)
    }

    /// An acceptor has granted the lease on `epoch` that it was asked for at `asked_at`.
    pub(super) fn granted(&self, epoch: Epoch, from: NodeId, asked_at: Time) {
        let now = self.env.now();
        let mut held = self.held.as_ref().map(|held| held.borrow_mut());
        if let Some(holder) = held.as_mut().and_then(|held| held.as_mut())
            && holder.epoch() == epoch
        {
            holder.granted(from, asked_at, now);
            self.asked.set(self.asked.get().max(holder.asked()));
        }
    }

    /// Refuses to say of `epoch` what is not there, unless it is certain now. To be asked right before it is said.
    pub(super) fn check(&self, epoch: Epoch) -> Result<(), Refusal> {
        let Some(held) = &self.held else { return Ok(()) };
        let held = held.borrow();
        let is_ignored = self.planted.is(PlantedBug::LeaseIgnored);
        let is_valid = is_ignored || held.as_ref().is_some_and(|holder| holder.valid(epoch, self.env.now()));
        if is_valid { Ok(()) } else { Err(Refusal::NoLease { epoch }) }
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::real;
    use ithaca_env::sim::Sim;

    use super::*;
    use crate::layout::{Change, Node};
    use crate::pos::{ClusterId, LogPos};
    use crate::wire::Roles;

    /// Three nodes, each entry on two; `out` has gone after the first epoch.
    fn layouts(out: NodeId) -> (Layout, Layout) {
        let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
        let nodes = (1..=3).map(|id| Node::new(NodeId(id), roles, format!("unit:{id}"))).collect();
        let first = Layout::first(ClusterId(7), nodes, 2, 1).expect("three nodes");
        let next = Change { lost: vec![out], ..Change::default() };
        let next = first.change(LogPos(30), &next).expect("two are left");
        (first, next)
    }

    #[test]
    fn trims_wait_where_a_replica_was_left_out_and_nowhere_else() {
        // It might show what was trimmed without it.
        let sim = Sim::new(1);
        let process = sim.process("node", [10, 0, 0, 1].into());
        let env = sim.env(process);
        let (first, second) = layouts(NodeId(3));
        let third = second.next_epoch(LogPos(40));
        let wait = |planted, layouts: &[&Layout], epoch| {
            let leases = Leases::needed(&env, planted);
            layouts.iter().for_each(|layout| leases.renew(layout));
            leases.trims_from(Epoch(epoch)).since(env.now())
        };
        assert_eq!(wait(Planted::NONE, &[&first], 1), Duration::ZERO);
        assert_eq!(wait(Planted::NONE, &[&first, &second], 2), SHOW_WAIT);
        assert_eq!(wait(Planted::NONE, &[&first, &second, &third], 3), SHOW_WAIT, "still");
        assert_eq!(wait(Planted::NONE, &[&second], 2), SHOW_WAIT, "what was before is not known");
        assert_eq!(wait(Planted::NONE, &[&first], 2), SHOW_WAIT, "the layout is not known here");
        assert_eq!(wait(Planted::NONE, &[&first, &first.next_epoch(LogPos(9))], 2), Duration::ZERO);
        assert_eq!(wait(Planted::bug(PlantedBug::TrimNotHeld), &[&first, &second], 2), Duration::ZERO);
        assert_eq!(Leases::not_needed(&env).trims_from(Epoch(9)), env.now());
    }

    #[test]
    fn committed_entries_are_shown_for_longer_than_the_lease_and_not_for_ever() {
        let sim = Sim::new(1);
        let process = sim.process("node", [10, 0, 0, 1].into());
        let env = sim.env(process);
        let leases = Leases::needed(&env, Planted::NONE);
        leases.renew(&layout());
        assert!(!leases.may_show(), "nobody has granted anything");
        leases.granted(Epoch(1), NodeId(1), env.now());
        leases.renew(&layout().next_epoch(LogPos(3)));
        sim.run_for(SHOW * 9 / 10);
        assert!(leases.may_show() && leases.check(Epoch(1)).is_err());
        sim.run_for(SHOW / 5);
        assert!(!leases.may_show());
        assert!(Leases::not_needed(&env).may_show());
    }

    fn layout() -> Layout {
        let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
        Layout::single(ClusterId(7), Node::new(NodeId(1), roles, "unit:1".to_owned()))
    }

    #[test]
    fn nothing_is_said_to_be_missing_before_the_acceptors_have_granted_it_nor_in_another_epoch() {
        real::run(|env| async move {
            let leases = Leases::needed(&env, Planted::NONE);
            leases.renew(&layout());
            assert_eq!(leases.check(Epoch(1)), Err(Refusal::NoLease { epoch: Epoch(1) }));
            leases.granted(Epoch(1), NodeId(1), env.now());
            assert_eq!(leases.check(Epoch(1)), Ok(()));
            assert_eq!(leases.check(Epoch(2)), Err(Refusal::NoLease { epoch: Epoch(2) }));
            assert_eq!(Leases::not_needed(&env).check(Epoch(1)), Ok(()));
        });
    }

    #[test]
    fn the_planted_fault_of_a_lease_shows() {
        real::run(|env| async move {
            let leases = Leases::needed(&env, Planted::bug(PlantedBug::LeaseIgnored));
            leases.renew(&layout());
            assert_eq!(leases.check(Epoch(1)), Ok(()), "nobody has granted it");
        });
    }
}
