//! What a node may say of an epoch: "unwritten" and "the tail is" hold only while it is certain that there is no later one.
//!
//! A cluster in one process is the only one that could begin a later epoch, and needs nobody's leave. A node of a cluster of
//! processes holds a lease from a majority of the acceptors (docs/protocol/reconfigure.md).

use std::cell::RefCell;
use std::rc::Rc;

use ithaca_env::{Env, Time};

use crate::layout::{Layout, LeaseHolder};
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Epoch, NodeId};
use crate::wire::Refusal;

/// A node's leave to say what is not there.
pub(super) struct Leases {
    env: Env,
    /// None if it needs none.
    held: Option<RefCell<Option<LeaseHolder>>>,
    planted: Planted,
}

impl Leases {
    /// For a node that needs nobody's leave.
    pub(super) fn not_needed(env: &Env) -> Rc<Self> {
        Rc::new(Self { env: env.clone(), held: None, planted: Planted::NONE })
    }

    /// For a node that has to ask; it may say nothing yet.
    pub(super) fn needed(env: &Env, planted: Planted) -> Rc<Self> {
        Rc::new(Self { env: env.clone(), held: Some(RefCell::default()), planted })
    }

    /// From here on leave is needed for the epoch of `layout`.
    pub(super) fn renew(&self, layout: &Layout) {
        if let Some(held) = &self.held {
            held.replace(Some(LeaseHolder::new(layout, self.planted)));
        }
    }

    /// An acceptor has granted the lease on `epoch` that it was asked for at `asked_at`.
    pub(super) fn granted(&self, epoch: Epoch, from: NodeId, asked_at: Time) {
        let now = self.env.now();
        let mut held = self.held.as_ref().map(|held| held.borrow_mut());
        if let Some(holder) = held.as_mut().and_then(|held| held.as_mut())
            && holder.epoch() == epoch
        {
            holder.granted(from, asked_at, now);
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

    use super::*;
    use crate::layout::Node;
    use crate::pos::ClusterId;
    use crate::wire::Roles;

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
