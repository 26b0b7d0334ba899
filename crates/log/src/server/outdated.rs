//! A node on an older copy of its data, as a snapshot of a virtual machine is that was put back: found where layouts prove it.
//!
//! ```text
//!   layout    5 ─────► 6 ─────► 7        the active range of 7 names node 3:
//!   sealed       5        6              it was sealed in 6 before 7 was proposed, and its answer was durable
//!                ▲
//!                └─ a copy of node 3 that was made here says 5, and is told of 7
//! ```
//!
//! That is no proof of the contrary: a copy that has sealed all that is known of is taken for new. (docs/protocol/reconfigure.md)

use thiserror::Error;

use super::layouts::LayoutKeeper;
use super::unit_shell::UnitShell;
use crate::pos::{Epoch, NodeId};

/// A unit that has forgotten what it told its cluster. What it has promised and stored since then is gone, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the data of node {} is older than what it told its cluster: it has sealed epoch {}, and had sealed epoch {}; \
     start it with an empty data directory and use `cluster replace`",
    node.0,
    found.0,
    told.0
)]
pub struct Outdated {
    /// The node.
    pub node: NodeId,
    /// The epoch that its unit has sealed.
    pub found: Epoch,
    /// The epoch that it had sealed, at least.
    pub told: Epoch,
}

/// Refuses the unit of `node` if by the layouts that `known` has it had sealed a newer epoch than it has. Where groups of its chain are lost that
/// may have said what it has sealed, it was not opened.
pub(super) fn check(known: &LayoutKeeper, node: NodeId, unit: &UnitShell) -> Result<(), Outdated> {
    let found = unit.sealed();
    match known.sealed_by(node).filter(|&told| told > found) {
        Some(told) => Err(Outdated { node, found, told }),
        None => Ok(()),
    }
}
