//! A history as JSON, for a judge that is not ours: `{"operations":[...]}`, one operation a line.
//!
//! ```text
//!   {"op":"append","value":"1/7","start":3,"end":9,"result":"acked","position":0}       unknown, unknown-after: position too
//!   {"op":"read","position":0,"start":11,"end":12,"seen":"data","value":"1/7"}          some-data, junk, trimmed, unwritten; "system": no client's
//!   {"op":"tail","tail":1,"start":13,"end":14}
//!   {"op":"trim","from":0,"to":1,"start":15,"end":null}                                 null: not known to have ended
//! ```
//!
//! What others than the recorded clients appended is left out: a look at a foreign entry stays only where a recorded append
//! claims the position, and then as what it is, a contradiction.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::history::{Appended, Checked, Fate, History, Look, Moment, Seen, Trim};
use super::value::Value;

impl History {
    /// The history as JSON.
    pub fn json(&self) -> String {
        let appends = self.appends.borrow();
        let own: BTreeSet<Value> = appends.iter().map(|append| append.value).collect();
        let claimed: BTreeSet<u64> = appends
            .iter()
            .filter_map(|append| match append.fate {
                Fate::Acked(pos) => Some(pos),
                _ => None,
            })
            .collect();
        let looks = self.looks.borrow();
        let is_kept = |look: &&Look| match look.seen {
            Seen::Data(value) => own.contains(&value) || claimed.contains(&look.pos),
            // Whose it is, is not known.
            Seen::SomeData | Seen::System => claimed.contains(&look.pos),
            _ => true,
        };
        let mut looked = BTreeSet::new();
        let mut lines: Vec<(Moment, String)> = appends.iter().map(append_line).collect();
        for look in looks.iter().filter(is_kept) {
            looked.insert(look.pos);
            lines.push(look_line(look));
        }
        lines.extend(self.checks.borrow().iter().map(check_line));
        let trims = self.trims.borrow();
        let touches = |trim: &&Trim| looked.range(trim.range.clone()).next().is_some();
        lines.extend(trims.iter().filter(touches).map(trim_line));
        lines.sort();
        let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        format!("{{\"operations\":[\n{}\n]}}\n", lines.join(",\n"))
    }
}

fn append_line(append: &Appended) -> (Moment, String) {
    let Appended { value, start, end, fate } = append;
    let (result, pos) = match fate {
        Fate::Acked(pos) => ("acked", Some(pos)),
        Fate::Unknown(pos) => ("unknown", Some(pos)),
        Fate::UnknownAfter(pos) => ("unknown-after", Some(pos)),
        Fate::Failed => ("failed", None),
    };
    let mut line = format!("{{\"op\":\"append\",\"value\":\"{}/{}\"", value.client, value.number);
    let _ = write!(line, ",\"start\":{},\"end\":{},\"result\":\"{result}\"", start.0, end.0);
    if let Some(pos) = pos {
        let _ = write!(line, ",\"position\":{pos}");
    }
    line.push('}');
    (*start, line)
}

fn look_line(look: &Look) -> (Moment, String) {
    let Look { pos, seen, start, end } = look;
    let (seen, value) = match seen {
        Seen::Data(value) => ("data", Some(format!("{}/{}", value.client, value.number))),
        Seen::System => ("data", Some("system".to_string())),
        Seen::SomeData => ("some-data", None),
        Seen::Junk => ("junk", None),
        Seen::Trimmed => ("trimmed", None),
        Seen::Unwritten => ("unwritten", None),
        Seen::Damaged => ("damaged", None),
    };
    let mut line = format!("{{\"op\":\"read\",\"position\":{pos},\"start\":{},\"end\":{}", start.0, end.0);
    let _ = write!(line, ",\"seen\":\"{seen}\"");
    if let Some(value) = value {
        let _ = write!(line, ",\"value\":\"{value}\"");
    }
    line.push('}');
    (*start, line)
}

fn check_line(check: &Checked) -> (Moment, String) {
    let Checked { tail, start, end, .. } = check;
    (*start, format!("{{\"op\":\"tail\",\"tail\":{tail},\"start\":{},\"end\":{}}}", start.0, end.0))
}

fn trim_line(trim: &Trim) -> (Moment, String) {
    let Trim { range, start, end } = trim;
    let end = end.map_or("null".to_string(), |end| end.0.to_string());
    let (from, to, start) = (range.start, range.end, start.0);
    (trim.start, format!("{{\"op\":\"trim\",\"from\":{from},\"to\":{to},\"start\":{start},\"end\":{end}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_written_in_the_order_of_beginnings_and_without_what_others_did() {
        let history = History::default();
        let (own, foreign) = (Value { client: 1, number: 7 }, Value { client: 9, number: 1 });
        history.appended(own, history.now(), Fate::Acked(3));
        history.saw(3, Seen::Data(own), history.now());
        history.saw(4, Seen::Data(foreign), history.now());
        history.saw(5, Seen::Junk, history.now());
        history.trims(5..6);
        history.trims(8..9);
        history.saw(3, Seen::System, history.now());
        history.saw(4, Seen::System, history.now());
        let expected = "{\"operations\":[\n\
            {\"op\":\"append\",\"value\":\"1/7\",\"start\":1,\"end\":2,\"result\":\"acked\",\"position\":3},\n\
            {\"op\":\"read\",\"position\":3,\"start\":3,\"end\":4,\"seen\":\"data\",\"value\":\"1/7\"},\n\
            {\"op\":\"read\",\"position\":5,\"start\":7,\"end\":8,\"seen\":\"junk\"},\n\
            {\"op\":\"trim\",\"from\":5,\"to\":6,\"start\":9,\"end\":null},\n\
            {\"op\":\"read\",\"position\":3,\"start\":11,\"end\":12,\"seen\":\"data\",\"value\":\"system\"}\n]}\n";
        assert_eq!(history.json(), expected);
        // A foreign entry where an own one was acknowledged is not left out.
        history.saw(3, Seen::Data(foreign), history.now());
        assert!(history.json().contains("\"seen\":\"data\",\"value\":\"9/1\""));
    }
}
