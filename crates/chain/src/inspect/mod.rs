//! Looking at a chain without changing it: the check of every checksum, and a readable dump.

mod cache;
mod check;
mod dump;
mod metadata;

pub(crate) use check::is_footer_good;
pub use check::{CheckReport, DriveReport, check, identify};
pub use dump::{DumpOptions, dump};
