//! What a start says while it waits for drives. In simulated time.

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ithaca_env::sim::{DriveFault, Sim};
use ithaca_log::server::{LocalCluster, LocalOptions};
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
