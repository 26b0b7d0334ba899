//! `ithaca map` and `ithaca tx`: objects from the shell.

mod arguments;
pub mod map;
mod script;
pub mod tx;
mod watch;

use ithaca_log::client::ErrorClass;
use ithaca_object::object::Object;
use ithaca_object::{Handle, ObjectError};

use crate::failure::{Exit, Failure};

pub use arguments::{MapCommand, TxArgs};

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let line = error.to_string();
        match error.class() {
            ErrorClass::No => Self::no(line),
            ErrorClass::Usage => Self::usage(line),
            ErrorClass::Unavailable => Self::unreachable(line),
            ErrorClass::Damaged => Self::damaged(line),
        }
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
