//! Block traces: what a machine asked of its disks. Read from files of two published formats, or generated.

mod generator;
mod msr;
mod vscsi;

use std::io;
use std::path::Path;

pub use generator::{Generator, PROFILES, Profile};

/// Bytes of a block: addresses and lengths are rounded outwards to whole ones.
const BLOCK_BYTES: u64 = 4096;
/// Largest file that is read, in bytes: it is held in memory.
const FILE_MAX_BYTES: u64 = 4 << 30;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it came: nanoseconds since the first one.
    pub at_ns: u64,
    /// A write, or a read.
    pub is_write: bool,
    /// The first block of 4 KiB.
    pub block: u64,
    /// How many blocks.
    pub blocks: u64,
}

/// A request of bytes on a disk. `None` if it asks for nothing or reaches past what 64 bits count.
fn request(at_ns: u64, is_write: bool, offset: u64, bytes: u64) -> Option<Request> {
    let end = offset.checked_add(bytes).filter(|_| bytes > 0)?;
    let block = offset / BLOCK_BYTES;
    Some(Request { at_ns, is_write, block, blocks: end.div_ceil(BLOCK_BYTES) - block })
}

/// Reads a trace: `.csv` in the format of the MSR Cambridge traces, anything else in the binary one of VMware's vscsiStats,
/// as CloudPhysics published them. Errors: the file cannot be read or is too large; or it is not one, which names the line or record.
pub fn read(path: &Path) -> io::Result<Vec<Request>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("trace {}: {error}", path.display()));
    let bytes = ithaca_env::real::files::read(path).map_err(named)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(named(io::Error::other(format!(
            "{} bytes, at most {FILE_MAX_BYTES} are read",
            bytes.len()
        ))));
    }
    let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let requests = if is_csv { msr::parse(&bytes) } else { vscsi::parse(&bytes) };
    requests.map_err(|what| named(io::Error::new(io::ErrorKind::InvalidData, what)))
}
