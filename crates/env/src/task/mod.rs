//! Tasks: a single-threaded executor that real and simulated environments share.
//!
//! Tasks run on the thread that spawned them and need not be `Send`. Ready tasks run in the order in which they were
//! woken, so a simulation that delivers the same events gives the same schedule.

mod executor;
mod join;
mod waker;

pub(crate) use executor::{Executor, Group};
pub(crate) use waker::Remote;

pub use executor::TaskHandle;
pub use join::{Ended, gather, race};
