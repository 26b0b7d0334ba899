//! The door to the outside world: drives, network, clock, randomness and tasks, real or simulated.
//!
//! Everything above this crate takes an [`Env`] handle and nothing else: no file, socket, thread, clock or random
//! number reaches the rest of the system by another way (`clippy.toml` bans them by path). An `Env` belongs to one
//! thread and so do the tasks spawned on it; what runs in parallel is several environments, each with its own thread.
//!
//! * [`real`]: one epoll loop per thread, non-blocking sockets, drives opened with `O_DIRECT` behind a small pool of
//!   I/O threads.
//! * [`sim`]: virtual nanoseconds, modelled drives and network, faults; a simulation is a seed, and the same seed gives
//!   the same trace, byte for byte.
//!
//! What this crate does not do: it knows nothing of logs, chains or frames.

pub mod codec;
pub mod drive;
mod env;
pub mod fuse;
pub mod limits;
pub mod memory;
mod mix;
pub mod net;
mod planted;
pub mod real;
pub mod record;
pub mod sim;
pub mod sync;
pub mod task;
mod time;

pub use env::Env;
pub use mix::mix;
pub use time::Time;
