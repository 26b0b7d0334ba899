//! What happened, as a running hash and on demand as lines.

use std::fmt;

use crate::Time;

use crate::mix::mix;

/// One delivered event. `entity` and `detail` depend on the kind and are numbers only, so that hashing is cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Timer,
    DriveStart,
    DriveDone,
    DriveFault,
    DriveCrash,
    Send,
    Arrive,
    Reset,
    Connect,
    Accept,
    Refuse,
    Start,
    Crash,
    Pause,
    Resume,
    Link,
    Clock,
    User,
}

pub(super) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(super) fn new(readable: bool) -> Self {
        Self { hash: 0, events: 0, lines: readable.then(Vec::new) }
    }

    pub(super) fn note(&mut self, now: Time, kind: Kind, entity: u64, detail: u64) {
        self.events += 1;
        self.hash = mix(self.hash ^ now.0).wrapping_add(mix((kind as u64) << 56 ^ entity << 40 ^ detail));
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now} {kind:?} {entity} {detail}"));
        }
    }

    pub(super) fn say(&mut self, now: Time, text: &dyn fmt::Display) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now} {text}"));
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or(&[])
    }
}

/// A few bytes of `data` as a number for the trace: enough to tell records apart, whose headers hold checksums.
pub(super) fn sample(data: &[u8]) -> u64 {
    let head = &data[..data.len().min(32)];
    let tail = &data[data.len() - data.len().min(8)..];
    let mut hash = data.len() as u64;
    for word in head.chunks(8).chain(std::iter::once(tail)) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        hash = mix(hash ^ u64::from_le_bytes(bytes));
    }
    hash
}
