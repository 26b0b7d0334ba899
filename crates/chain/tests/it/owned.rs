//! Keys with versions: an owner that is told where records lie, cleaned all the time, crashed everywhere.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainError, ChainOptions, Cleaning, DamageKind, Drives, Keys, MetadataDrive,
    OpenError, Owner, Place, PlaceError, Placed, RunKind, Ticket, check,
};
use ithaca_env::Env;
use ithaca_env::sim::{Death, DriveFault, Random};

use crate::cleaning::{eager, in_body};
use crate::drives::{THREE, tiny_drives};
use crate::model::{junk, run_of};
use crate::repairs::Held;
use crate::unread::blocks_of;
use crate::world::{MACHINE, World, identity, open_drives, open_metadata, small_options};

/// Version, whether there is data, and where.
type Entry = (u64, RunKind, Place);

/// The map of a block address space.
#[derive(Default)]
pub struct Map {
    entries: RefCell<BTreeMap<u64, Entry>>,
    /// A key whose place the owner does not give up.
    pinned: Cell<Option<u64>>,
    dropped: Cell<u64>,
}

impl Map {
    /// Where the newest version of a key lies.
    pub fn place(&self, key: u64) -> Option<Place> {
        self.entries.borrow().get(&key).map(|(_, _, place)| *place)
    }
}

impl Owner for Map {
    fn placed(&self, it: Placed) -> Option<Place> {
        let mut entries = self.entries.borrow_mut();
        match entries.get(&it.key) {
            Some(&(version, _, _)) if version >= it.version => Some(it.place),
            before => {
                let garbage = before.map(|before| before.2);
                entries.insert(it.key, (it.version, it.kind, it.place));
                garbage
            }
        }
    }

    fn is_live(&self, it: Placed) -> bool {
        self.entries.borrow().get(&it.key) == Some(&(it.version, it.kind, it.place))
    }

    fn newest(&self, key: u64) -> Option<(u32, u32)> {
        let data = self.entries.borrow().get(&key).copied().filter(|(_, kind, _)| *kind == RunKind::Data);
        data.map(|(_, _, place)| (place.segment, place.offset))
    }

    fn moved(&self, it: Placed, to: Place) -> bool {
        let takes = self.is_live(it) && self.pinned.get() != Some(it.key);
        if takes {
            self.entries.borrow_mut().insert(it.key, (it.version, it.kind, to));
        }
        takes
    }

    fn dropped(&self, it: Placed) -> bool {
        let forgets = self.is_live(it);
        if forgets {
            self.entries.borrow_mut().remove(&it.key);
            self.dropped.set(self.dropped.get() + 1);
        }
        forgets
    }
}

/// What a batch does: keys with their new versions, and their data unless they are deleted.
type Writes = Vec<(u64, u64, Option<u8>)>;

/// Blocks after some batches: key -> version and byte.
type Blocks = BTreeMap<u64, (u64, u8)>;

#[derive(Default)]
struct Model {
    base: Blocks,
    since: Vec<Writes>,
    acked: usize,
    version: u64,
    total_acked: u64,
}

impl Model {
    fn after(&self, batches: usize) -> Blocks {
        let mut blocks = self.base.clone();
        for &(key, version, byte) in self.since[..batches].iter().flatten() {
            match byte {
                Some(byte) => _ = blocks.insert(key, (version, byte)),
                None => _ = blocks.remove(&key),
            }
        }
        blocks
    }
}

const BLOCKS: u64 = 60;

fn batch_of(writes: &Writes) -> Batch {
    let run = |&(key, version, byte): &(u64, u64, Option<u8>)| match byte {
        Some(byte) => run_of(key, version, &[Bytes::from(vec![byte; 4096])]),
        None => junk(key, 1, version),
    };
    Batch { runs: writes.iter().map(run).collect(), ..Batch::default() }
}

/// Everything that the owner knows, read at its places.
async fn read_all(chain: &Chain, map: &Map) -> Blocks {
    let mut blocks = Blocks::new();
    let entries: Vec<(u64, Entry)> = map.entries.borrow().iter().map(|(&key, &entry)| (key, entry)).collect();
    'keys: for (key, mut entry) in entries {
        let data = loop {
            match chain.read_at(entry.2).await {
                Ok(data) => break data,
                Err(error @ PlaceError::Moved { .. }) => {
                    // The junk of a deleted block may be gone by now.
                    let Some(now) = map.entries.borrow().get(&key).copied() else { continue 'keys };
                    assert_ne!(now, entry, "key {key} has not moved: {error}");
                    entry = now;
                }
                Err(other) => panic!("key {key}: {other}"),
            }
        };
        if entry.1 == RunKind::Data {
            assert!(data.iter().all(|byte| *byte == data[0]), "key {key}");
            blocks.insert(key, (entry.0, data[0]));
        }
    }
    blocks
}

struct Owned {
    world: World,
    model: Rc<RefCell<Model>>,
    cleaned: Rc<Cell<u64>>,
    dropped: Rc<Cell<u64>>,
}

impl Owned {
    fn new(seed: u64, drives: &[&'static str]) -> Self {
        let world = World::over(seed, drives);
        Self { world, model: Rc::default(), cleaned: Rc::default(), dropped: Rc::default() }
    }

    /// One life: opens, checks that the map is that of a prefix, overwrites and deletes blocks. True if it came to its end.
    fn live(&self, options: &ChainOptions, seed: u64, steps: usize) -> bool {
        let world = &self.world;
        if !world.sim.is_up(world.process) {
            world.sim.restart(world.process);
        }
        let (env, names, options) = (world.sim.env(world.process), world.drives.clone(), options.clone());
        let (model, metadata) = (Rc::clone(&self.model), world.metadata);
        let (cleaned, dropped) = (Rc::clone(&self.cleaned), Rc::clone(&self.dropped));
        world.comes_to_its_end(async move {
            let map = Rc::new(Map::default());
            let metadata = open_metadata(&env, metadata).await;
            let chain = open(&env, &names, metadata.as_ref(), options, &map, &model).await;
            settle(&chain, &map, &model).await;
            work(&env, &chain, &map, &model, seed, steps).await;
            cleaned.set(cleaned.get() + chain.stats().counters.segments_cleaned);
            dropped.set(dropped.get() + map.dropped.get());
        })
    }

    fn audit(&self, options: &ChainOptions) {
        let world = &self.world;
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        for _ in 0..2 {
            assert!(self.live(options, 0, 0), "nothing ends it");
            world.sim.end(world.process, Death::PowerCut);
        }
    }
}

async fn open(
    env: &Env,
    names: &[&str],
    metadata: Option<&MetadataDrive>,
    options: ChainOptions,
    map: &Rc<Map>,
    model: &RefCell<Model>,
) -> Chain {
    let drives = Drives::from(open_drives(env, names).await).with_metadata(metadata);
    let owner: Rc<dyn Owner> = Rc::clone(map) as Rc<dyn Owner>;
    let opened =
        Chain::open_owned(env, drives.clone(), Some(&identity()), options.clone(), Rc::clone(&owner)).await;
    match opened {
        Ok((chain, recovered)) => {
            assert_eq!(recovered.damage, []);
            chain
        }
        Err(OpenError::NotAChain { .. } | OpenError::SuperblockLost { .. } | OpenError::TooSmall { .. }) => {
            assert_eq!(model.borrow().total_acked, 0, "an acknowledged chain is not lost");
            Chain::create_owned(env, drives, identity(), options, owner).await.expect("it is created")
        }
        Err(other) => panic!("{other}"),
    }
}

/// What the owner has after an open is what it had after some batches, all acknowledged ones among them.
async fn settle(chain: &Chain, map: &Map, model: &RefCell<Model>) {
    let found = read_all(chain, map).await;
    let mut model = model.borrow_mut();
    let fits = (model.acked..=model.since.len()).find(|&count| model.after(count) == found);
    let Some(count) = fits else {
        panic!("no prefix: {found:?}, acknowledged {:?}", model.after(model.acked));
    };
    model.base = model.after(count);
    model.since.clear();
    model.acked = 0;
}

async fn work(env: &Env, chain: &Chain, map: &Map, model: &RefCell<Model>, seed: u64, steps: usize) {
    let mut rng = Random::new(seed);
    let mut tickets: Vec<Ticket> = Vec::new();
    for _ in 0..steps {
        let mut writes = Writes::new();
        for _ in 0..1 + rng.below(3) {
            let version = {
                let mut model = model.borrow_mut();
                model.version += 1;
                model.version
            };
            // A few blocks are written all the time, the others seldom.
            let key = if rng.below(3) == 0 { rng.below(BLOCKS) } else { rng.below(8) };
            if writes.iter().all(|(other, _, _)| *other != key) {
                writes.push((key, version, (rng.below(5) != 0).then_some(version as u8)));
            }
        }
        match chain.append(batch_of(&writes)) {
            Ok(ticket) => {
                tickets.push(ticket);
                model.borrow_mut().since.push(writes);
            }
            Err(AppendError::Overloaded { .. } | AppendError::Full { .. }) => {
                env.sleep(Duration::from_micros(500)).await;
            }
            Err(other) => panic!("{other}"),
        }
        if rng.below(3) == 0 {
            chain.wait(*tickets.last().unwrap_or(&Ticket(0))).await.expect("no fault was planted");
        }
        if rng.below(10) == 0 {
            // Reads at places that the cleaner may be about to give up.
            let blocks = read_all(chain, map).await;
            let (acked, all) = (note(chain, &tickets, model), model.borrow().since.len());
            let oldest = model.borrow().after(acked.min(all));
            assert!(blocks.len() + 3 * (all - acked + 40) >= oldest.len());
        }
        note(chain, &tickets, model);
    }
    match chain.wait(*tickets.last().unwrap_or(&Ticket(0))).await {
        Ok(()) | Err(ChainError::Closed) => {}
        Err(error) => panic!("{error}"),
    }
    note(chain, &tickets, model);
    let found = read_all(chain, map).await;
    let model = model.borrow();
    assert_eq!(found, model.after(model.since.len()), "everything is durable now");
}

fn note(chain: &Chain, tickets: &[Ticket], model: &RefCell<Model>) -> usize {
    let acked = tickets.partition_point(|ticket| *ticket <= chain.durable());
    let mut model = model.borrow_mut();
    model.total_acked += (acked - model.acked) as u64;
    model.acked = acked;
    acked
}

/// Two lives; the second is cut off at I/O point `point`.
pub fn cut_at(point: u64, drives: &[&'static str], options: &ChainOptions) -> bool {
    let owned = Owned::new(5, drives);
    assert!(owned.live(options, 1, 80));
    let sim = &owned.world.sim;
    sim.end(owned.world.process, Death::PowerCut);
    sim.restart(owned.world.process);
    sim.end_at_io(owned.world.process, sim.io_points(owned.world.process) + point, Death::PowerCut);
    let survived = owned.live(options, 2, 50);
    sim.end(owned.world.process, Death::PowerCut);
    owned.audit(options);
    survived
}

#[test]
fn the_newest_version_of_every_block_is_there_wherever_the_power_is_cut() {
    // A map that points at a segment that was freed, an older version that comes back, a deleted block too.
    let mut points = 0;
    while !cut_at(points + 1, &["chain"], &eager()) {
        points += 3;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
}

/// Overwrites blocks in no order, alone or a few together, harms the directories of all closed segments, and has these cleaned.
fn is_cleaned_by_groups(seed: u64, options: &ChainOptions) {
    let world = World::new(seed);
    let (env, map) = (world.sim.env(world.process), Rc::new(Map::default()));
    let (owner, options) = (Rc::clone(&map) as Rc<dyn Owner>, options.clone());
    let (chain, newest) = world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &["chain"]).await;
        let chain = Chain::create_owned(&env, drives, identity(), options, owner).await.expect("created");
        let (mut rng, mut newest) = (Random::new(seed), Blocks::new());
        for version in 1..400 {
            let key = rng.below(BLOCKS);
            let payloads = vec![Bytes::from(vec![version as u8; 4096]); 1 + rng.below(3) as usize];
            newest.extend((key..key + payloads.len() as u64).map(|key| (key, (version, version as u8))));
            let mut run = run_of(key, version, &payloads);
            // Of runs with one record and no meta pages are packed.
            run.meta = if seed.is_multiple_of(2) { Bytes::new() } else { run.meta };
            let batch = Batch { runs: vec![run], ..Batch::default() };
            let ticket = loop {
                match chain.append(batch.clone()) {
                    Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_micros(500)).await,
                    appended => break appended.expect("room"),
                }
            };
            chain.wait(ticket).await.expect("no fault");
        }
        (chain, newest)
    });
    let drive = world.sim.drive(MACHINE, "chain");
    let mut harmed = 0;
    for offset in (0..world.sim.drive_size_bytes(drive).expect("it is there")).step_by(4096) {
        if world.sim.peek_drive(drive, offset, 4096).starts_with(b"ITHD") {
            world.sim.fault_drive(drive, DriveFault::BitRot { offset: offset + 30, bit: 2 });
            harmed += 1;
        }
    }
    world.sim.block_on(world.process, async move {
        let closed = chain.stats().segments_closed as usize;
        assert!(closed > 10 && harmed >= closed, "{harmed} of {closed} segments");
        assert_eq!(chain.clean(100).await, Ok(closed));
        assert_eq!(read_all(&chain, &map).await, newest);
    });
}

#[test]
fn blocks_of_a_segment_whose_footer_is_harmed_are_cleaned_by_its_groups() {
    // Runs of the same keys in one segment, which the footer has in the order of a sort.
    for seed in 0..6 {
        let options = ChainOptions {
            tail_cache_bytes: 0,
            index_cache_bytes: 0,
            capacity_bytes: 16 << 20,
            ..small_options()
        };
        is_cleaned_by_groups(seed, &options);
    }
}

#[test]
fn nor_if_it_is_compacted_in_the_body() {
    let mut points = 0;
    while !cut_at(points + 1, &["chain"], &in_body()) {
        points += 4;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
}

#[test]
fn nor_does_it_matter_on_several_drives() {
    let options =
        ChainOptions { clean_start_free_percent: 100, clean_stop_free_percent: 100, ..tiny_drives() };
    let mut points = 0;
    while !cut_at(points + 1, &THREE, &options) {
        points += 7;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
}

/// Lives that are cut off somewhere. Returns how much was done.
pub fn lives(seed: u64, options: &ChainOptions) -> (u64, u64, u64) {
    lives_with(seed, options, None)
}

/// The same, with a metadata drive of this name that some lives do without.
pub fn lives_with(seed: u64, options: &ChainOptions, metadata: Option<&'static str>) -> (u64, u64, u64) {
    let mut rng = Random::new(seed);
    let mut owned = Owned::new(seed, &["chain"]);
    for life in 0..4 {
        owned.world.metadata = metadata.filter(|_| life != 2);
        let sim = &owned.world.sim;
        let death = rng.pick(&[Death::PowerCut, Death::Kill]);
        // One life comes to its end.
        let point =
            if life == 2 { u64::MAX } else { sim.io_points(owned.world.process) + 1 + rng.below(700) };
        sim.end_at_io(owned.world.process, point, death);
        owned.live(options, rng.next_u64(), 150);
        owned.world.sim.end(owned.world.process, death);
    }
    owned.world.metadata = metadata;
    owned.audit(options);
    let acked = owned.model.borrow().total_acked;
    (acked, owned.cleaned.get(), owned.dropped.get())
}

#[test]
fn many_lives_of_overwritten_blocks_keep_every_promise() {
    let mut sum = (0, 0, 0);
    for seed in 0..40 {
        let options = if seed % 2 == 0 { eager() } else { in_body() };
        let read_cache_bytes = if seed % 3 == 0 { 64 << 10 } else { 0 };
        // Groups leave the memory of recent ones at once, soon, or seldom.
        let tail_cache_bytes = [0, 16 << 10, 64 << 10][seed as usize / 6 % 3];
        let options = ChainOptions { tail_cache_bytes, read_cache_bytes, ..options };
        let done = lives(seed, &ChainOptions { capacity_bytes: 2 << 20, ..options });
        sum = (sum.0 + done.0, sum.1 + done.1, sum.2 + done.2);
    }
    let (acked, cleaned, dropped) = sum;
    assert!(
        acked > 6_000 && cleaned > 200 && dropped > 100,
        "{sum:?}: too little was done to mean something"
    );
}

fn within(seed: u64, test: impl AsyncFnOnce(Env) + 'static) {
    let world = World::new(seed);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { test(env).await });
}

#[test]
fn a_drive_is_overwritten_many_times_its_size_in_random_order() {
    within(31, async |env| {
        let map = Rc::new(Map::default());
        let model = RefCell::new(Model::default());
        let chain = open(&env, &["chain"], None, small_options(), &map, &model).await;
        let mut rng = Random::new(9);
        // A third of what the drive holds, over and over.
        for version in 1..3000 {
            let writes = vec![(rng.below(250), version, Some(version as u8))];
            loop {
                match chain.append(batch_of(&writes)) {
                    Ok(ticket) => break chain.wait(ticket).await.expect("no fault"),
                    Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_micros(500)).await,
                    Err(other) => panic!("{version}: {other}"),
                }
            }
            model.borrow_mut().since.push(writes);
        }
        let found = read_all(&chain, &map).await;
        assert_eq!(found, model.borrow().after(2999));
        assert!(chain.stats().counters.segments_cleaned > 50);
        chain.close().await.expect("no fault");
        let report = check(open_drives(&env, &["chain"]).await).await.expect("it is well");
        assert_eq!(report.damage, []);
    });
}

#[test]
fn a_segment_whose_place_the_owner_keeps_is_not_freed() {
    within(32, async |env| {
        let map = Rc::new(Map::default());
        let model = RefCell::new(Model::default());
        let chain = open(&env, &["chain"], None, eager(), &map, &model).await;
        map.pinned.set(Some(0));
        for version in 1..200 {
            let writes = vec![(version % 7 * u64::from(version > 1), version, Some(version as u8))];
            let writes = if version > 1 && writes[0].0 == 0 { vec![(8, version, Some(1))] } else { writes };
            let ticket = chain.append(batch_of(&writes)).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        env.sleep(Duration::from_millis(100)).await;
        assert!(chain.stats().counters.segments_cleaned > 5);
        let (version, _, place) = map.entries.borrow()[&0];
        assert_eq!(
            (version, chain.read_at(place).await.map(|data| data[0])),
            (1, Ok(1)),
            "where it was at first"
        );
        map.pinned.set(None);
        let segment = place.segment;
        assert_eq!(segment, 0);
    });
}

/// A place in a segment that was freed and used again. Returns what a read there says.
pub fn read_of_an_old_place(options: &ChainOptions) -> Result<Bytes, PlaceError> {
    let world = World::new(33);
    let (env, options) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let map = Rc::new(Map::default());
        let model = RefCell::new(Model::default());
        let options = ChainOptions { tail_cache_bytes: 0, ..options };
        let chain = open(&env, &["chain"], None, options, &map, &model).await;
        let mut first = None;
        for version in 1..600 {
            let ticket =
                chain.append(batch_of(&vec![(version % 5, version, Some(version as u8))])).expect("room");
            chain.wait(ticket).await.expect("no fault");
            first = first.or(map.entries.borrow().get(&1).map(|entry| entry.2));
        }
        chain.read_at(first.expect("it was written")).await
    })
}

#[test]
fn a_place_of_an_earlier_use_is_never_read_as_something_else() {
    let read = read_of_an_old_place(&ChainOptions { capacity_bytes: 1 << 20, ..eager() });
    assert!(matches!(read, Err(PlaceError::Moved { .. })), "{read:?}");
}

#[test]
fn a_chain_of_one_kind_of_keys_is_not_opened_as_the_other() {
    within(34, async |env| {
        let map = Rc::new(Map::default());
        let chain = open(&env, &["chain"], None, small_options(), &map, &RefCell::default()).await;
        chain.close().await.expect("no fault");
        let opened = Chain::open(&env, open_drives(&env, &["chain"]).await, None, small_options()).await;
        assert!(
            matches!(&opened, Err(OpenError::WrongKeys { found: Keys::Versioned, expected: Keys::Once, .. })),
            "{:?}",
            opened.err()
        );
    });
}

/// A chain of groups of fifty blocks each, that is closed; and the blocks.
fn written_by_fifties(seed: u64, options: &ChainOptions) -> (World, Blocks) {
    let world = World::new(seed);
    let (env, over) = (world.sim.env(world.process), options.clone());
    let written = world.sim.block_on(world.process, async move {
        let (map, model) = (Rc::new(Map::default()), RefCell::new(Model::default()));
        let chain = open(&env, &["chain"], None, over, &map, &model).await;
        for version in 1..60 {
            let payload = [Bytes::from(vec![version as u8])];
            let runs = (0..50).map(|nth| run_of(50 * version + nth, version, &payload)).collect();
            let ticket = chain.append(Batch { runs, ..Batch::default() }).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        let written = read_all(&chain, &map).await;
        chain.close().await.expect("no fault");
        written
    });
    assert_eq!(written.len(), 59 * 50);
    (world, written)
}

#[test]
fn pages_of_a_footer_that_cannot_be_read_are_made_again_from_the_groups() {
    // Each block of them fails, as on a drive with a harmed track: the groups beside them are well.
    let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
    let (world, written) = written_by_fifties(35, &options);
    let drive = world.sim.drive(MACHINE, "chain");
    let end = (64 << 10) + options.segment_bytes;
    let trailer = world.sim.peek_drive(drive, end - 4096, 4096);
    assert_eq!(&trailer[..4], b"ITHT", "the first segment is closed");
    let at = |field: usize| {
        u64::from(u32::from_le_bytes(trailer[field..field + 4].try_into().expect("four bytes")))
    };
    let (groups_end, directory) = (at(64), at(68));
    assert!(directory - groups_end >= 12 << 10, "a page is of more than two blocks");
    for offset in (groups_end..directory).step_by(4096) {
        world.sim.fault_drive(drive, DriveFault::Unreadable { offset: (64 << 10) + offset });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let map = Rc::new(Map::default());
        let owner: Rc<dyn Owner> = Rc::clone(&map) as Rc<dyn Owner>;
        let drives = open_drives(&env, &["chain"]).await;
        let opened = Chain::open_owned(&env, drives, Some(&identity()), options, owner).await;
        let (chain, recovered) = opened.expect("the groups are there");
        assert_eq!(recovered.damage, []);
        assert_eq!(read_all(&chain, &map).await, written);
        let damage = chain.stats().damage;
        assert!(damage.iter().all(|it| it.segment == 0 && it.kind == DamageKind::Footer), "{damage:?}");
        assert_eq!(damage.len(), 1);
    });
}

#[test]
fn what_an_owner_could_not_be_told_of_fails_no_open_and_stays_lost_when_it_can_be_read_again() {
    // It takes older blocks for the newest, and would not know it.
    let options = ChainOptions { tail_cache_bytes: 0, cleaning: Cleaning::Off, ..small_options() };
    let (world, written) = written_by_fifties(36, &options);
    let unreadable = blocks_of(&world, b"ITHG")[3]..blocks_of(&world, b"ITHT")[0];
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let held = Held::new(&env, &open_drives(&env, &["chain"]).await[0]);
        held.unreadable.replace((unreadable, 0));
        let map = Rc::new(Map::default());
        let owner: Rc<dyn Owner> = Rc::clone(&map) as Rc<dyn Owner>;
        let opened = Chain::open_owned(&env, vec![held.as_drive()], Some(&identity()), options, owner).await;
        let (chain, _) = opened.expect("the other segments are there");
        for _ in 0..2 {
            let damage = chain.stats().damage;
            let groups = damage.iter().filter(|it| matches!(it.kind, DamageKind::Groups { .. }));
            assert_eq!(groups.count(), 1, "{damage:?}");
            held.unreadable.take();
            chain.scrub().await.expect("it runs");
        }
        let told = read_all(&chain, &map).await;
        assert!(!told.is_empty() && told.len() < written.len(), "{} of {}", told.len(), written.len());
        chain.close().await.expect("no fault");
    });
}
