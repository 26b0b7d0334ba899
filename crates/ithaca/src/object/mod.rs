//! `ithaca map` and `ithaca tx`: objects from the shell.

mod arguments;
pub mod map;
mod script;
pub mod tx;
mod watch;

use ithaca_log::client::ErrorClass;
use ithaca_object::ObjectError;

use crate::failure::Failure;

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
