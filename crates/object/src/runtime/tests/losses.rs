//! Objects that have lost entries: they are refused, until somebody takes what is left.

use std::collections::BTreeSet;

use super::*;

type Numbers = Map<u64, u64>;

async fn numbers(world: &World) -> Numbers {
    Numbers::open(&world.program().await, "m").expect("opened")
}

/// Puts one value more, and gives its position.
async fn put(world: &World, key: u64) -> LogPos {
    numbers(world).await.fast_put(key, key).await.expect("put").expect("a position")
}

fn trimmed(pos: LogPos) -> ObjectError {
    ObjectError::Trimmed { object: "m".to_owned(), below: LogPos(pos.0 + 1) }
}

#[test]
fn an_entry_that_is_gone_is_missed_whatever_epoch_the_next_one_is_of() {
    // The sequencer of the next one had not granted it; then no layout says any more where the epoch of the next one began.
    run(async |mut world| {
        put(&world, 0).await;
        world = world.restart().await;
        put(&world, 1).await;
        let last_of_epoch = put(&world, 2).await;
        world = world.restart().await;
        put(&world, 3).await;
        let in_between = put(&world, 4).await;
        put(&world, 5).await;
        for _ in 0..70 {
            world = world.restart().await;
        }
        for lost in [in_between, last_of_epoch] {
            world.program().await.client().trim(lost).await.expect("trimmed");
            assert_eq!(numbers(&world).await.len().await, Err(trimmed(lost)));
        }
    });
}

#[test]
fn an_object_misses_its_own_entry_and_not_what_was_trimmed_of_others_before_its_sequencer_began() {
    // Every stream leaves out as many positions as the log had there.
    run(async |mut world| {
        put(&world, 0).await;
        let last_of_epoch = put(&world, 1).await;
        let client = world.program().await.inner.client.clone();
        let others = client.append("of no object".into()).await.expect("appended");
        client.trim(others).await.expect("trimmed");
        world = world.restart().await;
        let next = put(&world, 2).await;
        let entry = client.read(next).await.expect("read");
        let place = entry.place_in(StreamId::of_name("m")).expect("it is in the stream");
        assert_eq!((place.position.0, place.previous), (others.0 + 1, Some(last_of_epoch)));
        assert_eq!(numbers(&world).await.len().await, Ok(3));
        client.trim(last_of_epoch).await.expect("trimmed");
        assert_eq!(numbers(&world).await.len().await, Err(trimmed(last_of_epoch)));
    });
}

#[test]
fn the_only_call_of_an_object_is_missed_though_its_stream_may_have_had_every_position_before() {
    run(async |mut world| {
        let client = world.program().await.inner.client.clone();
        let others = client.append("of no object".into()).await.expect("appended");
        client.trim(others).await.expect("trimmed");
        world = world.restart().await;
        let only = put(&world, 0).await;
        let client = world.program().await.inner.client.clone();
        let entry = client.read(only).await.expect("read");
        let place = entry.place_in(StreamId::of_name("m")).expect("it is in the stream");
        assert_eq!((only.0, place.position.0, place.previous), (others.0 + 1, others.0 + 1, None));
        world = world.restart().await;
        assert_eq!(numbers(&world).await.len().await, Ok(1));
        world.program().await.client().trim(only).await.expect("trimmed");
        assert_eq!(numbers(&world).await.len().await, Err(trimmed(only)));
    });
}

#[test]
fn a_view_stays_below_what_it_cannot_tell_of_until_it_is_told() {
    // A node that does not remember what is of which stream looks through so many positions for one answer; the entry that tells what is gone
    // lies above them.
    run(async |mut world| {
        put(&world, 0).await;
        let lost = put(&world, 1).await;
        let client = world.program().await.inner.client.clone();
        for _ in 0..17 {
            let others = (0..8192).map(|_| client.append("of no object".into())).collect();
            let appended = gather(others, Result::is_err).await;
            assert!(appended.iter().flatten().all(Result::is_ok));
        }
        put(&world, 2).await;
        world = world.restart().await;
        let map = numbers(&world).await;
        let client = world.program().await.inner.client.clone();
        client.stream_tails(&[StreamId::of_name("m")]).await.expect("told");
        client.trim(lost).await.expect("trimmed");
        assert_eq!(map.len().await, Err(trimmed(lost)));
        assert_eq!(map.at(LogPos(lost.0 + 1)).len().await, Err(trimmed(lost)));
        // It is in the log, and nobody can say what it gave.
        let put = map.put(3, 3).await;
        assert!(matches!(put, Err(ObjectError::NoResult { cause, .. }) if *cause == trimmed(lost)));
    });
}

#[test]
fn what_is_left_of_an_object_is_one_from_its_checkpoint_on() {
    run(async |world| {
        put(&world, 0).await;
        let lost = put(&world, 1).await;
        let next = put(&world, 2).await;
        world.program().await.client().trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.handle().checkpoint().await, Err(trimmed(lost)));
        let upto = map.handle().checkpoint_what_is_left().await.expect("made");
        assert!(upto > next);
        for map in [map, numbers(&world).await] {
            assert_eq!(map.entries().await, Ok(vec![(0, 0), (2, 2)]));
            assert_eq!(map.handle().check_type().await, Ok(()));
            assert_eq!(map.at(next).len().await, Err(trimmed(lost)), "as of the past it is no state");
            assert_eq!(map.at(lost).len().await, Ok(1));
        }
        put(&world, 3).await;
        assert_eq!(numbers(&world).await.len().await, Ok(3));
    });
}

#[test]
fn a_checkpoint_that_has_what_is_gone_comes_before_what_is_left() {
    run(async |world| {
        let lost = put(&world, 0).await;
        put(&world, 1).await;
        let made = numbers(&world).await.handle().checkpoint().await.expect("made");
        let client = world.program().await.inner.client.clone();
        client.trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.handle().checkpoint_what_is_left().await, Ok(made));
        assert_eq!(map.len().await, Ok(2));
        // Nor is it given up with what came after it.
        let lost = put(&world, 2).await;
        put(&world, 3).await;
        client.trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.len().await, Err(trimmed(lost)));
        map.handle().checkpoint_what_is_left().await.expect("made");
        assert_eq!(map.entries().await, Ok(vec![(0, 0), (1, 1), (3, 3)]));
    });
}

#[test]
fn an_object_whose_catalog_or_checkpoint_is_gone_is_what_is_left_of_it() {
    run(async |world| {
        for key in 0..2 {
            put(&world, key).await;
            numbers(&world).await.handle().checkpoint().await.expect("made");
        }
        let client = world.program().await.inner.client.clone();
        let map = numbers(&world).await;
        map.handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        put(&world, 2).await;
        // All that is known of checkpoints but the last record of it, and the checkpoint.
        let tail = client.stream_tails(&[]).await.expect("it serves").tail;
        let stream = map.handle().stream();
        let entries =
            async |stream| client.read_stream(stream, LogPos(0)..tail, 1 << 20).await.expect("read").entries;
        let catalog = entries(crate::checkpoint::catalog_of(stream)).await;
        let chunks = entries(crate::checkpoint::chunks_of(stream)).await;
        for entry in chunks.iter().chain(&catalog[..catalog.len() - 1]) {
            client.trim(entry.pos).await.expect("trimmed");
        }
        let map = numbers(&world).await;
        assert!(map.len().await.is_err(), "it has lost two changes");
        map.handle().checkpoint_what_is_left().await.expect("made");
        assert_eq!(numbers(&world).await.entries().await, Ok(vec![(2, 2)]));
    });
}

#[test]
fn whoever_has_an_object_in_memory_begins_anew_where_others_have_taken_what_is_left() {
    run(async |world| {
        put(&world, 0).await;
        let lost = put(&world, 1).await;
        put(&world, 2).await;
        let (writer, reader) = (numbers(&world).await, numbers(&world).await);
        for map in [&writer, &reader] {
            assert_eq!(map.len().await, Ok(3));
        }
        world.program().await.client().trim(lost).await.expect("trimmed");
        assert_eq!(writer.put(3, 3).await, Ok(None), "it goes on");
        numbers(&world).await.handle().checkpoint_what_is_left().await.expect("made");
        assert_eq!(writer.put(1, 10).await, Ok(None), "it was never there");
        for map in [&writer, &reader, &numbers(&world).await] {
            assert_eq!(map.entries().await, Ok(vec![(0, 0), (1, 10), (2, 2), (3, 3)]));
        }
    });
}

#[test]
fn a_map_whose_calls_are_all_trimmed_below_a_checkpoint_is_what_that_says_after_a_restart() {
    run(async |mut world| {
        let positions = [put(&world, 0).await, put(&world, 1).await];
        numbers(&world).await.handle().checkpoint().await.expect("made");
        for pos in positions {
            world.program().await.client().trim(pos).await.expect("trimmed");
        }
        world = world.restart().await;
        assert_eq!(numbers(&world).await.entries().await, Ok(vec![(0, 0), (1, 1)]));
    });
}

#[test]
fn a_map_whose_checkpoint_is_gone_with_its_calls_is_refused_and_loses_nothing_by_that() {
    run(async |mut world| {
        let mut positions = vec![put(&world, 0).await, put(&world, 1).await];
        let map = numbers(&world).await;
        map.handle().checkpoint().await.expect("made");
        let client = world.program().await.inner.client.clone();
        let chunks = crate::checkpoint::chunks_of(map.handle().stream());
        let tail = client.stream_tails(&[]).await.expect("it serves").tail;
        let chunks = client.read_stream(chunks, LogPos(0)..tail, 1 << 20).await.expect("read").entries;
        positions.extend(chunks.iter().map(|chunk| chunk.pos));
        for pos in positions {
            client.trim(pos).await.expect("trimmed");
        }
        world = world.restart().await;
        let map = numbers(&world).await;
        let is_refused = |error| matches!(error, Err(ObjectError::Trimmed { .. }));
        assert!(is_refused(map.len().await.map(drop)));
        assert!(is_refused(map.handle().check_type().await), "nobody could read what follows");
        let forgotten = map.handle().forget(LogPos(u64::MAX)).await;
        assert!(matches!(forgotten, Err(ObjectError::Unusable { .. })), "{forgotten:?}");
        map.handle().checkpoint_what_is_left().await.expect("made");
        for map in [map, numbers(&world).await] {
            assert_eq!((map.len().await, map.handle().check_type().await), (Ok(0), Ok(())));
        }
        put(&world, 2).await;
        assert_eq!(numbers(&world).await.entries().await, Ok(vec![(2, 2)]));
    });
}

#[test]
fn a_map_that_lacks_nothing_is_shown_where_its_checkpoint_is_gone() {
    // How many calls that reflects says that none is missing, also where that could not be told.
    run(async |mut world| {
        put(&world, 0).await;
        put(&world, 1).await;
        let map = numbers(&world).await;
        map.handle().checkpoint().await.expect("made");
        let client = world.program().await.inner.client.clone();
        let chunks = crate::checkpoint::chunks_of(map.handle().stream());
        let chunk = client.newest(chunks).await.expect("read").expect("a chunk");
        client.trim(chunk.pos).await.expect("trimmed");
        world = world.restart().await;
        let map = numbers(&world).await;
        assert_eq!((map.handle().check_type().await, map.len().await), (Ok(()), Ok(2)));
        assert_eq!(map.put(2, 2).await, Ok(None));
    });
}

#[test]
fn an_object_of_another_type_is_not_taken_as_what_is_left() {
    run(async |world| {
        put(&world, 0).await;
        let even: Handle<Even> = world.program().await.open("m").expect("opened");
        let refused = even.checkpoint_what_is_left().await;
        assert!(matches!(refused, Err(ObjectError::Stopped { .. })), "{refused:?}");
        assert_eq!(numbers(&world).await.len().await, Ok(1), "nothing was changed");
    });
}

#[test]
fn an_object_tells_its_name_also_where_something_was_trimmed_that_nobody_has_seen() {
    run(async |mut world| {
        let client = world.program().await.inner.client.clone();
        let others = client.append("of no object".into()).await.expect("appended");
        client.trim(others).await.expect("trimmed");
        world = world.restart().await;
        numbers(&world).await.put(1, 1).await.expect("put");
        let names = world.program().await.client().stream_names().await;
        assert_eq!(names, Ok(vec!["m".to_owned()]));
    });
}

/// What became of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stands,
    Trimmed,
    /// Trimmed, and a sequencer has begun since that may never have heard of it: no later entry of the object stands.
    Forgotten,
}

/// What must be known of a map.
struct Model {
    name: String,
    /// The map in a program that has it in memory.
    held: Numbers,
    /// The keys that its newest checkpoint has, and where entries stand that it does not need any more.
    stored: BTreeSet<u64>,
    unneeded: Vec<LogPos>,
    /// Entries since, with the keys that they put.
    entries: Vec<(LogPos, u64, Fate)>,
}

impl Model {
    /// The keys of what is left.
    fn left(&self) -> BTreeSet<u64> {
        let standing = self.entries.iter().filter(|(.., fate)| *fate == Fate::Stands).map(|(_, key, _)| *key);
        self.stored.iter().copied().chain(standing).collect()
    }

    fn has(&self, wanted: Fate) -> bool {
        self.entries.iter().any(|(.., fate)| *fate == wanted)
    }

    /// Checks what a program is told that has nothing in memory.
    fn check(&self, told: &Result<BTreeSet<u64>, ObjectError>, seed: u64) {
        let is_right = match told {
            Ok(keys) => *keys == self.left() && !self.has(Fate::Trimmed),
            Err(ObjectError::Trimmed { .. }) => self.has(Fate::Trimmed) || self.has(Fate::Forgotten),
            Err(_) => false,
        };
        let fates: Vec<_> = self.entries.iter().map(|(pos, _, fate)| (pos.0, *fate as u8)).collect();
        assert!(is_right, "seed {seed}, {}: {told:?}, of {:?} and {fates:?}", self.name, self.stored);
    }

    /// A sequencer begins.
    fn restarted(&mut self) {
        let trailing = self.entries.iter_mut().rev().take_while(|(.., fate)| *fate != Fate::Stands);
        trailing.for_each(|(.., fate)| *fate = Fate::Forgotten);
    }
}

async fn keys(map: &Numbers) -> Result<BTreeSet<u64>, ObjectError> {
    Ok(map.entries().await?.into_iter().map(|(key, _)| key).collect())
}

/// Something happens to a map or to what lies beside it.
async fn happen(world: World, models: &mut [Model], others: &mut Vec<LogPos>, seed: u64) -> World {
    let env = world.env.clone();
    let below = |limit: usize| (env.random_u64() % limit as u64) as usize;
    let program = world.program().await;
    let client = program.inner.client.clone();
    let nth = below(models.len());
    let model = &mut models[nth];
    let map = Numbers::open(&program, &model.name).expect("opened");
    match below(15) {
        0..5 => {
            let key = env.random_u64();
            let map = if below(2) == 0 { &model.held } else { &map };
            let pos = map.fast_put(key, 0).await.expect("put").expect("a position");
            model.entries.push((pos, key, Fate::Stands));
        }
        5 => others.push(client.append("of no object".into()).await.expect("appended")),
        6 if !others.is_empty() => {
            client.trim(others.swap_remove(below(others.len()))).await.expect("trimmed");
        }
        7 if !model.entries.is_empty() => {
            let at = below(model.entries.len());
            let (pos, _, fate) = &mut model.entries[at];
            client.trim(*pos).await.expect("trimmed");
            *fate = if *fate == Fate::Forgotten { Fate::Forgotten } else { Fate::Trimmed };
        }
        11 if !model.unneeded.is_empty() => {
            let pos = model.unneeded.swap_remove(below(model.unneeded.len()));
            client.trim(pos).await.expect("trimmed");
        }
        8 | 9 => {
            let world = world.restart().await;
            models.iter_mut().for_each(Model::restarted);
            let client = world.program().await.inner.client.clone();
            // It learns where streams end when it is asked first.
            client.stream_tails(&[StreamId::of_name("a")]).await.expect("it serves");
            // Nor is one that has had every position since then.
            for _ in 0..2 {
                others.push(client.append("of no object".into()).await.expect("appended"));
            }
            return world;
        }
        10 => {
            let made = match below(3) {
                0 => map.handle().checkpoint_what_is_left().await,
                _ => map.handle().checkpoint().await,
            };
            match made {
                Ok(_) => {
                    model.stored = model.left();
                    model.unneeded.extend(model.entries.drain(..).map(|(pos, ..)| pos));
                }
                Err(error) => model.check(&Err(error), seed),
            }
        }
        12 => drop(model.held.len().await),
        _ => check(&world, model, seed).await,
    }
    world
}

/// Checks what programs are told: who has the map in memory is told what one who has nothing is, unless that one is refused.
async fn check(world: &World, model: &Model, seed: u64) {
    let map = Numbers::open(&world.program().await, &model.name).expect("opened");
    let told = keys(&map).await;
    model.check(&told, seed);
    if told.is_ok() {
        assert_eq!(keys(&model.held).await, told, "seed {seed}, {}, in memory", model.name);
    }
}

#[test]
fn a_map_that_lacks_an_entry_is_refused_unless_nobody_can_know_and_one_that_lacks_none_never_is() {
    for seed in 0..120 {
        let sim = Sim::new(seed);
        let process = sim.process("node", [127, 0, 0, 1].into());
        let env = sim.env(process);
        sim.block_on(process, async move {
            let mut options = options(([127, 0, 0, 1], 0).into());
            // Chunks of checkpoints of streams are trimmed too, by the sequencer's node.
            options.grants.checkpoint_every = if seed % 3 == 0 { 8192 } else { 4 };
            let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
            options.listen = cluster.addrs()[0];
            let program = program(&env, &options).await;
            let holder = program.clone();
            let mut world = World { env, options, cluster, program };
            let model = |name: &str| Model {
                name: name.to_owned(),
                held: Numbers::open(&holder, name).expect("opened"),
                stored: BTreeSet::new(),
                unneeded: Vec::new(),
                entries: Vec::new(),
            };
            // A stream that has had every position up to one is not told apart from one that was not seen.
            let first = world.program.client().append("of no object".into()).await.expect("appended");
            let (mut models, mut others) = (["a", "b", "c"].map(model), vec![first]);
            for _ in 0..40 {
                world = happen(world, &mut models, &mut others, seed).await;
            }
            for model in &models {
                check(&world, model, seed).await;
            }
        });
    }
}
