//! What clients did with streams, and what must hold of it.
//!
//! * 13 a position is given up when all of its streams have released it
//! * 28 a stream is in the order of the log; no position of it comes twice, and nothing is left out of what is read of it
//! * 30 an append is in all of its streams or in none
//! * no append under a condition stands behind a write of what it read since its snapshot
//!
//! False conflicts are counted, not judged: a token that was lost makes one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use ithaca_log::client::StreamTails;
use ithaca_log::entry::StreamPlace;
use ithaca_log::pos::{StreamId, StreamPos};
use ithaca_log::stream::{Condition, ConflictKey, KeyHash};

use super::history::{Fate, History, Moment};
use super::scenario::Points;
use super::value::Value;

/// After everything.
const END: Moment = Moment(u64::MAX);

/// What an append was to do.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Its streams.
    pub streams: Vec<StreamId>,
    /// On what it depended.
    pub condition: Option<Condition>,
}

/// A question for the ends of streams.
#[derive(Clone, Debug)]
struct Ends {
    streams: Vec<StreamId>,
    tails: StreamTails,
    start: Moment,
}

/// A read of a part of a stream.
#[derive(Clone, Debug)]
struct Read {
    stream: StreamId,
    range: Range<u64>,
    found: Vec<u64>,
    end: Moment,
}

/// A call that was to release a stream below a position of it.
#[derive(Clone, Copy, Debug)]
struct Release {
    stream: StreamId,
    below: StreamPos,
    start: Moment,
}

/// Everything about streams that clients did and saw.
#[derive(Default)]
pub struct StreamHistory {
    asked: RefCell<BTreeMap<Value, Asked>>,
    /// Places that an appender was told.
    told: RefCell<Vec<(u64, Value, Vec<StreamPlace>)>>,
    /// Places that readers saw.
    seen: RefCell<Vec<(u64, Value, Vec<StreamPlace>)>>,
    ends: RefCell<Vec<Ends>>,
    reads: RefCell<Vec<Read>>,
    releases: RefCell<Vec<Release>>,
    conflicts: RefCell<u64>,
    too_old: RefCell<u64>,
}

impl StreamHistory {
    /// An append is about to be made.
    pub fn asks(&self, value: Value, asked: Asked) {
        self.asked.borrow_mut().insert(value, asked);
    }

    /// An append was acknowledged.
    pub fn told(&self, pos: u64, value: Value, places: Vec<StreamPlace>) {
        if !places.is_empty() {
            self.told.borrow_mut().push((pos, value, places));
        }
    }

    /// An append was refused for its condition.
    pub fn refused(&self, is_conflict: bool) {
        *if is_conflict { self.conflicts.borrow_mut() } else { self.too_old.borrow_mut() } += 1;
    }

    /// A reader saw an entry.
    pub fn saw(&self, pos: u64, value: Value, places: &[StreamPlace]) {
        // Of all others there is nothing to be said.
        if !places.is_empty() || self.asked.borrow().contains_key(&value) {
            self.seen.borrow_mut().push((pos, value, places.to_vec()));
        }
    }

    /// A client was told where streams end.
    pub fn ended(&self, streams: Vec<StreamId>, tails: StreamTails, start: Moment) {
        self.ends.borrow_mut().push(Ends { streams, tails, start });
    }

    /// A client has read what a stream has in a range.
    pub fn read(&self, stream: StreamId, range: Range<u64>, found: Vec<u64>, end: Moment) {
        self.reads.borrow_mut().push(Read { stream, range, found, end });
    }

    /// A client is about to release a stream below a position of it. Whatever comes of the call.
    pub fn releases(&self, stream: StreamId, below: StreamPos, start: Moment) {
        self.releases.borrow_mut().push(Release { stream, below, start });
    }

    /// A position of the stream above all that clients know of.
    pub fn known_end(&self, stream: StreamId) -> StreamPos {
        let seen = self.seen.borrow();
        let places = seen.iter().flat_map(|(_, _, places)| places).filter(|place| place.stream == stream);
        places.map(|place| StreamPos(place.position.0 + 1)).max().unwrap_or_default()
    }

    /// Whether the entry at `pos` may be trimmed because all of its streams were to release it before `by`. Only what a client was told
    /// of, or has seen, is known to be in streams.
    pub fn may_be_trimmed(&self, pos: u64, by: Moment) -> bool {
        let (told, seen) = (self.told.borrow(), self.seen.borrow());
        let known = told.iter().chain(seen.iter()).find(|(at, ..)| *at == pos);
        let places = known.map_or(&[][..], |(.., places)| places);
        let releases = self.releases.borrow();
        let is_released = |place: &StreamPlace| {
            let of_it = |release: &&Release| release.stream == place.stream && place.position < release.below;
            releases.iter().filter(of_it).any(|release| release.start < by)
        };
        !places.is_empty() && places.iter().all(is_released)
    }

    /// Counts the rare things.
    pub fn add_points(&self, points: &mut Points) {
        points.see("a stream was appended to", !self.told.borrow().is_empty());
        points.see("a stream was read", self.reads.borrow().iter().any(|read| !read.found.is_empty()));
        points.see("a stream was released", !self.releases.borrow().is_empty());
        points.see("a condition was in conflict", *self.conflicts.borrow() > 0);
        points.see("a condition was too old", *self.too_old.borrow() > 0);
        let asked = self.asked.borrow();
        let told = self.told.borrow();
        let is_conditional = |value: &Value| asked.get(value).is_some_and(|asked| asked.condition.is_some());
        points.see("a condition held", told.iter().any(|(_, value, _)| is_conditional(value)));
    }
}

/// Whether an append with this request writes what `key` is about.
fn writes(asked: &Asked, key: ConflictKey) -> bool {
    if !asked.streams.contains(&key.stream) {
        return false;
    }
    let named = asked.condition.iter().flat_map(|condition| &condition.writes);
    let mut named = named.filter(|named| named.stream == key.stream).peekable();
    let is_all = key.key == KeyHash::ALL || named.peek().is_none();
    is_all || named.any(|named| named.key == KeyHash::ALL || named.key == key.key)
}

/// Checks everything about streams. The first violation found.
pub fn check(history: &History) -> Result<(), String> {
    let streams = &history.streams;
    let asked = streams.asked.borrow();
    let mut standing: BTreeMap<u64, (Value, Vec<StreamPlace>)> = BTreeMap::new();
    for (pos, value, places) in streams.seen.borrow().iter() {
        let wanted = asked.get(value).map_or(&[][..], |asked| &asked.streams);
        if !places.iter().map(|place| place.stream).eq(wanted.iter().copied()) {
            return Err(format!("{value:?} at {pos} is in {places:?}, not in {wanted:?}"));
        }
        if let Some((_, before)) = standing.insert(*pos, (*value, places.clone()))
            && before != *places
        {
            return Err(format!("{value:?} at {pos} has the places {before:?} and {places:?}"));
        }
    }
    for (pos, value, told) in streams.told.borrow().iter() {
        let Some((_, places)) = standing.get(pos) else { continue };
        if places != told {
            return Err(format!("{value:?} at {pos} was told {told:?} and has {places:?}"));
        }
    }
    let mut held: BTreeMap<StreamId, Vec<(u64, StreamPlace)>> = BTreeMap::new();
    for (&pos, (_, places)) in &standing {
        places.iter().for_each(|place| held.entry(place.stream).or_default().push((pos, *place)));
    }
    held.iter().try_for_each(|(stream, held)| in_order(history, *stream, held))?;
    nothing_left_out(history, &held)?;
    no_false_commit(history, &standing)?;
    ends_are_above(history)
}

/// A stream is in the order of the log, and nothing stands between an entry and what it says comes before it.
fn in_order(history: &History, stream: StreamId, held: &[(u64, StreamPlace)]) -> Result<(), String> {
    for pair in held.windows(2) {
        let [(before, earlier), (pos, later)] = pair else { continue };
        if later.position <= earlier.position {
            let (one, other) = (earlier.position, later.position);
            return Err(format!("{stream} has position {one} at {before} and {other} at {pos}"));
        }
        // What was trimmed may not have been seen by a new sequencer.
        let is_trimmed = || {
            history.trims.borrow().iter().any(|trim| trim.range.contains(before))
                || history.streams.may_be_trimmed(*before, END)
        };
        let said = later.end_before().bound();
        let is_wrong = said.is_none_or(|said| said.0 < *before || said.0 >= *pos);
        if is_wrong && !is_trimmed() {
            return Err(format!("{stream} at {pos} says that {said:?} comes before it, but {before} does"));
        }
    }
    Ok(())
}

/// A read of a stream has all that stands in what it covers, but for what was trimmed.
fn nothing_left_out(
    history: &History,
    held: &BTreeMap<StreamId, Vec<(u64, StreamPlace)>>,
) -> Result<(), String> {
    let trims = history.trims.borrow();
    for read in history.streams.reads.borrow().iter() {
        if !read.found.windows(2).all(|two| two[0] < two[1]) {
            return Err(format!("out of order: {read:?}"));
        }
        for (pos, _) in held.get(&read.stream).map_or(&[][..], Vec::as_slice) {
            let is_trimmed = || {
                let was_asked = trims.iter().any(|trim| trim.range.contains(pos) && trim.start < read.end);
                was_asked || history.streams.may_be_trimmed(*pos, read.end)
            };
            if read.range.contains(pos) && !read.found.contains(pos) && !is_trimmed() {
                return Err(format!("{pos} is missing in {read:?}"));
            }
        }
    }
    Ok(())
}

/// What stands under a condition has no write of what it read between its snapshot and itself.
fn no_false_commit(
    history: &History,
    standing: &BTreeMap<u64, (Value, Vec<StreamPlace>)>,
) -> Result<(), String> {
    let asked = history.streams.asked.borrow();
    let mut stands: BTreeMap<u64, Value> = standing.iter().map(|(&pos, (value, _))| (pos, *value)).collect();
    for append in history.appends.borrow().iter() {
        if let Fate::Acked(pos) = append.fate {
            stands.insert(pos, append.value);
        }
    }
    for (&pos, value) in &stands {
        let Some(condition) = asked.get(value).and_then(|asked| asked.condition.as_ref()) else { continue };
        for (&at, other) in stands.range(condition.snapshot.0.min(pos)..pos) {
            let Some(other_asked) = asked.get(other) else { continue };
            if let Some(key) = condition.reads.iter().find(|key| writes(other_asked, **key)) {
                let snapshot = condition.snapshot;
                return Err(format!(
                    "{value:?} stands at {pos}, having read {key} as of {snapshot}; {other:?} wrote it at {at}"
                ));
            }
        }
    }
    Ok(())
}

/// The end of a stream is above all that was acknowledged before it was asked for.
fn ends_are_above(history: &History) -> Result<(), String> {
    let asked = history.streams.asked.borrow();
    let told = history.streams.told.borrow();
    let places: BTreeMap<u64, &Vec<StreamPlace>> =
        told.iter().map(|(pos, _, places)| (*pos, places)).collect();
    for append in history.appends.borrow().iter() {
        let (Fate::Acked(pos), Some(append_asked)) = (append.fate, asked.get(&append.value)) else {
            continue;
        };
        let Some(places) = places.get(&pos) else { continue };
        for ends in history.streams.ends.borrow().iter().filter(|ends| append.end < ends.start) {
            for (stream, place) in append_asked.streams.iter().zip(places.iter()) {
                let nth = ends.streams.iter().position(|asked| asked == stream);
                let Some(tail) = nth.and_then(|nth| ends.tails.streams.get(nth)) else { continue };
                let is_last = tail.bound().is_some_and(|bound| bound.0 >= pos);
                // Where entries were trimmed unseen it is not known which was the last.
                let is_trimmed = || {
                    history.trims.borrow().iter().any(|trim| trim.range.contains(&pos))
                        || history.streams.may_be_trimmed(pos, END)
                };
                if tail.next <= place.position || !is_last && !is_trimmed() {
                    return Err(format!(
                        "{stream} has {place:?} at {pos}, and ended with {tail:?} after that"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ithaca_log::pos::LogPos;

    const A: StreamId = StreamId(1000);

    fn value(number: u32) -> Value {
        Value { client: 1, number }
    }

    fn part(key: u64) -> ConflictKey {
        ConflictKey { stream: A, key: KeyHash(key) }
    }

    fn place(position: u64, previous: Option<u64>) -> StreamPlace {
        StreamPlace { stream: A, position: StreamPos(position), previous: previous.map(LogPos) }
    }

    /// A history in which value n was asked to be in A and was seen at each of `seen`.
    fn history(seen: &[(u64, u32, StreamPlace)]) -> History {
        let history = History::default();
        for (pos, number, place) in seen {
            history.streams.asks(value(*number), Asked { streams: vec![A], condition: None });
            history.streams.saw(*pos, value(*number), &[*place]);
        }
        history
    }

    #[test]
    fn a_position_that_comes_twice_and_a_wrong_predecessor_are_found() {
        assert_eq!(check(&history(&[(4, 1, place(0, None)), (7, 2, place(3, Some(5)))])), Ok(()));
        let twice = check(&history(&[(4, 1, place(0, None)), (7, 2, place(0, Some(4)))]));
        assert!(twice.is_err_and(|error| error.contains("position 0")));
        let skipped = check(&history(&[(4, 1, place(0, None)), (7, 2, place(1, Some(3)))]));
        assert!(skipped.is_err_and(|error| error.contains("comes before it")));
    }

    #[test]
    fn an_entry_in_other_streams_than_asked_and_one_that_a_read_leaves_out_are_found() {
        let it = history(&[(4, 1, place(0, None))]);
        it.streams.asks(value(1), Asked { streams: vec![A, StreamId(1001)], condition: None });
        assert!(check(&it).is_err_and(|error| error.contains("not in")));
        let it = history(&[(4, 1, place(0, None))]);
        it.streams.read(A, 0..5, Vec::new(), it.now());
        assert!(check(&it).is_err_and(|error| error.contains("is missing")));
    }

    #[test]
    fn what_all_of_its_streams_have_released_may_go_and_nothing_else() {
        let it = history(&[(4, 1, place(0, None)), (7, 2, place(1, Some(4)))]);
        it.streams.releases(A, StreamPos(1), it.now());
        let now = it.now();
        assert!(it.streams.may_be_trimmed(4, now) && !it.streams.may_be_trimmed(7, now));
        it.streams.read(A, 0..9, vec![7], now);
        assert_eq!(check(&it), Ok(()));
        it.streams.asks(value(3), Asked { streams: vec![A, StreamId(1001)], condition: None });
        let other = StreamPlace { stream: StreamId(1001), ..place(0, None) };
        it.streams.told(9, value(3), vec![place(2, Some(7)), other]);
        it.streams.releases(A, StreamPos(3), it.now());
        assert!(!it.streams.may_be_trimmed(9, it.now()), "the other stream needs it");
        it.streams.read(A, 0..9, vec![7, 4], it.now());
        assert!(check(&it).is_err_and(|error| error.contains("out of order")));
    }

    #[test]
    fn a_commit_behind_a_write_of_what_it_read_is_found() {
        let of = |read: ConflictKey, snapshot| {
            let it = history(&[(4, 1, place(0, None))]);
            let condition =
                Condition { snapshot: LogPos(snapshot), reads: [read][..].into(), ..Condition::default() };
            it.streams.asks(value(2), Asked { streams: vec![A], condition: Some(condition) });
            it.streams.saw(6, value(2), &[place(1, Some(4))]);
            check(&it)
        };
        assert_eq!(of(part(5), 5), Ok(()));
        assert!(of(part(5), 4).is_err_and(|error| error.contains("wrote it at 4")));
    }
}
