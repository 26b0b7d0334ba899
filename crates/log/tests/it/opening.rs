//! What a start says while it waits for drives, and what it does after one that was not finished. In simulated time.

use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ithaca_chain::{ChainOptions, OpenError};
use ithaca_env::drive::DriveError;
use ithaca_env::sim::{DriveFault, Sim, SimOptions};
use ithaca_log::server::{LocalCluster, LocalOptions, StartError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::worlds::options;

/// Warnings, each with its fields on one line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("there is memory");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_start_that_waits_for_a_drive_says_for_which_every_ten_seconds() {
    // A drive that hangs, or takes no more requests, is waited for: without a word an operator sees a process that does nothing.
    let (warnings, sim) = (Warnings::default(), Sim::new(1));
    let node = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(node);
    let options = LocalOptions { listen: ([10, 0, 0, 1], 7420).into(), ..options(Path::new("data"), 2) };
    let start = || {
        let (env, options) = (env.clone(), options.clone());
        async move { LocalCluster::start(&env, options).await.expect("it starts").stop().await }
    };
    let told = || std::mem::take(&mut *warnings.0.lock().expect("no panic"));
    tracing::subscriber::with_default(warnings.clone(), || {
        sim.block_on(node, start());
        assert_eq!(told(), Vec::<String>::new());
        let drive = sim.drive([10, 0, 0, 1].into(), "data/unit-2.chain");
        sim.fault_drive(drive, DriveFault::Stuck { span: Duration::from_secs(25) });
        sim.block_on(node, start());
        let told = told();
        let names = |line: &String| line.contains("unit=2") && line.contains("data/unit-2.chain");
        assert!(told.len() == 2 && told.iter().all(names), "{told:?}");
    });
}

#[test]
fn a_first_start_that_had_no_room_for_all_of_its_drives_is_gone_on_with_by_the_next() {
    // The registers and the first drive are there, and no cluster: neither is to be taken for what is left of one that was lost.
    const SEGMENT_BYTES: u64 = 128 << 10;
    let room = SimOptions { machine_capacity_bytes: 20 << 20, ..SimOptions::default() };
    for drives in [&["/a", "/b"][..], &["/b", "/a"], &["/a"], &["/c"], &[]] {
        let sim = Sim::with_options(1, room.clone());
        let node = sim.process("node", [10, 0, 0, 1].into());
        let start = |drives: &[&str], create_bytes: u64| {
            let listen = ([10, 0, 0, 1], 7420).into();
            let chain = ChainOptions {
                segment_bytes: SEGMENT_BYTES,
                capacity_bytes: 10 << 20,
                grow_bytes: 2 * SEGMENT_BYTES,
                reserve_segments: 1,
                tail_cache_bytes: 4096,
                ..ChainOptions::default()
            };
            let drives = drives.iter().map(PathBuf::from).collect();
            let options =
                LocalOptions { drives, create_bytes, chain, ..LocalOptions::new(Path::new("/data"), listen) };
            let env = sim.env(node);
            sim.block_on(node, async move {
                LocalCluster::start(&env, options).await.map(|cluster| cluster.stop())?.await;
                Ok(())
            })
        };
        let full = start(&["/a", "/b"], 10 << 20);
        let is_full = matches!(&full, Err(StartError::Chain(OpenError::Drive(DriveError::NoSpace { path, .. })))
            if path == "/b");
        assert!(is_full, "{full:?}");
        let next: Result<(), StartError> = start(drives, 2 << 20);
        assert!(next.is_ok(), "{drives:?}: {next:?}");
        let again = start(&[], 2 << 20);
        assert!(again.is_ok(), "{drives:?}: {again:?}");
    }
}
