//! Ways for the tasks of one thread to wait for each other. Nothing here is `Send`.

mod count;
mod notify;
pub mod oneshot;
pub mod queue;
mod semaphore;

pub use count::{Count, Counted};
pub use notify::Notify;
pub use semaphore::{Permit, Semaphore};
