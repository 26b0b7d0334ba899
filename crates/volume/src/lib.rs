//! A volume: blocks of 4 KiB with transactions and old versions, on the same chain as the log.
//!
//! ```text
//!   Volume (shell: tasks, waiting) ── Tx, Snapshot: handles on it
//!     │ decides                 │ looks up              │ appends, reads, is told
//!     ▼                         ▼                       ▼
//!   tx (pure)                 index (pure)            ithaca_chain: one group a commit, records (block, version)
//!     who conflicts with whom   which version lies where
//! ```
//!
//! * A commit is one batch of the chain: all of it is there after a crash, or nothing. Its version is its place in the order of commits.
//! * The index holds one word a block, and more only for blocks with several versions that are still needed.
//! * [`stale`] gives those who do not need the newest version of a block the one that is fastest to read; docs/protocol/stale.md.
//! * `state` is the volume's own record in the chain, described in docs/format/volume.md; docs/protocol/volume.md has the steps.
//!
//! Source: Isotope (transactions at the block layer) and Yogurt (old versions as a way to faster reads).

mod error;
pub mod fuse;
mod index;
mod kept;
pub mod limits;
pub mod nbd;
mod options;
mod owner;
mod parts;
mod planted;
mod received;
mod region;
mod room;
mod serving;
pub mod socket;
pub mod stale;
mod state;
mod tx;
mod volume;

pub use error::{CommitError, StateError, TxError, VolumeError};
pub use options::{Durability, Isolation, Retention, Version, VolumeOptions, VolumeSettings};
pub use planted::{Planted, PlantedBug};
pub use region::Region;
pub use tx::TxCounters;
pub use volume::{
    Extents, Heir, Info, Memory, Snapshot, Taker, Tx, TxHandle, TxOptions, Volume, VolumeCounters,
};
