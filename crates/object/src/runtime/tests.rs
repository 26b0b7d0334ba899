//! What a runtime does between its parts, over a simulated cluster of one node.

mod history;
mod losses;
mod splits;
mod versions;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Durability, OpenDrive};
use ithaca_env::sim::Sim;
use ithaca_env::task::gather;
use ithaca_log::client::{Client, ClientError, ClientOptions};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::server::{LocalCluster, LocalOptions, ViewHost};
use ithaca_log::stream::StreamTail;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::remote::asked;
use super::slot::AnySlot;
use super::tails::Tail;
use super::{Handle, Runtime, RuntimeOptions, Tx, TxOptions};
use crate::checkpoint::{Catalog, HoldRefused};
use crate::collections::{Blob, Get, Map, MapState, Placed, Put};
use crate::composed::HashedMap;
use crate::error::ObjectError;
use crate::key::{Key, Keys};
use crate::limits::{HOLDS_MAX_COUNT, SUBMITTED_MAX_BYTES};
use crate::machine::{Machine, Replica};
use crate::object::{CallError, Method, Mutator, Object, call_of};
use crate::record::{Record, TxId};
use crate::remote::{Answer, Host, HostOptions, Question, Refused};

/// A cluster that can be started again, and a program.
struct World {
    env: Env,
    options: LocalOptions,
    cluster: LocalCluster,
    program: Runtime,
}

/// Runs `test` in a simulated process.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("node", [127, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = options(([127, 0, 0, 1], 0).into());
        let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
        options.listen = cluster.addrs()[0];
        let program = program(&env, &options).await;
        test(World { env, options, cluster, program }).await;
    });
}

fn options(listen: SocketAddr) -> LocalOptions {
    let mut options = LocalOptions::new(Path::new("data"), listen);
    options.create_bytes = 64 << 20;
    options.chain.segment_bytes = 4 << 20;
    options.chain.capacity_bytes = 256 << 20;
    options.chain.grow_bytes = 64 << 20;
    options
}

async fn program(env: &Env, cluster: &LocalOptions) -> Runtime {
    let options = ClientOptions { endpoints: vec![cluster.listen], ..ClientOptions::default() };
    let client = Client::connect(env, options).await.expect("it serves");
    Runtime::new(env, client, RuntimeOptions::default())
}

impl World {
    /// A program of its own.
    async fn program(&self) -> Runtime {
        program(&self.env, &self.options).await
    }

    /// Has the node keep views.
    fn host(&self) {
        let client = ClientOptions { endpoints: vec![self.options.listen], ..ClientOptions::default() };
        let options = HostOptions { client, ..HostOptions::default() };
        self.cluster.host_views(&(Rc::new(Host::new(&self.env, options)) as Rc<dyn ViewHost>));
    }

    /// Ends the epoch.
    async fn restart(self) -> Self {
        self.restart_after(async |_| ()).await
    }

    /// The same, with something done before the next one begins.
    async fn restart_after(mut self, then: impl AsyncFnOnce(&Env)) -> Self {
        self.cluster.stop().await;
        then(&self.env).await;
        self.cluster = LocalCluster::start(&self.env, self.options.clone()).await.expect("it starts");
        self
    }

    /// What `asking` gives, which must end: in a minute, of the simulated clock.
    async fn ended<T>(&self, asking: impl Future<Output = T>) -> T {
        self.env.timeout(Duration::from_secs(60), asking).await.expect("it ends")
    }
}

#[test]
fn whoever_reads_to_a_tail_that_has_gone_back_with_its_epoch_stops_where_the_log_does() {
    // Nothing is written there until somebody appends, which may be never: a read would not end.
    run(async |world| {
        let map = Map::<u64, u64>::open(&world.program, "m").expect("opened");
        map.put(1, 10).await.expect("put");
        let (slot, inner) = (Rc::clone(&map.handle().slot), Rc::clone(&world.program.inner));
        let end = world.program.client().check().await.expect("it serves").tail;
        // Granted and written by nobody.
        let token = inner.client.tokens(5).await.expect("granted");
        let gone = LogPos(end.0 + 5);
        assert_eq!(inner.client.check().await.expect("it serves").tail, gone, "{token:?}");
        let world = world.restart().await;
        assert_eq!(world.ended(slot.read_to(gone)).await, Ok(()));
        assert_eq!(slot.upto(), end);
        let id = TxId { client: 7, request: 7 };
        let found = world.ended(inner.find_below(slot.stream, id, LogPos(0), gone)).await;
        assert_eq!(found, Ok(Outcome::NotFound { upto: end }));
        let catalog: Handle<Catalog> = world.program.open("c").expect("opened");
        let found = world.ended(catalog.slot.find_between(LogPos(0), gone, LogPos(0))).await;
        assert!(matches!(found, Ok(None)));
        // What comes then is read as before.
        let other = Map::<u64, u64>::open(&world.program().await, "m").expect("opened");
        other.put(1, 11).await.expect("put");
        assert_eq!(map.get(&1).await, Ok(Some(11)));
    });
}

#[test]
fn whoever_asks_a_node_for_what_a_tail_says_that_has_gone_back_is_told_what_there_is() {
    // The last position was granted and never written: no node can reflect it, and the read would be refused as one that is at fault.
    run(async |world| {
        let map = Map::<u64, u64>::open_remote(&world.program, "m").expect("opened");
        map.fast_put(1, 10).await.expect("put");
        let (handle, inner) = (map.handle(), Rc::clone(&world.program.inner));
        let old = inner.tail_of(Some(handle.stream())).await.expect("it serves");
        inner.client.tokens(5).await.expect("granted");
        let gone = Tail { tail: LogPos(old.tail.0 + 5), bound: Some(LogPos(old.tail.0 + 4)), ..old };
        let world = world.restart().await;
        world.host();
        let get = asked::<Get<u64>>("get", &Get { key: 1 }).expect("it encodes");
        let first = (Blob::default(), LogPos(0));
        let told = world.ended(handle.newest_by(first, gone, get)).await;
        let decoded = |told: &Blob| rmp_serde::from_slice::<Option<Placed<u64>>>(&told.0);
        let (value, upto) = told.expect("an answer");
        let value = decoded(&value).expect("a value").map(|placed| placed.value);
        assert_eq!((value, upto), (Some(10), old.tail));
        // What comes then is read as before.
        map.fast_put(1, 11).await.expect("put");
        assert_eq!(map.get(&1).await, Ok(Some(11)));
    });
}

#[test]
fn whoever_changes_an_object_first_tells_the_log_its_name() {
    run(async |world| {
        let [map, one, two] = ["map", "one", "two"].map(|name| Map::<u64, u64>::open(&world.program, name));
        let (map, one, two) = (map.expect("opened"), one.expect("opened"), two.expect("opened"));
        let hashed = HashedMap::<u64, u64>::open(&world.program, "hashed").expect("opened");
        let other = Map::<u64, u64>::open(&world.program().await, "map").expect("opened");
        map.fast_put(1, 10).await.expect("put");
        map.put(1, 11).await.expect("put");
        other.put(1, 12).await.expect("put");
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            one.within(tx).put(1, 10).await?;
            two.within(tx).put(1, 10).await?;
            map.within(tx).put(1, 10).await.map(|_| ())
        };
        world.program.transact(&TxOptions::default(), body).await.expect("committed");
        hashed.put(1, 10).await.expect("put");
        let client = world.program.client();
        let tail = client.stream_tails(&[]).await.expect("it serves").tail;
        let told = client.read_stream(StreamId::NAMES, LogPos(0)..tail, 1 << 20).await.expect("read").entries;
        let mut told: Vec<&[u8]> = told.iter().map(|entry| &entry.data[..]).collect();
        // Objects that begin together tell theirs in no order.
        told.sort();
        assert_eq!(told, [b"hashed" as &[u8], b"map", b"one", b"two"], "each once");
    });
}

#[test]
fn what_a_program_only_writes_stays_in_no_memory() {
    // Of an object that nobody reads here, and that has entries of others, nothing is taken: what is kept for that is kept for good.
    run(async |world| {
        let map = Map::<u64, Blob>::open(&world.program, "m").expect("opened");
        let other = Map::<u64, Blob>::open(&world.program().await, "m").expect("opened");
        other.fast_put(1, Blob::default()).await.expect("put");
        let slot = &map.handle().slot;
        let put = Put { key: 1, value: Blob(Bytes::from(vec![7; 1 << 20])) };
        let call = call_of::<MapState<u64, Blob>, _>(slot.stream, &put).expect("it encodes");
        // How many records are kept of forty of a MiB, each of which comes after one that is not there.
        let kept = |from: u64| {
            let is_kept = |pos: &u64| {
                let record = Rc::new(Record { calls: vec![call.clone()], ..Record::default() });
                let before = StreamTail { last: Some(LogPos(pos - 1)), ..StreamTail::default() };
                slot.offer(LogPos(*pos), before, &record);
                Rc::strong_count(&record) > 1
            };
            (from..from + 80).step_by(2).filter(is_kept).count()
        };
        assert_eq!(kept(1000), 0, "nobody has read it");
        assert_eq!(map.len().await, Ok(1));
        let fits = kept(2000);
        assert!((1..=16).contains(&fits), "{fits} MiB are kept");
        assert_eq!(kept(3000), 0, "there is no room");
        slot.view.borrow_mut().advance(LogPos(4000));
        kept(5000);
        slot.view.borrow_mut().advance(LogPos(6000));
        // The first one finds those that go.
        assert_eq!(kept(7000), fits, "what is reflected is kept no more");
    });
}

/// A sum that takes no odd numbers.
#[derive(Default, Serialize, Deserialize)]
struct Even {
    sum: u64,
}

/// Adds to it.
#[derive(Serialize, Deserialize)]
struct AddEven {
    number: u64,
    /// Panics where the sum is less.
    least: u64,
}

impl Object for Even {
    const TYPE: &'static str = "even";
    const METHODS: &'static [Method<Self>] = &[Method::of::<AddEven>()];
    type Undo = u64;

    fn exchange(&mut self, undo: &mut u64) {
        std::mem::swap(&mut self.sum, undo);
    }
}

impl Mutator<Even> for AddEven {
    const NAME: &'static str = "add";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, even: &mut Even, _: LogPos, undo: &mut Vec<u64>) {
        assert!(self.number.is_multiple_of(2) && even.sum >= self.least, "{} to {}", self.number, even.sum);
        undo.push(even.sum);
        even.sum += self.number;
    }
}

#[test]
fn a_call_that_a_transaction_only_sends_and_that_panics_is_in_no_log() {
    // It would stop the object in every program, for good.
    run(async |world| {
        let even: Handle<Even> = world.program.open("even").expect("opened");
        let elsewhere: Handle<Even> = world.program().await.open("even").expect("opened");
        let sum = async |even: &Handle<Even>| even.read(Key::all, |even| even.sum).await;
        even.send(AddEven { number: 2, least: 0 }).await.expect("sent");
        assert_eq!(sum(&even).await, Ok(2));
        let send = async |numbers: [u64; 2], least: u64| {
            let sent = async |tx: &Tx| -> Result<(), ObjectError> {
                for number in numbers {
                    even.within(tx).send(AddEven { number, least }).await?;
                }
                Ok(())
            };
            world.program.transact(&TxOptions::default(), sent).await.map(drop)
        };
        for (numbers, least) in [([4, 5], 0), ([5, 4], 0), ([4, 6], 9)] {
            let sent = send(numbers, least).await;
            assert!(matches!(sent, Err(ObjectError::Call(CallError::Panicked { .. }))), "{sent:?}");
            assert_eq!(sum(&even).await, Ok(2), "as if it had never been");
        }
        assert_eq!(send([4, 6], 2).await, Ok(()));
        // What the snapshot has, and the state here does not yet.
        elsewhere.send(AddEven { number: 100, least: 0 }).await.expect("sent");
        assert_eq!(send([2, 2], 100).await, Ok(()));
        assert_eq!((sum(&even).await, sum(&elsewhere).await), (Ok(116), Ok(116)));
    });
}

thread_local! {
    /// States of tallies: how many there are, the most that there were, and how many were made.
    static STATES: Cell<(u64, u64, u64)> = const { Cell::new((0, 0, 0)) };
}

/// Something that is counted.
struct Counted;

impl Default for Counted {
    fn default() -> Self {
        let (now, most, made) = STATES.get();
        STATES.set((now + 1, most.max(now + 1), made + 1));
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (now, most, made) = STATES.get();
        STATES.set((now - 1, most, made));
    }
}

/// A sum of which old states are made by replay.
#[derive(Default, Serialize, Deserialize)]
struct Tally {
    sum: u64,
    #[serde(skip)]
    _counted: Counted,
}

impl Machine for Tally {
    const TYPE: &'static str = "tally";
    type Command = u64;
    type Response = u64;

    fn apply(&mut self, number: u64) -> u64 {
        self.sum += number;
        self.sum
    }
}

/// A tally to which ones were added, and where.
async fn tally(world: &World) -> (Replica<Tally>, Vec<LogPos>) {
    let tally = Replica::<Tally>::open(&world.program, "tally").expect("opened");
    let mut positions = Vec::new();
    for _ in 0..20 {
        tally.submit(1).await.expect("done");
        positions.push(LogPos(world.program.client().check().await.expect("it serves").tail.0));
    }
    (tally, positions)
}

#[test]
fn old_states_are_made_one_at_a_time_and_shared() {
    // Each is as large as the state: as many as there are callers would fill the memory.
    run(async |world| {
        let (tally, positions) = tally(&world).await;
        let (now, _, before) = STATES.get();
        let same: Vec<_> = (0..8).map(|_| tally.at(positions[4])).collect();
        let reads = same.iter().map(|tally| tally.read(|tally| tally.sum)).collect();
        assert_eq!(gather(reads, |_| false).await, vec![Some(Ok(5)); 8]);
        assert_eq!(STATES.get().2, before + 1, "one for all of them");
        STATES.set((STATES.get().0, 0, 0));
        let others: Vec<_> = (5..15).map(|nth| tally.at(positions[nth])).collect();
        let reads = others.iter().map(|tally| tally.read(|tally| tally.sum)).collect();
        let expected: Vec<_> = (6..16).map(|sum| Some(Ok(sum))).collect();
        assert_eq!(gather(reads, |_| false).await, expected);
        let most = STATES.get().1;
        assert!(most <= now + 3, "{most} at once: two are kept while one is made");
    });
}

#[test]
fn old_states_of_a_log_that_does_not_answer_fail_together() {
    // One after the other each would wait until its deadline.
    run(async |world| {
        let (tally, positions) = tally(&world).await;
        let World { env, cluster, .. } = world;
        cluster.stop().await;
        let old: Vec<_> = (0..16).map(|nth| tally.at(positions[nth])).collect();
        let reads = old.iter().map(|tally| tally.read(|tally| tally.sum)).collect();
        let all = gather(reads, |_| false);
        let all = env.timeout(Duration::from_secs(60), all).await.expect("they end");
        assert!(all.iter().all(|read| matches!(read, Some(Err(ObjectError::Log(_))))), "{all:?}");
    });
}

#[test]
fn a_call_on_a_log_that_stands_still_ends_in_the_time_of_one_call() {
    // Each try again had all of that time for itself.
    let sim = Sim::new(1);
    let node = sim.process("node", [10, 0, 0, 1].into());
    let user = sim.process("user", [10, 0, 0, 2].into());
    let options = options(([10, 0, 0, 1], 7420).into());
    let listen = options.listen;
    sim.start(node, move |env| {
        let options = options.clone();
        async move {
            let cluster = LocalCluster::start(&env, options).await.expect("it starts");
            cluster.failed().await;
        }
    });
    let env = sim.env(user);
    let map = sim.block_on(user, async move {
        let client = ClientOptions { endpoints: vec![listen], ..ClientOptions::default() };
        let client = Client::connect(&env, client).await.expect("it serves");
        let program = Runtime::new(&env, client, RuntimeOptions::default());
        let map = Map::<u64, u64>::open(&program, "m").expect("opened");
        map.handle().send(Put { key: 1, value: 1 }).await.expect("put");
        map
    });
    sim.pause(node);
    let before = sim.now();
    let sent = sim.block_on(user, async move { map.handle().send(Put { key: 1, value: 2 }).await });
    assert!(matches!(sent, Err(ObjectError::Unknown { .. })), "{sent:?}");
    let (took, given) = (sim.now().since(before), ClientOptions::default().timeout);
    assert!(took < given * 3 / 2, "{took:?}");
}

/// Flips a bit of an entry on the node's drive.
async fn harm(env: &Env, entry: &[u8]) {
    let path = Path::new("data").join("unit-1.chain");
    let open = OpenDrive { path, create_bytes: None, read_only: false };
    let drive = env.open_drive(open).await.expect("the cluster is gone");
    for offset in (0..drive.size_bytes()).step_by(1 << 20) {
        let bytes = drive.read(offset, 1 << 20).await.expect("readable");
        let Some(at) = bytes.windows(entry.len()).position(|window| window == entry) else { continue };
        let block = at / 4096 * 4096;
        let mut harmed = bytes[block..block + 4096].to_vec();
        harmed[at - block] ^= 1;
        let write = drive.write(offset + block as u64, Bytes::from(harmed), Durability::Durable);
        return write.await.expect("writable");
    }
    panic!("the entry is not on the drive");
}

#[test]
fn whoever_waits_for_an_old_state_is_not_told_what_is_wrong_with_another_one() {
    // It reads less of the log, and what it reads is well.
    run(async |world| {
        let (tally, positions) = tally(&world).await;
        let lost = LogPos(positions[12].0 - 1);
        let entry = world.program.client().read(lost).await.expect("read").data;
        let world = world.restart_after(async |env| harm(env, &entry).await).await;
        let old = [15, 4, 16, 9].map(|nth| tally.at(positions[nth]));
        let reads = old.iter().map(|tally| tally.read(|tally| tally.sum)).collect();
        let reads: Vec<_> = world.ended(gather(reads, |_| false)).await.into_iter().flatten().collect();
        let damaged = || Err(ClientError::Damaged { pos: lost }.into());
        assert_eq!(reads, [damaged(), Ok(5), damaged(), Ok(10)]);
    });
}

#[test]
fn who_asks_a_node_that_does_not_reach_the_log_is_told_when_the_first_is() {
    run(async |world| {
        let nobody = ([127, 0, 0, 1], 0).into();
        let client = ClientOptions { endpoints: vec![nobody], ..ClientOptions::default() };
        let patience = client.timeout;
        let host = Host::new(&world.env, HostOptions { client, ..HostOptions::default() });
        let read = Some(asked::<Get<u64>>("get", &Get { key: 1 }).expect("it encodes"));
        let question = Question { object: "map".to_owned(), least: 0, at: None, calls: Vec::new(), read };
        let question = Bytes::from(rmp_serde::to_vec_named(&question).expect("it encodes"));
        let asking = (0..20).map(|nth| host.ask(StreamId(nth), question.clone())).collect();
        let told = world.env.timeout(patience + Duration::from_secs(1), gather(asking, |_| false)).await;
        for answer in told.expect("all are told").into_iter().flatten() {
            let answer: Answer = rmp_serde::from_slice(&answer).expect("it decodes");
            assert!(matches!(answer, Answer::Refused(Refused::Unavailable { .. })), "{answer:?}");
        }
    });
}

#[test]
fn leases_that_have_ended_take_nobodys_place() {
    run(async |world| {
        let map = Map::<u64, u64>::open(&world.program, "m").expect("opened");
        map.put(1, 1).await.expect("put");
        let lease = async |name: String, span| map.handle().lease(&name, LogPos(0), span).await;
        for nth in 0..HOLDS_MAX_COUNT {
            lease(format!("reader {nth}"), Duration::from_secs(1)).await.expect("held");
        }
        let full = Err(ObjectError::Hold { object: "m".to_owned(), refused: HoldRefused::TooMany });
        assert_eq!(lease("one more".to_owned(), Duration::from_secs(1)).await, full);
        world.env.sleep(Duration::from_secs(3600)).await;
        lease("one more".to_owned(), Duration::from_secs(1)).await.expect("held");
    });
}

#[test]
fn calls_that_wait_to_share_records_have_so_many_bytes_at_the_most() {
    run(async |world| {
        let map = Map::<u64, Blob>::open(&world.program, "m").expect("opened");
        let (fit, bytes) = (SUBMITTED_MAX_BYTES as u64 / 500_000, vec![7; 500_000]);
        let put = |key| {
            let put = Put { key, value: Blob(bytes.clone().into()) };
            let handle = map.handle();
            async move { handle.submit(put).await.map(drop) }
        };
        let ended = gather((0..fit + 3).map(put).collect(), |_| false).await;
        let crowded = Err(ObjectError::Crowded { object: "m".to_owned() });
        let (taken, refused) = ended.split_at(fit as usize);
        let failed: Vec<_> = taken.iter().filter(|put| **put != Some(Ok(()))).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert!(refused.iter().all(|put| put.as_ref() == Some(&crowded)));
        assert_eq!(put(fit).await, Ok(()), "there is room again");
        assert_eq!(map.len().await, Ok(fit as usize + 1));
    });
}
