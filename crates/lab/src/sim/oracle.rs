//! The invariants of one log, checked over a run's history.
//!
//! * 15 one value per position for ever · 16 no acknowledged append lost · 17 positions unique
//! * 18 reads and tails are linearizable: what was acknowledged before a call began is seen by it
//! * 21 a position is data for all or junk for all · 22 trims are for ever
//! * 28, 30 and conditions: [`streams`]
//! * an append that certainly failed, or stands elsewhere, is never seen; no value stands twice
//!
//! Because each position is written once, a check of the whole history takes one pass over sorted lists.

use std::collections::BTreeMap;

use super::history::{Fate, History, Moment, Seen};
use super::streams;
use super::value::Value;

/// What is wrong with a history, in words for people.
pub type Violation = String;

/// A violation at one position, with all that happened there in the order of beginnings.
fn at(history: &History, pos: u64, what: &str) -> Violation {
    let mut story = Vec::new();
    for append in history.appends.borrow().iter() {
        if matches!(append.fate, Fate::Acked(there) | Fate::Unknown(there) if there == pos) {
            story.push((append.start, format!("{:?}", append)));
        }
    }
    let looks = history.looks.borrow();
    let here = looks.iter().filter(|look| look.pos == pos);
    story.extend(here.map(|look| (look.start, format!("{look:?}"))));
    let trims = history.trims.borrow();
    let over = trims.iter().filter(|trim| trim.range.contains(&pos));
    story.extend(over.map(|trim| (trim.start, format!("{trim:?}"))));
    story.sort();
    let lines: Vec<String> = story.into_iter().map(|(_, line)| format!("\n      {line}")).collect();
    format!("position {pos} {what}{}", lines.concat())
}

/// What is known of one position.
#[derive(Default)]
struct Place {
    value: Option<Value>,
    junk: bool,
    /// It is an entry of the system's own.
    system: bool,
    /// Since when it certainly is data, junk or trimmed.
    resolved_by: Option<Moment>,
    /// Since when it certainly is trimmed.
    trimmed_by: Option<Moment>,
}

fn earliest(known: &mut Option<Moment>, moment: Moment) {
    *known = Some(known.map_or(moment, |known| known.min(moment)));
}

/// Everything that holds for a run in which no drive was harmed beyond what the system survives.
pub fn judge(history: &History) -> Result<(), String> {
    judge_refusing(history, |_| false)
}

/// Everything that holds where copies of what drives vouch for were harmed: positions that `may_refuse` names may be refused as damaged,
/// and that is all.
pub fn judge_refusing(history: &History, may_refuse: impl Fn(u64) -> bool) -> Result<(), String> {
    if let Some(wrong) = history.wrong.borrow().first() {
        return Err(wrong.clone());
    }
    if let Some(difference) = history.differences.borrow().first() {
        return Err(difference.clone());
    }
    let looks = history.looks.borrow();
    let refused = looks.iter().find(|look| look.seen == Seen::Damaged && !may_refuse(look.pos));
    if let Some(refused) = refused {
        return Err(at(history, refused.pos, "is damaged although a good copy is there"));
    }
    drop(looks);
    check(history)
}

/// Checks everything but wrong bytes. The first violation found.
fn check(history: &History) -> Result<(), Violation> {
    let mut places: BTreeMap<u64, Place> = BTreeMap::new();
    gather_appends(history, &mut places)?;
    gather_looks(history, &mut places)?;
    for trim in history.trims.borrow().iter() {
        let Some(end) = trim.end else { continue };
        for (_, place) in places.range_mut(trim.range.clone()) {
            earliest(&mut place.trimmed_by, end);
            earliest(&mut place.resolved_by, end);
        }
    }
    no_value_twice(history, &places)?;
    fates_hold(history, &places)?;
    looks_agree(history, &places)?;
    order_of_appends(history)?;
    tails(history)?;
    streams::check(history)
}

fn gather_appends(history: &History, places: &mut BTreeMap<u64, Place>) -> Result<(), Violation> {
    for append in history.appends.borrow().iter() {
        let Fate::Acked(pos) = append.fate else { continue };
        let place = places.entry(pos).or_default();
        if let Some(other) = place.value.replace(append.value) {
            return Err(at(history, pos, &format!("was acknowledged for {:?} and {other:?}", append.value)));
        }
        earliest(&mut place.resolved_by, append.end);
    }
    Ok(())
}

fn gather_looks(history: &History, places: &mut BTreeMap<u64, Place>) -> Result<(), Violation> {
    for look in history.looks.borrow().iter() {
        let place = places.entry(look.pos).or_default();
        match look.seen {
            Seen::Data(value) => {
                if place.value.is_some_and(|known| known != value) {
                    return Err(at(history, look.pos, "holds two values"));
                }
                place.value = Some(value);
            }
            Seen::Junk => place.junk = true,
            Seen::System => place.system = true,
            Seen::Trimmed => earliest(&mut place.trimmed_by, look.end),
            Seen::SomeData | Seen::Unwritten | Seen::Damaged => {}
        }
        if look.seen != Seen::Unwritten {
            earliest(&mut place.resolved_by, look.end);
        }
    }
    for (pos, place) in places.iter() {
        if place.junk && place.value.is_some() {
            return Err(at(history, *pos, "is junk and holds data"));
        }
        if place.system && (place.junk || place.value.is_some()) {
            return Err(at(history, *pos, "is an entry of the system and something else"));
        }
    }
    Ok(())
}

fn no_value_twice(history: &History, places: &BTreeMap<u64, Place>) -> Result<(), Violation> {
    let mut positions: BTreeMap<Value, u64> = BTreeMap::new();
    for (&pos, place) in places {
        if let Some(value) = place.value
            && let Some(before) = positions.insert(value, pos)
        {
            let what = format!("holds {value:?}, which stands at {before} too");
            return Err(format!("{}\n    {}", at(history, pos, &what), at(history, before, "holds it too")));
        }
    }
    Ok(())
}

/// What failed is nowhere; what is unknown is where it was said to be, or nowhere.
fn fates_hold(history: &History, places: &BTreeMap<u64, Place>) -> Result<(), Violation> {
    let appends = history.appends.borrow();
    let fates: BTreeMap<Value, Fate> = appends.iter().map(|append| (append.value, append.fate)).collect();
    for (pos, place) in places {
        let Some(value) = place.value else { continue };
        match fates.get(&value) {
            Some(Fate::Failed) => return Err(format!("{value:?} failed and stands at {pos}")),
            Some(Fate::Unknown(said)) if said != pos => {
                return Err(format!("{value:?} stands at {pos}, not at {said} as was said"));
            }
            Some(Fate::UnknownAfter(said)) if said > pos => {
                return Err(format!("{value:?} stands at {pos}, below {said}, which is not what was said"));
            }
            _ => {}
        }
    }
    for append in appends.iter() {
        let Fate::Acked(pos) = append.fate else { continue };
        if places[&pos].trimmed_by.is_some_and(|by| by < append.start) {
            return Err(at(history, pos, "was trimmed before it was appended to"));
        }
    }
    Ok(())
}

fn looks_agree(history: &History, places: &BTreeMap<u64, Place>) -> Result<(), Violation> {
    let trims = history.trims.borrow();
    for look in history.looks.borrow().iter() {
        let place = &places[&look.pos];
        let pos = look.pos;
        if look.seen == Seen::Unwritten && place.resolved_by.is_some_and(|by| by < look.start) {
            return Err(at(history, pos, "was resolved and then read as unwritten"));
        }
        let before_look = place.trimmed_by.is_some_and(|by| by < look.start);
        if before_look && look.seen != Seen::Trimmed {
            return Err(at(history, pos, "was trimmed and then read as something else"));
        }
        let asked = || {
            let was_asked = trims.iter().any(|trim| trim.range.contains(&pos) && trim.start < look.end);
            was_asked || history.streams.may_be_trimmed(pos, look.end)
        };
        if look.seen == Seen::Trimmed && place.value.is_some() && !asked() {
            return Err(at(history, pos, "was trimmed although nobody asked"));
        }
        if look.seen == Seen::SomeData && place.junk {
            return Err(at(history, pos, "is junk and a fill found data"));
        }
    }
    Ok(())
}

/// An append that began after another was acknowledged stands behind it.
fn order_of_appends(history: &History) -> Result<(), Violation> {
    let appends = history.appends.borrow();
    let mut acked: Vec<_> = appends
        .iter()
        .filter_map(|append| match append.fate {
            Fate::Acked(pos) => Some((pos, append)),
            _ => None,
        })
        .collect();
    acked.sort_by_key(|&(pos, _)| std::cmp::Reverse(pos));
    let mut behind: Option<(Moment, u64)> = None;
    for (pos, append) in acked {
        if let Some((end, later)) = behind.filter(|&(end, _)| end < append.start) {
            return Err(format!("{later} was acknowledged ({end:?}) before {pos} was asked for"));
        }
        if behind.is_none_or(|(end, _)| append.end < end) {
            behind = Some((append.end, pos));
        }
    }
    Ok(())
}

/// A tail is above everything acknowledged before it was asked for, and nothing untrimmed lies before the first.
fn tails(history: &History) -> Result<(), Violation> {
    let (appends, trims) = (history.appends.borrow(), history.trims.borrow());
    let mut acked: Vec<(Moment, u64)> = appends
        .iter()
        .filter_map(|append| match append.fate {
            Fate::Acked(pos) => Some((append.end, pos)),
            _ => None,
        })
        .collect();
    acked.sort_unstable();
    for check in history.checks.borrow().iter() {
        for &(_, pos) in acked.iter().take_while(|&&(end, _)| end < check.start) {
            if pos >= check.tail {
                return Err(format!("the tail is {} although {pos} was acknowledged before", check.tail));
            }
            let was_asked = || {
                let is_in = trims.iter().any(|trim| trim.range.contains(&pos));
                is_in || history.streams.may_be_trimmed(pos, check.end)
            };
            if pos < check.first && !was_asked() {
                return Err(format!("the log begins at {} although nobody trimmed {pos}", check.first));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u32) -> Value {
        Value { client: 1, number }
    }

    fn violation(history: &History) -> String {
        check(history).expect_err("a violation")
    }

    #[test]
    fn a_sound_history_passes() {
        let history = History::default();
        let start = history.now();
        history.appended(value(1), start, Fate::Acked(0));
        history.appended(value(2), start, Fate::Unknown(1));
        let start = history.now();
        history.saw(0, Seen::Data(value(1)), start);
        history.saw(1, Seen::Junk, start);
        let trim = history.trims(0..1);
        history.trimmed(trim);
        history.saw(0, Seen::Trimmed, history.now());
        assert_eq!(check(&history), Ok(()));
    }

    #[test]
    fn a_lost_append_is_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::Unwritten, history.now());
        assert!(violation(&history).contains("read as unwritten"));
    }

    #[test]
    fn a_position_with_two_values_or_a_value_at_two_positions_is_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::Data(value(2)), history.now());
        assert!(violation(&history).contains("holds two values"));
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(3, Seen::Data(value(1)), history.now());
        assert!(violation(&history).contains("stands at 0 too"));
    }

    #[test]
    fn a_position_that_is_acknowledged_and_holds_an_entry_of_the_system_is_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::System, history.now());
        assert!(violation(&history).contains("of the system"));
    }

    #[test]
    fn data_that_turns_to_junk_is_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::Junk, history.now());
        assert!(violation(&history).contains("is junk and holds data"));
    }

    #[test]
    fn a_failed_append_that_is_there_and_one_that_is_elsewhere_are_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Failed);
        history.saw(0, Seen::Data(value(1)), history.now());
        assert!(violation(&history).contains("failed and stands"));
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Unknown(1));
        history.saw(0, Seen::Data(value(1)), history.now());
        assert!(violation(&history).contains("not at 1"));
        let history = History::default();
        history.appended(value(1), history.now(), Fate::UnknownAfter(1));
        history.saw(0, Seen::Data(value(1)), history.now());
        assert!(violation(&history).contains("below 1"));
    }

    #[test]
    fn a_position_that_is_refused_is_found_unless_it_may_be() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::Damaged, history.now());
        assert!(judge(&history).is_err_and(|found| found.contains("a good copy")));
        assert_eq!(judge_refusing(&history, |pos| pos == 0), Ok(()));
        // Refused is all that it may be.
        history.saw(0, Seen::Unwritten, history.now());
        assert!(judge_refusing(&history, |_| true).is_err_and(|found| found.contains("read as unwritten")));
    }

    #[test]
    fn a_trim_that_is_forgotten_or_was_never_asked_for_is_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        let trim = history.trims(0..1);
        history.trimmed(trim);
        history.saw(0, Seen::Data(value(1)), history.now());
        assert!(violation(&history).contains("was trimmed and then"));
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(0));
        history.saw(0, Seen::Trimmed, history.now());
        assert!(violation(&history).contains("nobody asked"));
    }

    #[test]
    fn appends_out_of_order_and_a_tail_too_low_are_found() {
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(5));
        history.appended(value(2), history.now(), Fate::Acked(4));
        assert!(violation(&history).contains("before 4 was asked for"));
        let history = History::default();
        history.appended(value(1), history.now(), Fate::Acked(5));
        let (start, end) = (history.now(), history.now());
        let check = super::super::history::Checked { tail: 5, first: 0, start, end };
        history.checks.borrow_mut().push(check);
        assert!(violation(&history).contains("the tail is 5"));
    }
}
