//! What both kinds of environment promise, tried on both; and the real one against real sockets, files and threads.
//!
//! * `net`: connections, listening, closing.
//! * `local`: connections by the path of a socket.
//! * `drive`: files as drives.
//! * `tasks`: timers and blocking calls.

mod drive;
mod local;
mod net;
mod tasks;

use std::future::Future;
use std::path::PathBuf;

use ithaca_env::sim::Sim;
use ithaca_env::{Env, real};
use tempfile::TempDir;

/// Simulated worlds that each test runs in.
const SEEDS: u64 = 20;

/// Runs a test in a real environment and in simulated ones, with a fresh directory for its drives.
fn everywhere<F: Future<Output = ()> + 'static>(test: impl Fn(Env, PathBuf) -> F + 'static) {
    let dir = TempDir::new().expect("a directory");
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let node = sim.process("node", [10, 0, 0, 1].into());
        sim.block_on(node, test(sim.env(node), dir.path().to_owned()));
    }
    let path = dir.path().to_owned();
    real::run(|env| async move { test(env, path).await });
}
