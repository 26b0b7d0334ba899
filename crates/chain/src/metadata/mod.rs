//! A metadata drive: the footers of closed segments once more, beside each other, so that an open reads one drive in order.
//!
//! ```text
//!   segment closed, durably ─► its footer and trailer ─► an entry on the metadata drive
//!   open: heads of the entries ─► the headers of those segments say the same lap? ─► footers from here
//!                                         └ no, or no entry: from the chain's drives
//! ```

mod drive;
mod known;
mod slots;

pub(crate) use drive::{FooterRead, Share};
pub use drive::{MetadataDrive, MetadataError, MetadataStats};
pub(crate) use known::Known;
