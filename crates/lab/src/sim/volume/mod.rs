//! The volume scenario: a process with a volume and some who work on it, and whatever the plan does to process and drive.

pub mod crash_states;
mod stale;
mod truth;
mod workers;

use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{ChainOptions, OpenError};
use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::{Death, FaultKind, Plan, ProcessId, Setting, Shape, Sim};
use ithaca_env::{Env, Time};
use ithaca_volume::{Planted, Retention, Volume, VolumeError, VolumeOptions, VolumeSettings};

use super::scenario::{Outcome, Points, Scenario, world_of};
use super::workload::machine;
use stale::Client;
use workers::{BLOCKS, Shared, Worker, look};

/// Faults begin within this time.
const HORIZON: Duration = Duration::from_millis(30);
/// Everything is done this long after healing at the latest.
const PATIENCE: Duration = Duration::from_secs(60);
/// A process that ended by itself is started again after this.
const RESTART: Duration = Duration::from_millis(1);
/// Where the volume lies.
const DRIVE: &str = "volume.chain";

/// See the module.
pub struct VolumeScenario {
    /// A fault in the volume, if it is a test of the test.
    pub planted: Planted,
    /// One in the chain below it.
    pub chain: ithaca_chain::Planted,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "workload.operations", choices: &[20, 60, 120] },
    Setting { name: "workload.workers", choices: &[1, 3, 5] },
    Setting { name: "workload.stale_percent", choices: &[0, 30, 60] },
    Setting { name: "volume.retained", choices: &[0, 0, 4, 1_000_000] },
    Setting { name: "volume.versions_max", choices: &[5, 1_000_000, 1_000_000] },
    Setting { name: "volume.kept_blocks", choices: &[0, 2, 6] },
    Setting { name: "volume.tx_max_kib", choices: &[24, 1_000_000, 1_000_000] },
    Setting { name: "chain.segments", choices: &[9, 16] },
    Setting { name: "chain.flights", choices: &[1, 2, 4] },
    Setting { name: "chain.group_max_bytes", choices: &[1, 32_768, 1 << 20] },
    Setting { name: "chain.tail_cache_bytes", choices: &[0, 16_384, 1 << 20] },
    Setting { name: "chain.read_cache_bytes", choices: &[0, 16_384, 1 << 20] },
    Setting { name: "chain.segments_ready", choices: &[1, 2] },
    Setting { name: "drive.speed", choices: &[1, 1, 1, 2] },
    Setting { name: "drive.jitter_percent", choices: &[0, 30, 300] },
    Setting { name: "workload.parts_percent", choices: &[0, 0, 50] },
    Setting { name: "chain.read_cache_takes_writes", choices: &[0, 1, 1] },
];

impl Scenario for VolumeScenario {
    fn name(&self) -> &'static str {
        "volume"
    }

    fn shape(&self) -> Shape {
        let mut faults = FaultKind::survivable();
        // Most of what can go wrong goes wrong between a request and its completion.
        faults.extend([FaultKind::EndAtIo; 6]);
        Shape {
            settings: SETTINGS.to_vec(),
            processes: vec!["node".to_owned()],
            drives: vec![("node".to_owned(), DRIVE.to_owned())],
            links: Vec::new(),
            faults,
            steps_max: 6,
            horizon: HORIZON,
            drive_bytes: 1 << 20,
        }
    }

    fn run(&self, plan: &Plan, readable: bool) -> Outcome {
        let sim = world_of(plan, readable);
        let shared = Rc::new(Shared::of_plan(plan));
        let node = sim.process("node", machine(1));
        let (told, volume) = (Rc::clone(&shared), volume_options(plan, self.planted, self.chain));
        let workers = plan.setting("workload.workers", 3) as u32;
        sim.start(node, move |env| serve(env, volume.clone(), workers, Rc::clone(&told)));
        let failure = run(&sim, node, plan, &shared).err();
        let committed = shared.truth.borrow().committed;
        Outcome { failure, points: points(&shared), committed, ..Outcome::of(&sim) }
    }
}

/// Faults, healing, the rest of the work, two looks at what is there, the verdict.
fn run(sim: &Sim, node: ProcessId, plan: &Plan, shared: &Rc<Shared>) -> Result<(), String> {
    plan.apply(sim).map_err(|error| error.to_string())?;
    run_until(sim, node, shared, Time::ZERO + HORIZON)?;
    sim.heal();
    for look in 1..=2 {
        run_until(sim, node, shared, sim.now() + PATIENCE)?;
        if let Some(wrong) = shared.wrong.borrow().clone() {
            return Err(wrong);
        }
        if !shared.is_done.get() {
            return Err(format!("it is not done long after healing, at look {look}"));
        }
        shared.is_done.set(false);
        sim.end(node, Death::PowerCut);
        sim.restart_after(node, RESTART);
    }
    shared.truth.borrow().judge()
}

/// Runs until it is done, or wrong, or late, starting the process again when it ends by itself.
fn run_until(sim: &Sim, node: ProcessId, shared: &Rc<Shared>, deadline: Time) -> Result<(), String> {
    loop {
        let told = Rc::clone(shared);
        let goes_on =
            move |_: &Sim| !told.is_over.get() && !told.is_done.get() && told.wrong.borrow().is_none();
        let _ = sim.run_while(deadline, goes_on);
        if let Some(wrong) = shared.wrong.borrow().clone() {
            return Err(wrong);
        }
        if !shared.is_over.take() {
            return Ok(());
        }
        sim.end(node, Death::Kill);
        sim.restart_after(node, RESTART);
    }
}

/// One life of the process.
async fn serve(env: Env, options: VolumeOptions, workers: u32, shared: Rc<Shared>) {
    shared.opens.set(shared.opens.get() + 1);
    let volume = match open(&env, &options).await {
        Ok(volume) => volume,
        Err(why) => return shared.refused(&why),
    };
    shared.refused_in_a_row.set(0);
    if look(&volume, &shared).await.is_err() {
        return shared.is_over.set(true);
    }
    shared.at_work.set(workers);
    // Of an earlier life.
    shared.is_discarding.set(false);
    let handles: Vec<_> = (0..workers)
        .map(|number| Worker {
            env: env.clone(),
            volume: volume.clone(),
            shared: Rc::clone(&shared),
            client: Client::new(number + shared.opens.get() as u32, &volume),
        })
        .map(|worker| env.spawn(worker.work()))
        .collect();
    for handle in handles {
        handle.join().await;
    }
    let info = volume.info();
    shared.cleaned.set(shared.cleaned.get() + info.chain.counters.segments_cleaned);
    if !shared.is_over.get() {
        shared.is_done.set(true);
    }
}

async fn open(env: &Env, options: &VolumeOptions) -> Result<Volume, VolumeError> {
    let open = OpenDrive { path: DRIVE.into(), create_bytes: Some(64 << 10), read_only: false };
    let drive = env.open_drive(open).await?;
    match Volume::open(env, &drive, options.settings.clone()).await {
        // A creation was interrupted: nothing was acknowledged.
        Err(VolumeError::Chain(
            OpenError::NotAChain { .. } | OpenError::SuperblockLost { .. } | OpenError::TooSmall { .. },
        ))
        | Err(VolumeError::Unfinished) => Volume::create(env, &drive, options.clone()).await,
        opened => opened,
    }
}

fn volume_options(plan: &Plan, planted: Planted, chain_planted: ithaca_chain::Planted) -> VolumeOptions {
    let number = |name: &str, default: u64| plan.setting(name, default);
    let segment_bytes = 256 << 10;
    let chain = ChainOptions {
        segment_bytes,
        flights: number("chain.flights", 2) as usize,
        group_max_bytes: number("chain.group_max_bytes", 1 << 20) as usize,
        queue_max_bytes: 1 << 20,
        tail_cache_bytes: number("chain.tail_cache_bytes", 1 << 20) as usize,
        read_cache_bytes: number("chain.read_cache_bytes", 0) as usize,
        read_cache_takes_writes: number("chain.read_cache_takes_writes", 1) == 1,
        index_cache_bytes: 64 << 10,
        segments_ready: number("chain.segments_ready", 2) as usize,
        capacity_bytes: (64 << 10) + segment_bytes * number("chain.segments", 16),
        grow_bytes: 2 * segment_bytes,
        clean_start_free_percent: 100,
        clean_stop_free_percent: 100,
        planted: chain_planted,
        ..ChainOptions::default()
    };
    let settings = VolumeSettings {
        chain,
        versions_max: number("volume.versions_max", 1_000_000) as usize,
        kept_max_bytes: number("volume.kept_blocks", 0) as usize * 4096,
        tx_max_bytes: (number("volume.tx_max_kib", 1_000_000) << 10) as usize,
        planted,
        ..VolumeSettings::default()
    };
    let retention = Retention { versions: number("volume.retained", 0), age: Duration::ZERO };
    VolumeOptions { retention, settings, ..VolumeOptions::new(BLOCKS) }
}

fn points(shared: &Shared) -> Points {
    let mut points = Points::default();
    points.see("the volume was opened again", shared.opens.get() > 3);
    points.see("a transaction was in conflict", shared.conflicts.get() > 0);
    points.see("a transaction was ended to make room", shared.preempted.get() > 0);
    points.see("a segment was cleaned", shared.cleaned.get() > 0);
    points.see("a block was given up", shared.discarded.get() > 0);
    points.see("a client was given an old version", shared.truth.borrow().old_taken > 0);
    points.see("history does not begin with the first version", shared.floor.get() > 0);
    points
}
