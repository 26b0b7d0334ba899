//! Nodes without room: the cluster goes on with those that have some, as long as these are enough for the copies
//! (docs/protocol/reconfigure.md).
//!
//! * A node that has no room says so in its beats, and proposes itself to be taken out of the active range. It has itself put back
//!   when it has had room again for a while.
//! * Where too few have room, the sequencer refuses appends as full, at once, until some have it again.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;

use super::member::Member;
use crate::layout::{Layout, Node, NodeState as Standing};
use crate::planted::PlantedBug;
use crate::pos::NodeId;
use crate::wire::NodeState;

/// What a node knows of its own room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Whether it has told the others that it has none.
    is_full: bool,
    /// Since when it has had some.
    since: Option<Time>,
}

impl Room {
    /// Whether it has none.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes a look at `now`; whether that is news.
    pub(super) fn look(&mut self, now: Time, is_full: bool) -> bool {
        self.since = if is_full { None } else { self.since.or(Some(now)) };
        std::mem::replace(&mut self.is_full, is_full) != is_full
    }

    /// Whether it has had room for so long.
    fn has_some(&self, now: Time, for_span: Duration) -> bool {
        self.since.is_some_and(|since| now.since(since) >= for_span)
    }
}

/// Looks whether this node has room, and says it to the others if that is news.
pub(super) fn look(member: &Rc<Member>) {
    let is_full = member.node.storing().is_some_and(|unit| unit.chain().is_full());
    let is_told = is_full && !member.options.planted.is(PlantedBug::FullNotTold);
    if member.room.borrow_mut().look(member.env.now(), is_told) {
        tracing::info!(node = member.options.id.0, is_full = is_told, "room for entries");
        member.stirred.ring();
    }
}

/// Has the sequencer, if this node is it, refuse appends while too few units have room for the copies.
pub(super) fn guard(member: &Member, layout: &Layout) {
    let full = full(member);
    let units: BTreeSet<NodeId> = layout.units().collect();
    let with_room = units.difference(&full).count();
    let is_full = with_room < units.len() && with_room < usize::from(layout.replicas);
    if let Some(sequencer) = member.node.sequencer.borrow_mut().as_mut() {
        sequencer.set_full(is_full);
    }
}

/// This node as it should stand in the layout after `layout`, if that is otherwise than it does, because it has no room any
/// more or has some again. `own` is how it stands; one that is out is asked for how it comes back.
pub(super) fn standing(member: &Member, layout: &Layout, own: &Node) -> Option<Node> {
    let room = *member.room.borrow();
    let state = match own.state {
        Standing::Full if member.options.planted.is(PlantedBug::FullStaysOut) => return None,
        Standing::Full if room.has_some(member.env.now(), member.options.timing.return_after) => {
            Standing::InUse
        }
        Standing::InUse | Standing::Out if room.is_full() && are_others_enough(member, layout) => {
            Standing::Full
        }
        Standing::Out => Standing::InUse,
        _ => return None,
    };
    Some(Node { state, ..own.clone() })
}

/// Whether the units that have room are enough for the copies without this node.
fn are_others_enough(member: &Member, layout: &Layout) -> bool {
    let (me, full) = (member.options.id, full(member));
    let others = layout.units().filter(|unit| *unit != me && !full.contains(unit));
    others.count() >= usize::from(layout.replicas)
}

/// Nodes that have no room, as far as they have said so.
fn full(member: &Member) -> BTreeSet<NodeId> {
    let mut full = member.detector.borrow().full();
    if member.account().state == NodeState::Full {
        full.insert(member.options.id);
    }
    full
}
