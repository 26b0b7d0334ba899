//! Replicated data structures and transactions over the log.
//!
//! * [`object`]: what an object is; [`collections`]: those that are built in.
//! * [`composed`]: large maps, of many objects each.
//! * [`machine`]: state machines of a program's own, replicated as they are.
//! * [`store`]: keys and values, of which the values stay in the log.
//! * [`record`]: what the log holds of it, one entry for each committed transaction.
//! * [`Runtime`]: the objects of a program, over a client of the log.
//! * [`remote`]: objects whose state a node has, for programs that have not; [`access`]: what they ask it.
//! * [`checkpoint`]: states that are stored in the log, and what is forgotten below them.
//! * [`view`]: an object's state, made of records; [`tx`]: a transaction, [`key`]: what transactions conflict by.

pub mod access;
pub mod checkpoint;
pub mod collections;
pub mod composed;
mod error;
mod ignored;
mod in_order;
pub mod key;
pub mod limits;
pub mod machine;
#[cfg(test)]
mod model;
pub mod object;
pub mod planted;
pub mod record;
pub mod remote;
mod requests;
mod runtime;
pub mod store;
pub mod tx;
pub mod view;
#[cfg(test)]
mod view_tests;

pub use ithaca_log::pos::LogPos;
/// Makes a replicated object of a struct: stands before a block of its methods, of which some are marked.
///
/// | mark | method | on the handle |
/// |---|---|---|
/// | `#[accessor]` | reads: `&self`, gives something | reads the newest state, an old one, or a transaction's |
/// | `#[mutator]` | changes: `&mut self`, gives nothing | is appended; nothing is read |
/// | `#[accessor_mutator]` | changes and gives something | is appended, and gives what it gives at its own position |
/// | `#[transactional]` | `async fn(this: &Handle, tx: &Tx, ..)` that gives a `Result` | one transaction, again after conflicts |
///
/// The struct MUST implement `Default`, `Clone`, `Serialize` and `Deserialize`, and its marked methods MUST be deterministic. For a struct
/// `User` it makes `UserHandle`, with `open`, `within`, `at` and each marked method as an `async` one that gives a `Result`; and for
/// each mutator a struct of its arguments. A method's name and its parameters' names are in records and never change.
///
/// `key = parameter` in a mark says that the method is about the part of the object which that parameter names, so that transactions
/// over other parts do not conflict with it. What is about several parts leaves it out.
///
/// Changes are taken back by copies of the whole struct; a large one implements [`object::Object`] by hand.
pub use ithaca_object_macros::object as object_type;
#[doc(hidden)]
pub use serde;

pub use error::{Aborted, ObjectError};
pub use runtime::{
    Begin, Committed, Forgotten, Handle, Outcome, Runtime, RuntimeOptions, Tx, TxOptions, Watch,
};
pub use tx::Isolation;
