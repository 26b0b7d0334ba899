//! Records of this program that stand in the log and are not taken yet, because something before them in the stream is not reflected.
//!
//! They save reading what was just written. A program that only writes never takes them, so they are few and small together; beyond,
//! records are read from the log.

use std::collections::BTreeMap;
use std::rc::Rc;

use ithaca_log::pos::LogPos;

use crate::record::Record;

/// Records that wait,
const MAX_COUNT: usize = 1024;
/// and the bytes of their calls.
const MAX_BYTES: usize = 16 << 20;

/// Records by their positions.
#[derive(Default)]
pub(super) struct Ahead {
    records: BTreeMap<LogPos, One>,
    bytes: usize,
}

struct One {
    /// The position that was granted for the stream before it.
    previous: Option<LogPos>,
    record: Rc<Record>,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Keeps a record that stands at `pos`, and the one granted before it in the stream at `previous`; if there is room.
    pub(super) fn keep(&mut self, pos: LogPos, previous: Option<LogPos>, record: &Rc<Record>) {
        let bytes = bytes_of(record);
        if self.records.len() < MAX_COUNT && self.bytes + bytes <= MAX_BYTES {
            let before = self.records.insert(pos, One { previous, record: Rc::clone(record) });
            self.bytes += bytes - before.map_or(0, |before| bytes_of(&before.record));
        }
    }

    /// The first record, if nothing is missing before it where everything below `upto` is reflected. Those that are reflected go.
    pub(super) fn next(&mut self, upto: LogPos) -> Option<(LogPos, Rc<Record>)> {
        loop {
            let first = self.records.first_entry()?;
            let pos = *first.key();
            if pos >= upto && first.get().previous.is_some_and(|previous| previous >= upto) {
                return None;
            }
            let record = first.remove().record;
            self.bytes -= bytes_of(&record);
            if pos >= upto {
                return Some((pos, record));
            }
        }
    }
}

fn bytes_of(record: &Record) -> usize {
    record.calls.iter().map(|call| call.method.len() + call.arguments.len()).sum()
}
