//! `ithaca map` and `ithaca tx`: objects from the shell.

mod arguments;
pub mod map;
mod script;
pub mod tx;
mod value;
mod watch;

use ithaca_env::Env;
use ithaca_log::client::{Client, ClientError, ErrorClass};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::checkpoint::chunk::Chunk;
use ithaca_object::checkpoint::{Policy, catalog_of};
use ithaca_object::object::Object;
use ithaca_object::record::Record;
use ithaca_object::{Handle, ObjectError, Runtime, RuntimeOptions};

use crate::failure::{Exit, Failure};

pub use arguments::{MapCommand, TxArgs};

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let line = line_of(&error);
        match error.class() {
            ErrorClass::No => Self::no(line),
            ErrorClass::Usage => Self::usage(line),
            ErrorClass::Unavailable => Self::unreachable(line),
            ErrorClass::Damaged => Self::damaged(line),
        }
    }
}

/// The error in a line. A state is named as commands take it: by the last position that it reflects, where programs name the first that it
/// does not.
fn line_of(error: &ObjectError) -> String {
    let last = |snapshot: &LogPos| snapshot.0.saturating_sub(1);
    match error {
        ObjectError::NotYet { object, snapshot, tail: LogPos(0) } => {
            format!("there is no `{object}` as of position {}: the log is empty", last(snapshot))
        }
        ObjectError::NotYet { object, snapshot, tail } => {
            format!(
                "there is no `{object}` as of position {}: the log's last is {}",
                last(snapshot),
                last(tail)
            )
        }
        ObjectError::Trimmed { .. } => format!("{error} (`ithaca map checkpoint --help`)"),
        ObjectError::Forgotten { object, snapshot, earliest } => format!(
            "`{object}` as of position {} is forgotten: below {earliest} is the earliest state, --as-of {} and later",
            last(snapshot),
            last(earliest)
        ),
        error => error.to_string(),
    }
}

/// The objects of a command. It does not last long enough to make a checkpoint that nobody asked for.
fn runtime(env: &Env, client: Client) -> Runtime {
    let options = RuntimeOptions { checkpoints: Policy::NEVER, ..RuntimeOptions::default() };
    Runtime::new(env, client, options)
}

/// What shows that a stream is an object's, in words; `None` if it is not, or nobody has appended to it.
pub async fn mark_of(client: &Client, stream: StreamId) -> Result<Option<String>, ClientError> {
    let (what, entry) = match client.newest(stream).await? {
        Some(entry) if Record::decode(&entry.data).is_ok() => ("a record", Some(entry)),
        Some(entry) if Chunk::is_break(&entry.data, stream) => ("a break", Some(entry)),
        Some(_) => return Ok(None),
        // All of it may be forgotten: its state is in a checkpoint then, of which there is a catalog.
        None => ("a record of checkpoints", client.newest(catalog_of(stream)).await?),
    };
    Ok(entry.map(|entry| format!("{what} of it stands at position {}", entry.pos)))
}

/// What work on an object came to. Where it cannot be read, its newest entry is looked at: that of another type of object is wrong usage,
/// and nothing is damaged.
async fn of_type<T, O: Object>(handle: &Handle<O>, done: Result<T, Failure>) -> Result<T, Failure> {
    match done {
        Err(damaged @ Failure::Told { exit: Exit::Damaged, .. }) => {
            Err(after_look(damaged, handle.check_type().await))
        }
        done => done,
    }
}

/// What is told of damage after a look at the newest entry. That the look fails takes nothing back: the damage is as it was.
fn after_look(damaged: Failure, looked: Result<(), ObjectError>) -> Failure {
    match looked {
        Err(error @ ObjectError::OtherEntries { .. }) => error.into(),
        Ok(()) | Err(_) => damaged,
    }
}

#[cfg(test)]
mod tests {
    use ithaca_log::client::ClientError;

    use super::*;

    #[test]
    fn damage_that_was_found_stays_damage_unless_the_entries_are_of_another_type() {
        // A node that goes away between the two reads would hide it behind exit code 3, which says to try again.
        let damaged = Failure::damaged("`stock` cannot be read");
        let check = |looked, expected: &Failure| assert_eq!(&after_look(damaged.clone(), looked), expected);
        check(Ok(()), &damaged);
        check(Err(ClientError::Closed.into()), &damaged);
        check(Err(ObjectError::Trimmed { object: "stock".to_owned(), below: LogPos(3) }), &damaged);
        let (object, found) = ("stock".to_owned(), "calls `push`".to_owned());
        let other = ObjectError::OtherEntries { object, wanted: "map", pos: LogPos(7), found };
        check(Err(other.clone()), &Failure::usage(other.to_string()));
    }
}
