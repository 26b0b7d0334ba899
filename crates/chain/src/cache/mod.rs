//! Caches for reads: in memory recent groups as they were written and parts of footers, and behind these lines on a cache
//! drive. All are bounded by bytes, and none is needed: what is not here is on the drives of the chain.
//!
//! ```text
//!   durable group ─► memory (FIFO) ─► what is still needed of it ─► lines of a cache drive (LRU)
//!   read:              1. look        │ 3. the same lines         4. the chain's own drive ─► lines
//!                                     └─► 2. blocks by their places (LRU)     ◄─┘
//! ```

mod drive;
mod finder;
mod footers;
mod lines;
mod lru;
mod read_cache;
mod reading;
mod recency;
mod recent;
mod share;
mod tail;

pub use drive::{CacheDrive, CacheError, CacheStats};
pub(crate) use footers::{FooterCache, FooterPart, PartKey};
pub use lines::{BlockKey, Found, LineWrite, Lines, Offered};
pub(crate) use read_cache::ReadCache;
pub(crate) use reading::CacheRead;
pub use recent::Recent;
pub use share::{Answered, Reads};
pub(crate) use share::{ReadCounters, Share};
pub(crate) use tail::{GroupImage, TailCache, Written};
