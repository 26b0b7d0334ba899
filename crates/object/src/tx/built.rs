//! What of a transaction was answered over calls of its own that may be taken back, and what of it cannot stand because one was.
//!
//! ```text
//!   outermost   ──────────────── read x ───── put y      doomed: it goes only if the outermost goes
//!                                  ▲
//!   nested A    ── put x … (waits) ┘ ✗ taken back
//! ```
//!
//! * A read of an object is answered over all calls of that object that the transaction has at that moment. Which parts it reads is not
//!   looked at: more is doomed than must be, and never less.
//! * What is doomed goes if it is itself a call that is taken back and nobody knows what it gave, or with a nested transaction in which both it
//!   and its cause are. While something is doomed the transaction MUST NOT commit.
//! * What a nested transaction saw of calls outside stays seen when it is taken back: what is done next may depend on it.

use ithaca_log::pos::StreamId;

use super::{Added, Level, Noted};

/// The calls of an object up to a number were seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    stream: StreamId,
    level: Level,
    upto: Added,
}

/// Something was answered over a call that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Doom {
    /// Which call; `None` for what was seen.
    of: Option<Added>,
    level: Level,
    /// What the call that is gone belonged to.
    cause: Level,
}

/// Which calls are taken out.
pub(super) enum Gone {
    /// One; and whether it is known what it gave, or that it failed.
    Call(Added, bool),
    /// Those of nested transactions that end, and the one around them.
    Levels(Vec<Level>, Level),
}

impl Gone {
    pub(super) fn has(&self, noted: &Noted) -> bool {
        match self {
            Self::Call(number, _) => noted.number == *number,
            Self::Levels(..) => self.ends(noted.level),
        }
    }

    fn ends(&self, level: Level) -> bool {
        matches!(self, Self::Levels(ended, _) if ended.contains(&level))
    }

    /// What belonged to `level` belongs to that afterwards.
    fn after(&self, level: Level) -> Level {
        match self {
            Self::Levels(ended, around) if ended.contains(&level) => *around,
            _ => level,
        }
    }
}

/// The first of some calls of each object.
struct First(Vec<(StreamId, Added)>);

impl First {
    fn of(calls: &[&Noted]) -> Self {
        let mut first: Vec<(StreamId, Added)> = Vec::new();
        for call in calls {
            if !first.iter().any(|(stream, _)| *stream == call.stream) {
                first.push((call.stream, call.number));
            }
        }
        Self(first)
    }

    /// Whether one of them is of the object, and has this number or a lower one.
    fn is_within(&self, stream: StreamId, upto: Added) -> bool {
        self.0.iter().any(|(of, number)| *of == stream && *number <= upto)
    }
}

/// What was seen, and what is doomed.
#[derive(Clone, Debug, Default)]
pub(super) struct Built {
    /// At most one for each object and level.
    seen: Vec<Seen>,
    dooms: Vec<Doom>,
}

impl Built {
    /// The calls of an object up to a number were seen.
    pub(super) fn see(&mut self, stream: StreamId, level: Level, upto: Added) {
        match self.seen.iter_mut().find(|seen| seen.stream == stream && seen.level == level) {
            Some(seen) => seen.upto = seen.upto.max(upto),
            None => self.seen.push(Seen { stream, level, upto }),
        }
    }

    /// Whether something is left that cannot stand.
    pub(super) fn is_doomed(&self) -> bool {
        !self.dooms.is_empty()
    }

    #[cfg(test)]
    pub(super) fn seen_count(&self) -> usize {
        self.seen.len()
    }

    /// What belonged to `level` belongs to `around`.
    pub(super) fn merge(&mut self, level: Level, around: Level) {
        for seen in std::mem::take(&mut self.seen) {
            let of = if seen.level == level { around } else { seen.level };
            self.see(seen.stream, of, seen.upto);
        }
        for of in self.dooms.iter_mut().flat_map(|doom| [&mut doom.level, &mut doom.cause]) {
            if *of == level {
                *of = around;
            }
        }
    }

    /// Calls are taken out of `noted`, which are all that there are, in the order of their numbers.
    pub(super) fn take_out(&mut self, noted: &[Noted], gone: &Gone) {
        let (out, left): (Vec<&Noted>, Vec<&Noted>) = noted.iter().partition(|noted| gone.has(noted));
        self.end_dooms(gone);
        let (first_out, first_left) = (First::of(&out), First::of(&left));
        if let Some(cause) = out.first().map(|call| gone.after(call.level)) {
            let calls = left.iter().filter(|call| first_out.is_within(call.stream, call.number));
            let calls = calls.map(|call| Doom { of: Some(call.number), level: call.level, cause });
            let seen = self.seen.iter().filter(|seen| !gone.ends(seen.level));
            let seen = seen.filter(|seen| first_out.is_within(seen.stream, seen.upto));
            let seen = seen.map(|seen| Doom { of: None, level: seen.level, cause });
            self.dooms.extend(calls.chain(seen));
            self.dooms.sort_unstable();
            self.dooms.dedup();
        }
        // What was seen of calls that are left stays seen, also by calls that are not.
        for seen in std::mem::take(&mut self.seen) {
            if !gone.ends(seen.level) || first_left.is_within(seen.stream, seen.upto) {
                self.see(seen.stream, gone.after(seen.level), seen.upto);
            }
        }
        if !matches!(gone, Gone::Call(_, false)) {
            let has_seen = |call: &&&Noted| {
                !call.keys.reads.is_empty() && first_left.is_within(call.stream, call.number)
            };
            for call in out.iter().filter(has_seen) {
                self.see(call.stream, gone.after(call.level), call.number);
            }
        }
    }

    /// Of dooms whose calls or levels are gone none is left, or they are those of what was seen.
    fn end_dooms(&mut self, gone: &Gone) {
        self.dooms.retain_mut(|doom| {
            let is_of_it = matches!(gone, Gone::Call(number, _) if doom.of == Some(*number));
            let is_left = match gone {
                Gone::Call(_, is_known) => *is_known || !is_of_it,
                Gone::Levels(..) => !gone.ends(doom.level) || !gone.ends(doom.cause),
            };
            if is_of_it || gone.ends(doom.level) {
                doom.of = None;
            }
            doom.level = gone.after(doom.level);
            doom.cause = gone.after(doom.cause);
            is_left
        });
    }
}
