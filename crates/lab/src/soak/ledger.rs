//! What a soak knows of the log: what its clients were told and what they read. Every further observation is held
//! against it.
//!
//! ```text
//!   position:  nothing known ──► data or junk ──► trimmed        and never back, nor from one value to another
//!   entry:     sent ──► acknowledged at p | certainly not appended | at p or nowhere | unknown (its client is gone)
//! ```
//!
//! An acknowledged entry stands at its position until a trim that covers it was asked for. An entry stands at one
//! position at most, named ones checked. What is below a prefix that was trimmed is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_log::client::{ClientError, EntryKind};
use ithaca_log::pos::LogPos;

use super::entry::{Content, Name};

/// Violations that are told in full.
const TOLD_MAX: usize = 20;

/// What a position was seen to hold.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Data(Content),
    Junk,
    Trimmed,
}

#[derive(Clone, Default)]
struct Known {
    held: Option<Held>,
    acked: bool,
    trim_asked: bool,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// No result; it may stand anywhere.
    Sent,
    /// It stands here.
    At(u64),
    /// It stands here or nowhere.
    AtOrNowhere(u64),
    /// Its client was told that it is not in the log.
    Never,
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Something acknowledged is gone.
    Lost,
    /// Something is not what it was, or what it should be.
    Differing,
}

/// How many appends ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acknowledged.
    pub acked: u64,
    /// Said not to be appended.
    pub refused: u64,
    /// Without word of what became of them.
    pub unknown: u64,
}

impl Counts {
    /// Those that came after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            acked: self.acked - before.acked,
            refused: self.refused - before.refused,
            unknown: self.unknown - before.unknown,
        }
    }
}

/// Everything that is known.
#[derive(Clone, Default)]
pub struct Ledger {
    positions: BTreeMap<u64, Known>,
    fates: BTreeMap<Name, Fate>,
    short: BTreeSet<Content>,
    prefix_asked: u64,
    prefix_done: u64,
    audited: u64,
    counts: Counts,
    lost: u64,
    differing: u64,
    told: Vec<String>,
    errors: Vec<String>,
}

impl Ledger {
    /// Entries acknowledged so far.
    pub fn acked(&self) -> u64 {
        self.counts.acked
    }

    /// Appends so far whose client was not told what became of them.
    pub fn unknown(&self) -> u64 {
        self.counts.unknown
    }

    /// What became of appends so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Positions that are known and whose trim was asked for.
    pub fn trims_asked(&self) -> impl Iterator<Item = u64> {
        self.positions.iter().filter(|(_, known)| known.trim_asked).map(|(&pos, _)| pos)
    }

    /// Violations of each kind so far: lost, differing.
    pub fn violations(&self) -> (u64, u64) {
        (self.lost, self.differing)
    }

    /// The violations that were told since the last call.
    pub fn take_told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    /// What the first appends failed with since the last call.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// The position below which everything was read once since it was written, and may go.
    pub fn audited(&self) -> u64 {
        self.audited
    }

    /// Everything below `end` was read.
    pub fn set_audited(&mut self, end: u64) {
        self.audited = self.audited.max(end);
    }

    /// The end of the trimmed prefix.
    pub fn prefix_done(&self) -> u64 {
        self.prefix_done
    }

    /// A position of which something is known, at `nth` or after it.
    pub fn known_from(&self, nth: u64) -> Option<u64> {
        self.positions.range(nth..).next().map(|(&pos, _)| pos)
    }

    /// The highest position of which something is known.
    pub fn last_known(&self) -> Option<u64> {
        self.positions.iter().rev().find(|(_, known)| known.held.is_some()).map(|(&pos, _)| pos)
    }

    /// Counts a violation and keeps the first few in words.
    pub fn violated(&mut self, violation: Violation, what: String) {
        match violation {
            Violation::Lost => self.lost += 1,
            Violation::Differing => self.differing += 1,
        }
        if self.told.len() < TOLD_MAX {
            self.told.push(format!("{violation:?}: {what}"));
        }
    }

    /// An append is about to start.
    pub fn sending(&mut self, name: Name) {
        match name.content() {
            Content::Named(name) => drop(self.fates.insert(name, Fate::Sent)),
            short @ Content::Short(_) => drop(self.short.insert(short)),
        }
    }

    /// An append ended with this.
    pub fn settled(&mut self, name: Name, result: &Result<LogPos, ClientError>) {
        if let Err(error) = result
            && self.errors.len() < TOLD_MAX
        {
            self.errors.push(format!("{name:?}: {error}"));
        }
        match result {
            Ok(pos) => self.acknowledged(name, pos.0),
            Err(ClientError::OutcomeUnknown { pos, .. }) => self.at_or_nowhere(name, pos.0),
            Err(ClientError::OutcomeUnknownAfter { .. }) => self.abandoned(1),
            Err(_) => self.not_appended(name),
        }
    }

    /// An append was acknowledged.
    pub fn acknowledged(&mut self, name: Name, pos: u64) {
        self.counts.acked += 1;
        if pos < self.prefix_asked {
            // What was audited lies below the tail of that time, which every append under way has ended before.
            let what = format!("{name:?} was acknowledged at {pos}, below what was trimmed");
            return self.violated(Violation::Lost, what);
        }
        let content = name.content();
        let known = self.positions.entry(pos).or_default();
        let agrees = match &known.held {
            Some(Held::Data(before)) => *before == content && !known.acked,
            Some(Held::Junk) => false,
            Some(Held::Trimmed) => known.trim_asked,
            None => true,
        };
        let before = known.held.clone();
        known.acked = true;
        if before.is_none() {
            known.held = Some(Held::Data(content));
        }
        if !agrees {
            let what = format!("position {pos} was acknowledged to {name:?}, but held {before:?}");
            self.violated(Violation::Differing, what);
        }
        self.stands_at(name, pos, Fate::At(pos));
    }

    /// An append ended with an error that says that nothing was appended.
    fn not_appended(&mut self, name: Name) {
        self.counts.refused += 1;
        if let Some(Fate::At(pos)) = self.fates.get(&name).copied() {
            let what = format!("{name:?} stands at {pos}, but its client was told that it was not appended");
            self.violated(Violation::Differing, what);
        } else if self.fates.contains_key(&name) {
            self.fates.insert(name, Fate::Never);
        }
    }

    /// An append ended with an error that says that the entry is at `pos` or nowhere.
    fn at_or_nowhere(&mut self, name: Name, pos: u64) {
        self.counts.unknown += 1;
        match self.fates.get(&name).copied() {
            Some(Fate::At(found)) if found != pos => {
                let what = format!("{name:?} stands at {found}, not at {pos}, as its client was told");
                self.violated(Violation::Differing, what);
            }
            Some(Fate::Sent) => drop(self.fates.insert(name, Fate::AtOrNowhere(pos))),
            _ => {}
        }
    }

    /// So many appends lost their client before they had a result.
    pub fn abandoned(&mut self, count: u64) {
        self.counts.unknown += count;
    }

    /// A trim of one position is about to start.
    pub fn trim_asked(&mut self, pos: u64) {
        self.positions.entry(pos).or_default().trim_asked = true;
    }

    /// A trim of one position succeeded.
    pub fn trimmed(&mut self, pos: u64) {
        if pos >= self.prefix_asked {
            self.positions.entry(pos).or_default().held = Some(Held::Trimmed);
        }
    }

    /// A trim of everything below `end` is about to start.
    pub fn prefix_asked(&mut self, end: u64) {
        self.prefix_asked = self.prefix_asked.max(end);
    }

    /// A trim of everything below `end` succeeded.
    pub fn prefix_trimmed(&mut self, end: u64) {
        self.prefix_done = self.prefix_done.max(end);
        let kept = self.positions.split_off(&end);
        for known in std::mem::replace(&mut self.positions, kept).into_values() {
            if let Some(Held::Data(Content::Named(name))) = known.held {
                self.fates.remove(&name);
            }
        }
    }

    /// Whether a position was known to be trimmed: what a read that starts now may no longer return.
    pub fn is_trimmed(&self, pos: u64) -> bool {
        let held = self.positions.get(&pos).and_then(|known| known.held.as_ref());
        pos < self.prefix_done || held == Some(&Held::Trimmed)
    }

    /// A read, or a fill, found this at a position; `was_trimmed` before it started.
    pub fn observed(&mut self, pos: u64, kind: EntryKind, data: &[u8], was_trimmed: bool) {
        if was_trimmed && kind != EntryKind::Trimmed {
            return self.violated(Violation::Differing, format!("position {pos} was trimmed, now {kind:?}"));
        }
        if pos < self.prefix_asked {
            // It is going or gone.
            return;
        }
        match kind {
            EntryKind::Data => match Content::of(data) {
                Some(content) => self.saw_data(pos, content),
                None => {
                    let what = format!("position {pos} holds {} bytes that nobody appended", data.len());
                    self.violated(Violation::Differing, what);
                }
            },
            EntryKind::Junk => self.saw_no_data(pos, Held::Junk),
            EntryKind::Trimmed => self.saw_no_data(pos, Held::Trimmed),
        }
    }

    /// A fill said that this stands at a position now. It does not say whose data it is: a position that was granted in an
    /// epoch that is over may have been granted again.
    pub fn filled(&mut self, pos: u64, kind: EntryKind) {
        if kind != EntryKind::Data {
            return self.observed(pos, kind, &[], false);
        }
        if self.positions.get(&pos).is_some_and(|known| known.held == Some(Held::Junk)) {
            self.violated(Violation::Differing, format!("position {pos} held junk, now data"));
        }
    }

    fn saw_data(&mut self, pos: u64, content: Content) {
        let known = self.positions.entry(pos).or_default();
        match &known.held {
            Some(Held::Data(before)) if *before == content => {}
            // A trim that is asked for while a read is under way may be seen before its effect.
            Some(Held::Trimmed) => {}
            Some(before) => {
                let what = format!("position {pos} held {before:?}, now {content:?}");
                self.violated(Violation::Differing, what);
            }
            None => {
                known.held = Some(Held::Data(content.clone()));
                match content {
                    Content::Named(name) => self.stands_at(name, pos, Fate::At(pos)),
                    short if !self.short.contains(&short) => {
                        let what = format!("position {pos} holds {short:?}, which nobody appended");
                        self.violated(Violation::Differing, what);
                    }
                    Content::Short(_) => {}
                }
            }
        }
    }

    fn saw_no_data(&mut self, pos: u64, now: Held) {
        let known = self.positions.entry(pos).or_default();
        let allowed = match (&now, &known.held) {
            (Held::Trimmed, Some(Held::Trimmed)) => true,
            (Held::Trimmed, _) => known.trim_asked,
            (_, Some(Held::Data(_))) => false,
            _ => true,
        };
        let (before, acked) = (known.held.clone(), known.acked);
        if known.held != Some(Held::Trimmed) {
            known.held = Some(now.clone());
        }
        if !allowed {
            let violation = if acked { Violation::Lost } else { Violation::Differing };
            self.violated(violation, format!("position {pos} held {before:?}, now {now:?}"));
        }
    }

    /// `name` was found, or acknowledged, at `pos`.
    fn stands_at(&mut self, name: Name, pos: u64, now: Fate) {
        if name.content() != Content::Named(name) {
            return;
        }
        match self.fates.insert(name, now) {
            Some(Fate::Sent) => {}
            Some(Fate::At(before) | Fate::AtOrNowhere(before)) if before == pos => {}
            before => {
                let what = format!("{name:?} stands at {pos}, but before it was {before:?}");
                self.violated(Violation::Differing, what);
            }
        }
    }

    /// The log was found to end at `tail`: everything that is known lies below.
    pub fn tail_is(&mut self, tail: u64) {
        let beyond: Vec<(u64, bool)> = self
            .positions
            .range(tail..)
            .filter(|(_, known)| known.held.is_some())
            .map(|(&pos, known)| (pos, known.acked))
            .collect();
        for (pos, acked) in beyond {
            let violation = if acked { Violation::Lost } else { Violation::Differing };
            self.violated(violation, format!("the log ends at {tail}, but {pos} was there"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name { worker: 1, len: 40, number }
    }

    fn ledger(acked: &[(u64, u64)]) -> Ledger {
        let mut ledger = Ledger::default();
        for &(number, pos) in acked {
            ledger.sending(name(number));
            ledger.acknowledged(name(number), pos);
        }
        ledger
    }

    fn after(mut ledger: Ledger, pos: u64, kind: EntryKind, number: u64) -> (u64, u64) {
        let was_trimmed = ledger.is_trimmed(pos);
        ledger.observed(pos, kind, &name(number).bytes(), was_trimmed);
        ledger.violations()
    }

    #[test]
    fn what_was_acknowledged_is_read_back_or_it_is_lost() {
        let acked = || ledger(&[(0, 7)]);
        assert_eq!(after(acked(), 7, EntryKind::Data, 0), (0, 0));
        assert_eq!(after(acked(), 7, EntryKind::Junk, 0), (1, 0));
        assert_eq!(after(acked(), 7, EntryKind::Trimmed, 0), (1, 0));
        assert_eq!(after(acked(), 7, EntryKind::Data, 1), (0, 1));
        let mut cut = acked();
        cut.tail_is(7);
        assert_eq!(cut.violations(), (1, 0));
    }

    #[test]
    fn what_is_acknowledged_below_a_trimmed_prefix_is_lost() {
        let mut trimmed = ledger(&[]);
        trimmed.prefix_asked(10);
        trimmed.sending(name(0));
        trimmed.acknowledged(name(0), 5);
        assert_eq!(trimmed.violations(), (1, 0));
    }

    #[test]
    fn a_fill_that_meets_data_says_nothing_of_whose_it_is() {
        let mut acked = ledger(&[(0, 7)]);
        acked.filled(7, EntryKind::Data);
        assert_eq!(acked.violations(), (0, 0));
        acked.filled(8, EntryKind::Junk);
        acked.filled(8, EntryKind::Data);
        assert_eq!(acked.violations(), (0, 1), "junk stays junk");
        acked.filled(7, EntryKind::Junk);
        assert_eq!(acked.violations(), (1, 1), "what was acknowledged does not become junk");
    }

    #[test]
    fn an_entry_stands_at_one_position_and_where_its_client_was_told() {
        assert_eq!(after(ledger(&[(0, 7)]), 8, EntryKind::Data, 0), (0, 1), "twice");
        assert_eq!(after(ledger(&[]), 8, EntryKind::Data, 0), (0, 1), "never sent");
        let mut sent = ledger(&[]);
        sent.sending(name(0));
        sent.at_or_nowhere(name(0), 9);
        assert_eq!(after(sent, 8, EntryKind::Data, 0), (0, 1), "elsewhere");
        let mut failed = ledger(&[]);
        failed.sending(name(0));
        failed.not_appended(name(0));
        assert_eq!(after(failed, 8, EntryKind::Data, 0), (0, 1), "said not to be appended");
    }

    #[test]
    fn trimmed_stays_trimmed_and_junk_stays_junk() {
        let mut trimmed = ledger(&[(0, 7)]);
        trimmed.trim_asked(7);
        trimmed.trimmed(7);
        assert_eq!(after(trimmed, 7, EntryKind::Data, 0), (0, 1));
        let mut prefix = ledger(&[(0, 7)]);
        prefix.prefix_asked(8);
        prefix.prefix_trimmed(8);
        assert_eq!(after(prefix, 7, EntryKind::Data, 0), (0, 1));
        let mut junk = ledger(&[]);
        junk.sending(name(0));
        junk.observed(7, EntryKind::Junk, &[], false);
        assert_eq!(after(junk, 7, EntryKind::Data, 0), (0, 1));
    }

    #[test]
    fn a_trim_that_was_asked_for_may_have_happened_or_not() {
        let asked = || {
            let mut asked = ledger(&[(0, 7)]);
            asked.trim_asked(7);
            asked
        };
        assert_eq!(after(asked(), 7, EntryKind::Data, 0), (0, 0));
        assert_eq!(after(asked(), 7, EntryKind::Trimmed, 0), (0, 0));
        assert_eq!(after(asked(), 7, EntryKind::Junk, 0), (1, 0));
    }
}
