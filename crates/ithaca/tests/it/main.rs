//! Drives the built program as a user would: real processes, sockets, files and signals.
//!
//! * [`append`], [`read`]: the log's verbs, their output and exit codes.
//! * [`serve`]: starting, stopping, resuming, and what a start is refused for.
//! * [`pages`]: metrics, health and status.
//! * [`top`]: what it prints where there is no terminal.
//! * [`settings`]: flags, environment and file.
//! * [`drives`]: several drives for a unit.
//! * [`drive`]: drives that come and go while a cluster serves.
//! * [`offline`]: `fsck` and `dump` of what a cluster left.
//! * [`roles`]: servers whose settings name some roles only.
//! * [`cluster`]: clusters of several servers, and who belongs to them.
//! * [`crash`]: SIGKILL under load; nothing acknowledged may be missing.
//! * [`volume`]: volumes, and real clients of NBD.
//! * [`stream`]: appends to streams, and where they end.
//! * [`object`]: maps and transactions.
//! * [`bench`]: every workload prints its figures.
//! * [`python`]: a client in another language.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a user has files, sockets and processes, and no Env"
)]

mod append;
mod bench;
mod cluster;
mod crash;
mod drive;
mod drives;
mod harness;
mod object;
mod offline;
mod pages;
mod python;
mod read;
mod roles;
mod serve;
mod settings;
mod stream;
mod top;
mod volume;
