//! The chained record log: one log over drives, which stores runs of records and survives crashes.
//!
//! ```text
//!   Chain (shell: tasks, drive)          recover (async, reads only)        inspect (check, dump)
//!     │ inputs          ▲ effects            │
//!     ▼                 │                    ▼
//!   core (pure writer) ─┴─► catalog ◄── judge (pure) ◄── scan
//!     groups, rolling,       what is where, what is released
//!     closing, admission
//! ```
//!
//! * [`Chain`] appends [`Batch`]es of [`Run`]s and reads them back; see it for what is promised.
//! * `format` is every record on the drive, described byte by byte in docs/format/chain.md.
//! * `core` is a pure state machine, so is what recovery decides; both run the same on real and on simulated drives.
//!
//! What it does not do: it does not know what records mean, and it does not check that a key is written once. If keys have
//! versions, an [`Owner`] says which of them are needed.

mod cache;
mod catalog;
mod chain;
mod claims;
mod core;
mod error;
mod foreign;
mod format;
mod inspect;
pub mod limits;
mod links;
mod load;
mod membership;
mod metadata;
mod notary;
mod options;
mod owner;
mod patient;
mod placement;
mod planted;
mod range_set;
mod read;
mod recover;
mod registry;
mod roster;
mod run;
mod sides;
mod victims;
mod watch;

pub use crate::cache::{
    Answered, BlockKey, CacheDrive, CacheError, CacheStats, Found, LineWrite, Lines, Offered, Reads, Recent,
};
pub use crate::core::{Batch, Counters, Ticket};
pub use chain::{Chain, LinkStats, Scrubbed, Source, Stats, Stretch};
pub use error::{
    AppendError, ChainError, ChangeError, Damage, DamageKind, NoRescue, OpenError, PlaceError, ReadError,
};
pub use inspect::{CheckReport, DriveReport, DumpOptions, check, dump, identify};
pub use links::{Drives, index_of, link_of, segment_of};
pub use load::Queue;
pub use membership::{DriveId, SideState};
pub use metadata::{MetadataDrive, MetadataError, MetadataStats};
pub use notary::Notary;
pub use options::{ChainId, ChainOptions, Identity, Label, OptionsError};
pub use owner::{Keys, Opening, Owner, Place, Placed};
pub use placement::Placement;
pub use planted::{Planted, PlantedBug};
pub use range_set::RangeSet;
pub use read::{Described, Heading, RangeEnd, Reading, Record};
pub use recover::{LeftOut, Recovered};
pub use run::{Run, RunKind, RunView, TABLE_ENTRY_BYTES, Table, TableEntry};
pub use victims::{Cleaning, Victims};
