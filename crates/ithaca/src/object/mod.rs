//! `ithaca map` and `ithaca tx`: objects from the shell.

mod arguments;
pub mod map;
mod script;
pub mod tx;
mod watch;

use ithaca_log::client::ErrorClass;
use ithaca_log::pos::LogPos;
use ithaca_object::object::Object;
use ithaca_object::{Handle, ObjectError};

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
        ObjectError::Forgotten { object, snapshot, earliest } => format!(
            "`{object}` as of position {} is forgotten: below {earliest} is the earliest state, --as-of {} and later",
            last(snapshot),
            last(earliest)
        ),
        error => error.to_string(),
    }
}

/// What work on an object came to. Where it cannot be read, its newest entry is looked at: that of another type of object is wrong usage,
/// and nothing is damaged.
async fn of_type<T, O: Object>(handle: &Handle<O>, done: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(Failure::Told { exit: Exit::Damaged, .. }) = done {
        handle.check_type().await?;
    }
    done
}
