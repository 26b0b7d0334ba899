//! A process that works on a volume, checks what it reads, and is killed and started again.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{ChainOptions, OpenError};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::sim::{Death, ProcessId, Random, Sim, SimOptions};
use ithaca_volume::{
    Durability, Retention, Snapshot, Version, Volume, VolumeError, VolumeOptions, VolumeSettings,
};

use crate::model::{Blocks, Model, Writes};

pub const MACHINE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Blocks of the volume of most tests.
pub const BLOCKS: u64 = 60;

/// Knobs that make rare paths common: small segments, groups and caches, a cleaner that always works.
pub fn small_settings() -> VolumeSettings {
    let chain = ChainOptions {
        segment_bytes: 256 << 10,
        group_max_bytes: 32 << 10,
        queue_max_bytes: 1 << 20,
        tail_cache_bytes: 64 << 10,
        index_cache_bytes: 16 << 10,
        segments_ready: 1,
        capacity_bytes: 4 << 20,
        grow_bytes: 512 << 10,
        clean_start_free_percent: 100,
        clean_stop_free_percent: 100,
        ..ChainOptions::default()
    };
    VolumeSettings { chain, ..VolumeSettings::default() }
}

/// A small volume that keeps so many versions.
pub fn small_options(versions: u64) -> VolumeOptions {
    let retention = Retention { versions, age: Duration::ZERO };
    VolumeOptions { retention, settings: small_settings(), ..VolumeOptions::new(BLOCKS) }
}

pub async fn open_drive(env: &Env) -> Drive {
    open_named(env, "volume").await
}

pub async fn open_named(env: &Env, name: &str) -> Drive {
    let open = OpenDrive { path: name.into(), create_bytes: Some(64 << 10), read_only: false };
    env.open_drive(open).await.expect("the drive opens")
}

/// A block that is filled with a number.
pub fn block(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(512))
}

/// The number that a block is filled with.
pub fn number(block: &[u8]) -> u64 {
    let number = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
    assert!(block.chunks(8).all(|it| it == number.to_le_bytes()), "a block of one piece");
    number
}

pub fn numbers(data: &[u8]) -> Vec<u64> {
    data.chunks(4096).map(number).collect()
}

fn as_blocks(data: &[u8]) -> Blocks {
    numbers(data).into_iter().enumerate().filter(|(_, it)| *it != 0).map(|(at, it)| (at as u64, it)).collect()
}

/// Runs a test in a world of its own.
pub fn within(seed: u64, test: impl AsyncFnOnce(Env) + 'static) {
    let world = World::new(seed);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { test(env).await });
}

/// Lets a future begin, which has to wait for something.
pub async fn begin<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    let is_done = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
    assert!(!is_done, "it is under way");
    future
}

/// A new volume.
pub async fn create(env: &Env, options: VolumeOptions) -> Volume {
    Volume::create(env, open_drive(env).await, options).await.expect("created")
}

/// Which drives a life is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// The first.
    #[default]
    First,
    /// The first, and another one as a side that holds the same: a new one, unless it is that already.
    Both,
    /// The other one.
    Second,
}

/// One machine with one process and the drives of one volume.
pub struct World {
    pub sim: Sim,
    pub process: ProcessId,
    pub model: Rc<RefCell<Model>>,
    pub cleaned: Rc<Cell<u64>>,
    pub given: Cell<Given>,
}

/// What a life does, by a seed.
#[derive(Clone)]
pub struct Life {
    pub options: VolumeOptions,
    pub seed: u64,
    pub steps: usize,
    pub closes: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let drive_jitter_percent = Random::new(seed).pick(&[30, 300, 2000]);
        let sim = Sim::with_options(seed, SimOptions { drive_jitter_percent, ..SimOptions::default() });
        let process = sim.process("volume", MACHINE);
        Self { sim, process, model: Rc::default(), cleaned: Rc::default(), given: Cell::default() }
    }

    /// One life: opens, checks everything, works. True if it came to its end.
    pub fn live(&self, life: Life) -> bool {
        if !self.sim.is_up(self.process) {
            self.sim.restart(self.process);
        }
        let (env, done) = (self.sim.env(self.process), Rc::new(Cell::new(false)));
        let (model, cleaned, over) = (Rc::clone(&self.model), Rc::clone(&self.cleaned), Rc::clone(&done));
        let given = self.given.get();
        env.clone().spawn(async move {
            let volume = open_or_create(&env, given, &life.options, &model).await;
            check_everything(&volume, &model).await;
            let mut worker = Worker { env, volume: volume.clone(), model, rng: Random::new(life.seed) };
            for _ in 0..life.steps {
                worker.step().await;
            }
            worker.flush().await;
            check_everything(&volume, &worker.model).await;
            cleaned.set(cleaned.get() + volume.info().chain.counters.segments_cleaned);
            if life.closes {
                volume.close().await.expect("no fault was planted");
            }
            over.set(true);
        });
        let (process, seen) = (self.process, Rc::clone(&done));
        let waited = self.sim.run_while(ithaca_env::Time::MAX, move |sim| sim.is_up(process) && !seen.get());
        waited.expect("it ends or it is ended");
        done.get()
    }

    /// Last lives that only look. What a second one finds is what the first found.
    pub fn audit(&self, options: &VolumeOptions) {
        self.sim.end_at_io(self.process, u64::MAX, Death::PowerCut);
        for _ in 0..2 {
            let looks = Life { options: options.clone(), seed: 0, steps: 0, closes: false };
            assert!(self.live(looks), "nothing ends it");
            self.sim.end(self.process, Death::PowerCut);
        }
    }
}

async fn open_or_create(env: &Env, given: Given, options: &VolumeOptions, model: &RefCell<Model>) -> Volume {
    let first = if given == Given::Second { "side" } else { "volume" };
    let (drive, mut new) = (open_named(env, first).await, None);
    let mut drives = vec![drive.clone()];
    if given == Given::Both {
        let other = open_named(env, "side").await;
        match ithaca_chain::identify(&other).await {
            Ok(Some(_)) => drives.push(other),
            Ok(None) | Err(OpenError::SuperblockLost { valid: 0 | 1, .. }) => new = Some(other),
            Err(error) => panic!("{error}"),
        }
    }
    match Volume::open(env, vec![drives], options.settings.clone()).await {
        Ok(volume) => {
            if let Some(new) = new {
                let first = volume.info().chain.links[0].id;
                volume.add_side(first, new).await.expect("it is blank");
            }
            let (newest, mut names) = (volume.info().version.0, volume.snapshots().into_iter());
            let mut model = model.borrow_mut();
            model.settle(newest);
            // The end came while it was made or deleted: from here on it is what it was found to be.
            if let Some(unsure) = model.unsure.take() {
                match names.find(|(name, _)| *name == unsure) {
                    Some((_, version)) => _ = model.names.insert(unsure, version.0),
                    None => _ = model.names.remove(&unsure),
                }
            }
            drop(model);
            volume
        }
        Err(VolumeError::Chain(
            OpenError::NotAChain { .. } | OpenError::SuperblockLost { .. } | OpenError::TooSmall { .. },
        ))
        | Err(VolumeError::Unfinished) => {
            assert_eq!(model.borrow().acked, 0, "an acknowledged volume is not lost");
            Volume::create(env, &drive, options.clone()).await.expect("it is created")
        }
        Err(other) => panic!("{other}"),
    }
}

/// Reads everything: the newest version, versions of the history, snapshots with names.
pub async fn check_everything(volume: &Volume, model: &RefCell<Model>) {
    let info = volume.info();
    let (floor, newest) = (info.floor.0, info.version.0);
    (0..8).for_each(|block| volume.please_cache(block).expect("inside"));
    // Held from the beginning: the floor may rise while they are read.
    let versions = (floor..=newest).step_by(1 + (newest - floor) as usize / 5);
    let named = volume.snapshots().into_iter().map(|(_, version)| version.0);
    let held: Vec<Snapshot> =
        versions.chain(named).map(|version| volume.at(Version(version)).expect("it is kept")).collect();
    let plain = volume.read(0, info.blocks).await.expect("no damage");
    assert_eq!(as_blocks(&plain), model.borrow().at(model.borrow().newest()), "as it is now");
    for snapshot in held {
        check_at(&snapshot, info.blocks, model).await;
    }
    let model = model.borrow();
    for (name, version) in model.names.iter().filter(|(name, _)| model.unsure.as_ref() != Some(*name)) {
        assert_eq!(volume.named(name).expect("it is there").version(), Version(*version));
    }
}

pub async fn check_at(snapshot: &Snapshot, blocks: u64, model: &RefCell<Model>) {
    let data = snapshot.read(0, blocks).await.expect("no damage");
    let version = snapshot.version().0;
    let expected = model.borrow().at(version);
    assert_eq!(as_blocks(&data), expected, "version {version}");
    let extents = snapshot.extents(0..blocks).expect("inside");
    let data: Vec<u64> = extents.filter(|(_, is_data)| *is_data).flat_map(|(blocks, _)| blocks).collect();
    assert_eq!(data, expected.into_keys().collect::<Vec<_>>(), "extents of version {version}");
}

struct Worker {
    env: Env,
    volume: Volume,
    model: Rc<RefCell<Model>>,
    rng: Random,
}

impl Worker {
    async fn step(&mut self) {
        match self.rng.below(40) {
            0 => self.discard().await,
            1 => self.name().await,
            2 => self.forget().await,
            3..7 => self.flush().await,
            7 => check_everything(&self.volume, &self.model).await,
            8..11 => self.env.sleep(Duration::from_micros(self.rng.below(500))).await,
            _ => self.write().await,
        }
    }

    fn blocks(&mut self) -> (u64, u64) {
        // A few blocks are written all the time, the others seldom.
        let first = if self.rng.below(3) == 0 { self.rng.below(BLOCKS) } else { self.rng.below(8) };
        (first, (1 + self.rng.below(4)).min(BLOCKS - first))
    }

    async fn write(&mut self) {
        let (first, count) = self.blocks();
        let durability =
            self.rng.pick(&[Durability::Acknowledged, Durability::Acknowledged, Durability::Stable]);
        let mut writes = Writes::new();
        let mut data = Vec::new();
        for at in first..first + count {
            let mut model = self.model.borrow_mut();
            model.serial += 1;
            writes.push((at, model.serial));
            data.extend_from_slice(&block(model.serial));
        }
        self.model.borrow_mut().asked = Some(writes);
        let written = self.volume.write(first, data.into(), durability).await;
        self.answered(written, durability);
    }

    async fn discard(&mut self) {
        let (first, count) = self.blocks();
        let durability = self.rng.pick(&[Durability::Acknowledged, Durability::Stable]);
        self.model.borrow_mut().asked = Some((first..first + count).map(|at| (at, 0)).collect());
        let discarded = self.volume.discard(first..first + count, durability).await;
        self.answered(discarded, durability);
    }

    fn answered(&mut self, answer: Result<Version, VolumeError>, durability: Durability) {
        let mut model = self.model.borrow_mut();
        match answer {
            Ok(version) => {
                model.answered(version.0);
                if durability == Durability::Stable {
                    model.note_durable(version.0);
                }
            }
            Err(VolumeError::Full { .. }) => model.asked = None,
            Err(other) => panic!("{other}"),
        }
    }

    async fn flush(&mut self) {
        let version = self.volume.flush().await.expect("no fault was planted");
        self.model.borrow_mut().note_durable(version.0);
    }

    async fn name(&mut self) {
        if self.model.borrow().names.len() >= 3 {
            return;
        }
        let name = format!("n{}", self.rng.below(5));
        self.model.borrow_mut().unsure = Some(name.clone());
        match self.volume.create_snapshot(&name).await {
            Ok(version) => {
                let mut model = self.model.borrow_mut();
                model.note_durable(version.0);
                model.names.insert(name, version.0);
            }
            Err(VolumeError::NameTaken { .. } | VolumeError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        self.model.borrow_mut().unsure = None;
    }

    async fn forget(&mut self) {
        let name = self.model.borrow().names.keys().next().cloned();
        let Some(name) = name else { return };
        self.model.borrow_mut().unsure = Some(name.clone());
        match self.volume.delete_snapshot(&name).await {
            Ok(()) => _ = self.model.borrow_mut().names.remove(&name),
            Err(VolumeError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        self.model.borrow_mut().unsure = None;
    }
}
