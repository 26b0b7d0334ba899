//! A node that is one of a cluster of processes: it beats to the others, learns layouts, and proposes new ones.
//!
//! ```text
//!   beats ──► detector ──► supervise ──► reconfigure: prepare, seal, tail, propose, learn
//!                              ▲                                                     │
//!                              └───────── apply: sequencer, forwarder, peers ◄───────┘ every node that learns it
//! ```
//!
//! What decides lies in pure cores: [`Detector`], the acceptor and the proposer, [`Layout::change`], the unit. Here they are
//! connected. Any node may propose, at any time; the acceptors decide one layout an epoch (docs/protocol/reconfigure.md).

mod member;
mod peer;
mod reconfigure;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ithaca_chain::ChainOptions;

use super::caches::CacheOptions;
use crate::detector::Timing;
use crate::limits;
use crate::planted::Planted;
use crate::pos::NodeId;
use crate::unit::UnitOptions;

/// How a node of a cluster is set up.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its id, which no other node of the cluster has.
    pub id: NodeId,
    /// Where its register lies, and the drives that `drives` does not name.
    pub data: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The drives of its unit, in the order of its chain; `A+B` names the sides of a mirrored one.
    pub drives: Vec<PathBuf>,
    /// Bytes that a new drive is created with.
    pub create_bytes: u64,
    /// A cache drive, if there is one.
    pub cache: Option<CacheOptions>,
    /// How its chain is set up.
    pub chain: ChainOptions,
    /// How its unit is set up.
    pub unit: UnitOptions,
    /// Batches whose grants its sequencer remembers.
    pub remembered_max: usize,
    /// How long things take until they count.
    pub timing: Timing,
    /// A fault to put in force.
    pub planted: Planted,
}

impl NodeOptions {
    /// A node with its data in `data`, listening at `listen`, everything else as by default.
    pub fn new(id: NodeId, data: &Path, listen: SocketAddr) -> Self {
        Self {
            id,
            data: data.to_owned(),
            listen,
            drives: Vec::new(),
            create_bytes: 1 << 30,
            cache: None,
            chain: ChainOptions::default(),
            unit: UnitOptions::default(),
            remembered_max: limits::SEQUENCER_REMEMBERED_MAX_COUNT,
            timing: Timing::default(),
            planted: Planted::NONE,
        }
    }
}
