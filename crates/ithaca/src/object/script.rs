//! Transaction scripts: one operation a line, words separated by blanks, `#` for remarks.
//!
//! A word in double quotes may hold blanks; `\"` and `\\` stand for themselves in it.

use std::collections::BTreeSet;
use std::time::Duration;

use ithaca_object::limits;
use ithaca_object::tx::TxFull;

use crate::cli::parse_stream;
use crate::failure::Failure;
use crate::quantity;

/// The most operations of a script.
const OPERATIONS_MAX: usize = 4096;

/// A type of object of scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// Keys with values.
    Map,
    /// A number.
    Counter,
    /// Items in order.
    List,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The value of a key.
    Get { map: String, key: String },
    /// A key gets a value.
    Put { map: String, key: String, value: String },
    /// A key is removed.
    Del { map: String, key: String },
    /// How many keys there are.
    Size { map: String },
    /// Unless a key has this value, or none, the transaction aborts.
    Expect { map: String, key: String, value: Option<String> },
    /// A number is added to a counter.
    Add { counter: String, amount: i64 },
    /// What a counter stands at.
    Count { counter: String },
    /// An item is put at the end of a list.
    Push { list: String, item: String },
    /// The first item of a list is taken out.
    Pop { list: String },
    /// Nothing happens for a while.
    Pause { span: Duration },
}

impl Operation {
    /// The object that it gives something to.
    pub fn written(&self) -> Option<&str> {
        match self {
            Self::Put { map, .. } => Some(map),
            Self::Add { counter, .. } => Some(counter),
            Self::Push { list, .. } => Some(list),
            _ => None,
        }
    }

    /// The object that it reads or changes, and which type that is of.
    pub fn object(&self) -> Option<(Type, &str)> {
        match self {
            Self::Get { map, .. } | Self::Put { map, .. } | Self::Del { map, .. } => Some((Type::Map, map)),
            Self::Size { map } | Self::Expect { map, .. } => Some((Type::Map, map)),
            Self::Add { counter, .. } | Self::Count { counter } => Some((Type::Counter, counter)),
            Self::Push { list, .. } | Self::Pop { list } => Some((Type::List, list)),
            Self::Pause { .. } => None,
        }
    }

    /// The same if it changes it.
    pub fn changed(&self) -> Option<(Type, &str)> {
        match self {
            Self::Get { .. } | Self::Size { .. } | Self::Expect { .. } | Self::Count { .. } => None,
            _ => self.object(),
        }
    }

    /// Its first word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::Put { .. } => "put",
            Self::Del { .. } => "del",
            Self::Size { .. } => "size",
            Self::Expect { .. } => "expect",
            Self::Add { .. } => "add",
            Self::Count { .. } => "count",
            Self::Push { .. } => "push",
            Self::Pop { .. } => "pop",
            Self::Pause { .. } => "pause",
        }
    }
}

/// A script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// It reads the state as of this position, which is included; the newest without it.
    pub as_of: Option<u64>,
    /// What it does, in order.
    pub operations: Vec<Operation>,
}

/// Reads a script. An error names the line.
pub fn parse(text: &str) -> Result<Script, Failure> {
    let mut script = Script::default();
    for (number, line) in text.lines().enumerate() {
        let told = |what: String| Failure::usage(format!("line {}: {what}", number + 1));
        let words = words(line).map_err(told)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] => {}
            ["as-of", pos] if script.operations.is_empty() && script.as_of.is_none() => {
                let pos = pos.parse().map_err(|_| told(format!("{pos:?} is no log position")))?;
                script.as_of = Some(pos);
            }
            ["as-of", _] => return Err(told("as-of comes first, once".into())),
            words => {
                let operation = operation(words).map_err(told)?;
                if let Some((_, name)) = operation.object() {
                    parse_stream(name).map_err(told)?;
                }
                script.operations.push(operation);
            }
        }
        if script.operations.len() > OPERATIONS_MAX {
            return Err(told(format!("more than {OPERATIONS_MAX} operations")));
        }
    }
    let written: BTreeSet<&str> = script.operations.iter().filter_map(Operation::written).collect();
    if written.len() > limits::OBJECTS_MAX_COUNT {
        return Err(Failure::usage(TxFull::Objects.to_string()));
    }
    Ok(script)
}

fn operation(words: &[&str]) -> Result<Operation, String> {
    let own = |word: &str| word.to_owned();
    Ok(match *words {
        ["get", map, key] => Operation::Get { map: own(map), key: own(key) },
        ["put", map, key, value] => Operation::Put { map: own(map), key: own(key), value: own(value) },
        ["del", map, key] => Operation::Del { map: own(map), key: own(key) },
        ["size", map] => Operation::Size { map: own(map) },
        ["expect", map, key] => Operation::Expect { map: own(map), key: own(key), value: None },
        ["expect", map, key, value] => {
            Operation::Expect { map: own(map), key: own(key), value: Some(own(value)) }
        }
        ["add", counter, amount] => {
            let amount =
                amount.parse().map_err(|_| format!("{amount:?} is no whole number that a counter holds"))?;
            Operation::Add { counter: own(counter), amount }
        }
        ["count", counter] => Operation::Count { counter: own(counter) },
        ["push", list, item] => Operation::Push { list: own(list), item: own(item) },
        ["pop", list] => Operation::Pop { list: own(list) },
        ["pause", span] => {
            let span = quantity::duration(span).map_err(|error| error.to_string())?;
            Operation::Pause { span }
        }
        _ => {
            return Err(format!(
                "{:?} is no operation: get, put, del, size, expect, add, count, push, pop, pause, as-of",
                words.join(" ")
            ));
        }
    })
}

fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut letters = line.chars().peekable();
    loop {
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        match letters.peek() {
            None | Some('#') => return Ok(words),
            Some('"') => {
                letters.next();
                words.push(quoted(&mut letters)?);
            }
            Some(_) => {
                words.push(std::iter::from_fn(|| letters.next_if(|l| !l.is_whitespace())).collect());
            }
        }
    }
}

fn quoted(letters: &mut impl Iterator<Item = char>) -> Result<String, String> {
    let mut word = String::new();
    loop {
        match letters.next() {
            Some('"') => return Ok(word),
            Some('\\') => word.extend(letters.next()),
            Some(letter) => word.push(letter),
            None => return Err("a quote that is not closed".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_quotes_and_remarks_are_told_apart() {
        let script =
            parse("as-of 7\n\n  put m \"a key\" \"say \\\"\\\\\\\"\" # remark\n# all of it\nget m k")
                .expect("a script");
        let put = Operation::Put { map: "m".into(), key: "a key".into(), value: "say \"\\\"".into() };
        let get = Operation::Get { map: "m".into(), key: "k".into() };
        assert_eq!(script, Script { as_of: Some(7), operations: vec![put, get] });
    }

    #[test]
    fn what_is_no_operation_is_told_with_its_line() {
        for (text, part) in [
            ("get m k\nfly m", "line 2: \"fly m\" is no operation"),
            ("get m", "line 1"),
            ("add c one", "\"one\" is no whole number"),
            ("get \"m k", "not closed"),
            ("get m k\nas-of 7", "line 2: as-of comes first"),
            ("pause long", "line 1"),
        ] {
            let Err(Failure::Told { line, .. }) = parse(text) else { panic!("{text}") };
            assert!(line.contains(part), "{text}: {line}");
        }
    }
}
