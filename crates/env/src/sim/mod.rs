//! The simulated side: processes, drives and a network in virtual nanoseconds, on one thread, from one seed.
//!
//! A [`Sim`] is a world. Its processes run ordinary code over [`Env`](crate::Env); its owner starts and kills them, harms
//! drives and links, and looks on. The same seed and the same calls give the same trace, byte for byte:
//!
//! ```
//! use std::time::Duration;
//! use ithaca_env::sim::Sim;
//!
//! let run = |seed| {
//!     let sim = Sim::new(seed);
//!     let node = sim.process("node", [10, 0, 0, 1].into());
//!     let env = sim.env(node);
//!     let slept = sim.block_on(node, async move {
//!         let before = env.now();
//!         env.sleep(Duration::from_secs(3600)).await;
//!         env.now().since(before)
//!     });
//!     assert!(slept >= Duration::from_secs(3600));
//!     sim.trace_hash()
//! };
//! assert_eq!(run(7), run(7));
//! assert_ne!(run(7), run(8));
//! ```
//!
//! What this module promises: no system clock, system randomness, thread or unordered map has a say in a run, and every
//! random decision is a hash of the seed and of what it is about ([`Dice`]). What is modelled and what not, and what a
//! system owes in the face of which fault, stands in docs/simulator.md.

mod clock;
mod drive;
mod driver;
mod handle;
pub mod limits;
mod lives;
mod net;
mod options;
mod plan;
mod process;
mod queue;
mod random;
#[cfg(test)]
mod tests;
mod trace;
mod world;

pub use drive::{
    Access, Agenda, Array, ArrayOptions, Atlas, Budget, Content, Disk, DiskOptions, Doubt, DriveFault,
    DriveId, DriveStats, Harm, HarmKind, Kept, KindStats, Lanes, LanesOptions, MediaStats, RequestKey, Speed,
    SpeedModel, SpeedRequest, Ssd, SsdOptions,
};
pub use driver::{Sim, Stopped};
pub use handle::Handle;
pub use options::{LinkOptions, SimOptions};
pub use plan::{FaultKind, Plan, PlanAction, PlanError, Setting, Shape, Step};
pub use process::{Death, ProcessId};
pub use random::{Dice, Domain, Random};
