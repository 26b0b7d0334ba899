//! Clients that take old versions, against what each is owed; costs, walks, updates.

use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_chain::{ChainOptions, Placement};
use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::Random;
use ithaca_env::{Env, Time};
use ithaca_volume::stale::{Cost, Costs, DriveCost, Level, StaleClient, StaleStore, VersionRange};
use ithaca_volume::{Durability, Planted, Version, Volume, VolumeError, VolumeOptions};

use crate::world::{block, create, number, small_options, within};

/// Few, so that each is written often.
const BLOCKS: u64 = 5;
const AGE: Duration = Duration::from_millis(3);

/// Levels that clients of the model have.
const LEVELS: [Level; 8] = [
    Level::ANY,
    Level::STRONG,
    Level::READ_MY_WRITES,
    Level::MONOTONIC_READS,
    Level::SESSION,
    Level::within_updates(2),
    Level::within_age(AGE),
    Level { updates_max: Some(4), age_max: Some(AGE), own_writes: true, monotonic: true },
];

/// What a client has done, as the test has it.
#[derive(Default)]
struct Past {
    /// By block, the version that wrote what was read last, and that of the last own write.
    read: BTreeMap<u64, u64>,
    written: BTreeMap<u64, u64>,
}

/// All writes, and everything that was ever read.
#[derive(Default)]
struct Truth {
    /// By block: version, number, and when it was known to be durable.
    writes: BTreeMap<u64, Vec<(u64, u64, Time)>>,
    seen: BTreeMap<(u64, u64), u64>,
    serial: u64,
}

impl Truth {
    fn of(&self, block: u64) -> &[(u64, u64, Time)] {
        self.writes.get(&block).map_or(&[], Vec::as_slice)
    }

    /// The write that a read of a block at a version sees: version and number.
    fn at(&self, block: u64, version: u64) -> (u64, u64) {
        let found = self.of(block).iter().rev().find(|(written, ..)| *written <= version);
        found.map_or((0, 0), |&(version, number, _)| (version, number))
    }

    /// What was read is what was there, now and each time.
    fn check_version(&mut self, block: u64, version: Version, found: u64) {
        assert_eq!(found, self.at(block, version.0).1, "block {block} at {version}");
        let before = self.seen.insert((block, version.0), found);
        assert!(before.is_none_or(|before| before == found), "block {block} at {version} has changed");
    }

    /// What was read is no older than the client's level allows.
    fn check_level(&self, level: Level, past: &Past, block: u64, version: u64, now: Time) {
        let (written, _) = self.at(block, version);
        let left_out = self.of(block).iter().filter(|(other, ..)| *other > written).count() as u64;
        assert!(level.updates_max.is_none_or(|most| left_out <= most), "{left_out} updates are left out");
        if let Some(age) = level.age_max {
            let is_owed = |(_, _, at): &&(u64, u64, Time)| *at <= now - age;
            let owed = self.of(block).iter().rev().find(is_owed).map_or(0, |(version, ..)| *version);
            assert!(written >= owed, "{written} is read, {owed} was durable {age:?} ago");
        }
        let of = |past: &BTreeMap<u64, u64>| past.get(&block).copied().unwrap_or(0);
        assert!(!level.own_writes || written >= of(&past.written), "an own write is not seen");
        assert!(!level.monotonic || written >= of(&past.read), "less is seen than before");
    }
}

/// A store, clients of every level, and who writes besides.
struct World {
    env: Env,
    store: StaleStore,
    clients: Vec<(StaleClient, Past)>,
    truth: Truth,
    rng: Random,
}

impl World {
    async fn write(&mut self, by: Option<usize>) {
        self.truth.serial += 1;
        let (at, serial) = (self.rng.below(BLOCKS), self.truth.serial);
        let version = match by {
            Some(client) => {
                let (state, past) = &mut self.clients[client];
                let version = self.store.write_for(state, at, block(serial)).await.expect("room");
                past.written.insert(at, version.0);
                version
            }
            None => self.store.write(at, block(serial)).await.expect("room"),
        };
        self.truth.writes.entry(at).or_default().push((version.0, serial, self.env.now()));
    }

    async fn read(&mut self, client: usize) {
        let (at, now) = (self.rng.below(BLOCKS), self.env.now());
        let (state, past) = &mut self.clients[client];
        let read = self.store.read(state, at).await.expect("no fault");
        let level = state.level();
        self.truth.check_version(at, read.version, number(&read.data));
        self.truth.check_level(level, past, at, read.version.0, now);
        past.read.insert(at, self.truth.at(at, read.version.0).0);
        for end in [read.range.first, read.range.last] {
            if let Ok(data) = self.store.read_version(at, end).await {
                assert_eq!(data, read.data, "the block is the same over {:?}", read.range);
                self.truth.check_version(at, end, number(&data));
            }
        }
    }

    /// Several blocks, all of them as they were at one version; others write meanwhile.
    async fn walk(&mut self) {
        let history = self.store.history();
        let mut walk = self.store.walk(history, 4).expect("the newest can be read");
        let mut found = Vec::new();
        for _ in 0..3 {
            let at = self.rng.below(BLOCKS);
            found.push((at, number(&walk.read(at).await.expect("no fault"))));
            if self.rng.below(2) == 0 {
                self.write(None).await;
            }
        }
        for (at, number) in found {
            let range = walk.range();
            for version in [range.first, walk.version(), range.last] {
                // Of versions that history has lost nobody says anything.
                if self.store.open(version).is_err() {
                    assert_ne!(version, walk.version(), "it is kept");
                    continue;
                }
                assert_eq!(self.truth.at(at, version.0).1, number, "block {at}, {:?}", walk.range());
            }
        }
    }

    /// Several blocks at once, of which nobody sees a part.
    async fn update(&mut self, is_dropped: bool) {
        let mut update = self.store.open_new();
        let mut written = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            self.truth.serial += 1;
            let (at, serial) = (self.rng.below(BLOCKS), self.truth.serial);
            update.write(at, block(serial)).expect("a block");
            assert_eq!(number(&update.read(at).await.expect("its own")), serial);
            written.retain(|(other, _)| *other != at);
            written.push((at, serial));
        }
        if is_dropped {
            return;
        }
        let version = update.close().await.expect("room").0;
        for (at, serial) in written {
            self.truth.writes.entry(at).or_default().push((version, serial, self.env.now()));
        }
    }

    async fn step(&mut self) {
        let client = self.rng.below(self.clients.len() as u64) as usize;
        match self.rng.below(20) {
            0..4 => self.write(Some(client)).await,
            4..8 => self.write(None).await,
            8 => self.update(self.rng.clone().below(3) == 0).await,
            9 => self.walk().await,
            10 => self.env.sleep(Duration::from_micros(self.rng.below(4000))).await,
            _ => self.read(client).await,
        }
    }
}

/// A history of reads and writes by clients of every level.
pub fn clients_live(seed: u64, planted: Planted) {
    within(seed, async move |env| {
        let mut rng = Random::new(seed);
        let mut options = small_options(rng.pick(&[0, 3, 40, 1_000_000]));
        options.settings.planted = planted;
        options.settings.chain.tail_cache_bytes = rng.pick(&[0, 64 << 10]);
        options.settings.chain.read_cache_bytes = rng.pick(&[0, 16 << 10, 1 << 20]);
        options.settings.chain.read_cache_takes_writes = rng.below(3) > 0;
        let volume = create(&env, options).await;
        let store = StaleStore::new(&volume, Costs::all(DriveCost::NVME));
        let client = |level| (store.client(level, Version(0), 3), Past::default());
        let clients = LEVELS.into_iter().map(client).collect();
        let mut world = World { env, store, clients, truth: Truth::default(), rng };
        for _ in 0..400 {
            world.step().await;
        }
    });
}

#[test]
fn every_client_is_given_what_it_is_owed_and_a_version_never_changes() {
    for seed in 0..40 {
        clients_live(seed, Planted::default());
    }
}

/// A volume on two drives whose small segments go from one to the other, with nothing in memory.
async fn on_two_drives(env: &Env) -> Volume {
    let mut drives = Vec::new();
    for name in ["one", "two"] {
        let open = OpenDrive { path: name.into(), create_bytes: Some(64 << 10), read_only: false };
        drives.push(vec![env.open_drive(open).await.expect("it opens")]);
    }
    let mut options = VolumeOptions { ..small_options(1_000_000) };
    let chain =
        ChainOptions { placement: Placement::RoundRobin, tail_cache_bytes: 0, ..options.settings.chain };
    options.settings.chain = ChainOptions { capacity_bytes: 8 << 20, ..chain };
    Volume::create(env, drives, options).await.expect("blank drives")
}

#[test]
fn the_version_on_the_drive_with_less_to_do_costs_less_and_memory_least() {
    within(3, async |env| {
        let volume = on_two_drives(&env).await;
        let store = StaleStore::new(&volume, Costs::all(DriveCost::DISK));
        assert_eq!(store.cost(7, Version(0)), Ok(Cost::MEMORY), "it reads as zeros");
        let mut versions = vec![store.write(0, block(1)).await.expect("room")];
        // A segment further, so on the other drive.
        for at in 1..40 {
            volume.write(at, block(at), Durability::Stable).await.expect("room");
        }
        versions.push(store.write(0, block(2)).await.expect("room"));
        // Until no segment is made ready any more.
        env.sleep(Duration::from_secs(1)).await;
        let idle = store.cost(0, versions[0]).expect("it is there");
        assert_eq!(store.cost(0, versions[1]), Ok(idle), "one kind of drive, nothing to do");
        let both = VersionRange { first: versions[0], last: versions[1] };
        assert_eq!(store.cheapest(0, both, 2), Ok((versions[0], idle)), "the older one of equals");
        for busy in 0..2 {
            // Started, and not waited for.
            let snapshot = store.open(versions[busy]).expect("it is kept");
            let reading = env.spawn(async move { snapshot.read(0, 1).await });
            env.yield_now().await;
            let (chosen, cost) = store.cheapest(0, both, 2).expect("they are there");
            assert_eq!((chosen, cost), (versions[1 - busy], idle), "{versions:?}");
            assert_eq!(store.cost(0, versions[busy]), Ok(Cost(2 * idle.0)));
            reading.join().await.expect("it ends").expect("no fault");
        }
    });
}

#[test]
fn what_was_read_is_in_memory_if_there_is_room_and_costs_nothing() {
    within(4, async |env| {
        let mut options = small_options(1_000_000);
        options.settings.chain.tail_cache_bytes = 0;
        options.settings.chain.read_cache_bytes = 2 * 4096;
        let volume = create(&env, options).await;
        let store = StaleStore::new(&volume, Costs::all(DriveCost::DISK));
        let old = store.write(0, block(1)).await.expect("room");
        let new = store.write(0, block(2)).await.expect("room");
        assert_eq!(store.cost(0, old), Ok(Cost::MEMORY), "there is room for both");
        store.write(1, block(3)).await.expect("room");
        assert!(store.cost(0, old).expect("it is there") > Cost::MEMORY, "it has left first");
        assert_eq!(store.cost(0, new), Ok(Cost::MEMORY));
        assert_eq!(number(&store.read_version(0, old).await.expect("no fault")), 1);
        assert_eq!(store.cost(0, old), Ok(Cost::MEMORY));
        let both = VersionRange { first: Version(0), last: new };
        let mut client = store.client(Level::ANY, old, 8);
        assert_eq!(store.cheapest(0, both, 1), Ok((Version(0), Cost::MEMORY)), "it was zeros once");
        assert_eq!(store.read(&mut client, 0).await.expect("no fault").version, old);
    });
}

#[test]
fn what_was_written_is_in_memory_too_through_every_move_and_takes_the_place_of_what_it_was() {
    // The newest version of every block has room, and nothing more.
    const ALL: u64 = crate::world::BLOCKS;
    for (seed, tail_cache_bytes) in [(6, 0), (7, 40 << 10)] {
        within(seed, async move |env| {
            let mut options = small_options(0);
            options.settings.chain.tail_cache_bytes = tail_cache_bytes;
            options.settings.chain.read_cache_bytes = ALL as usize * 4096;
            let volume = create(&env, options).await;
            let store = StaleStore::new(&volume, Costs::all(DriveCost::DISK));
            let (mut rng, mut model) = (Random::new(seed), vec![0; ALL as usize]);
            for step in 1..3000 {
                let at = rng.below(ALL);
                let durability = rng.pick(&[Durability::Stable, Durability::Acknowledged]);
                volume.write(at, block(step), durability).await.expect("room");
                model[at as usize] = step;
                if step % 50 == 0 {
                    let newest = volume.flush().await.expect("no fault");
                    for at in 0..ALL {
                        assert_eq!(store.cost(at, newest), Ok(Cost::MEMORY), "block {at}, step {step}");
                        let read = volume.read(at, 1).await.expect("no damage");
                        assert_eq!(number(&read), model[at as usize], "block {at}, step {step}");
                    }
                }
            }
            let chain = volume.info().chain;
            assert!(chain.counters.records_moved > 200, "blocks have moved");
            assert!(chain.read_cache_bytes <= ALL as usize * 4096, "more than was allowed");
        });
    }
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    within(5, async |env| {
        let volume = create(&env, small_options(10)).await;
        let store = StaleStore::new(&volume, Costs::all(DriveCost::RAM));
        store.write(0, block(1)).await.expect("room");
        let refused = store.cost(0, Version(2)).expect_err("there is no such version").to_string();
        assert_eq!(refused, "version 2 cannot be read: history goes from 0 to 1");
        let refused = store.version_range(60, Version(1)).expect_err("there is no such block").to_string();
        assert_eq!(refused, "blocks 60 to 60 of a volume of 60 blocks");
        let mut update = store.open_new();
        assert!(matches!(update.write(60, block(1)), Err(VolumeError::OutOfRange { .. })));
        assert!(matches!(update.write(0, block(1).slice(1..)), Err(VolumeError::NotWholeBlocks { .. })));
        assert_eq!(update.close().await, Ok(Version(1)), "nothing was written");
        let mut strange = store.client(Level::READ_MY_WRITES, Version(0), 8);
        strange.note_write([0], Version(9));
        let refused = store.read(&mut strange, 0).await.expect_err("version 9 is not here").to_string();
        assert_eq!(refused, "version 9 cannot be read: history goes from 0 to 1");
    });
}
