//! Volumes against their model, on simulated drives.
//!
//! * [`model`]: what a volume must hold at each version.
//! * [`world`]: a process that works on a volume, checks what it reads, and is killed and started again.
//! * [`plain`]: reads, writes, discards, flushes, extents, and what is refused.
//! * [`crashes`]: power cuts and kills at every I/O point; many lives with random knobs.
//! * [`damage`]: flipped bits and unreadable sectors.
//! * [`file`]: a volume as a file, with transactions of threads.
//! * [`nbd`]: clients of a served volume.
//! * [`history`]: floors, snapshots, room that old versions give back.
//! * [`lost`]: what the chain says of itself is harmed after a power cut.
//! * [`planted`]: deliberate faults (with the feature `planted-bugs`).
//! * [`real`]: a file of the real file system.
//! * [`regions`]: parts of a volume with names, in every way into it.
//! * [`rescue`]: what is shown of a volume that has lost groups of its chain.
//! * [`sides`]: sides that a volume is given while it is used.
//! * [`socket`]: transactions of other processes.
//! * [`socket_memory`]: the same through memory that client and server have.
//! * [`socket_room`]: what its clients hold together.
//! * [`stale`]: clients that take old versions, against what each is owed; costs, walks, updates.
//! * [`transactions`]: many at a time, nested, released, ended, and crashed.

mod crashes;
mod damage;
mod file;
mod history;
mod lost;
mod model;
mod nbd;
mod plain;
#[cfg(feature = "planted-bugs")]
mod planted;
mod real;
mod regions;
mod rescue;
mod sides;
mod socket;
mod socket_memory;
mod socket_room;
mod stale;
mod transactions;
mod world;
