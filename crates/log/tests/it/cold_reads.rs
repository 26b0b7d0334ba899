//! Many reads at once of what only the drive has: how much they hold together, and whom they keep waiting. In simulated time.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_env::net::Conn;
use ithaca_env::sim::{
    Access, Agenda, MediaStats, ProcessId, RequestKey, Sim, SimOptions, SpeedModel, SpeedRequest,
};
use ithaca_env::task::TaskHandle;
use ithaca_env::{Env, Time};
use ithaca_log::client::{Client, ClientOptions, Connection, Identity};
use ithaca_log::limits::{COLD_READS_MAX_BYTES, READ_MAX_BYTES, UNSENT_MAX_BYTES};
use ithaca_log::pos::{ClientId, ClusterId, Epoch, LogPos, NodeId, RequestId, StreamId};
use ithaca_log::server::{LocalCluster, LocalOptions};
use ithaca_log::wire::{
    GetStatus, Head, Hello, Message, NodeStatus, PROTOCOL_VERSION, Read, ReadStream, Runs, StateRef,
    StreamRuns, Wanted, encode_message, next_frame,
};

use crate::worlds::options;

const STREAM: StreamId = StreamId(1000);
const EPOCH: Epoch = Epoch(1);
/// Much longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

/// A drive that serves one request after the other, at 300 MB/s, and counts what it is asked to read.
#[derive(Clone, Default)]
struct Narrow {
    asked: Rc<Asked>,
    free_at: Time,
    /// Reads that are not done: when they will be, and their bytes.
    reads: Vec<(Time, u64)>,
}

#[derive(Default)]
struct Asked {
    /// Bytes of reads.
    bytes: Cell<u64>,
    /// Most bytes of reads that were not done, together; and most reads.
    most: Cell<(u64, usize)>,
}

impl SpeedModel for Narrow {
    fn install(&mut self, _size_bytes: u64, _phase: u64) {}

    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda) {
        self.free_at = self.free_at.max(now) + Duration::from_nanos(request.len * 10 / 3);
        agenda.end(request.key, self.free_at);
        if request.access == Access::Read {
            self.reads.retain(|(end, _)| *end > now);
            self.reads.push((self.free_at, request.len));
            let (bytes, count) = self.asked.most.get();
            let together = self.reads.iter().map(|(_, len)| len).sum();
            self.asked.most.set((bytes.max(together), count.max(self.reads.len())));
            self.asked.bytes.set(self.asked.bytes.get() + request.len);
        }
    }

    fn wake(&mut self, _now: Time, _agenda: &mut Agenda) {}

    fn cut_power(&mut self, _requests: &BTreeSet<RequestKey>) {}

    fn replace(&mut self) {}

    fn media(&self) -> MediaStats {
        MediaStats::default()
    }
}

/// A unit that keeps nothing of what it has written in memory, in a process of its own.
struct World {
    sim: Sim,
    clients: ProcessId,
    cluster: LocalCluster,
    asked: Rc<Asked>,
}

impl World {
    /// With so many entries of so many bytes, all in a stream.
    fn with_entries(count: u64, bytes: usize) -> Self {
        Self::with_index(count, bytes, options(Path::new("data"), 1).chain.index_cache_bytes)
    }

    /// The same, where so many bytes of heads are kept in memory.
    fn with_index(count: u64, bytes: usize, index_cache_bytes: usize) -> Self {
        let sim = Sim::with_options(1, SimOptions { drive_jitter_percent: 0, ..SimOptions::default() });
        let node = sim.process("node", [10, 0, 0, 1].into());
        let clients = sim.process("clients", [10, 0, 0, 2].into());
        let mut options =
            LocalOptions { listen: ([10, 0, 0, 1], 7420).into(), ..options(Path::new("data"), 1) };
        options.chain.tail_cache_bytes = 0;
        options.chain.index_cache_bytes = index_cache_bytes;
        let env = sim.env(node);
        let started = sim.block_on(node, async move { LocalCluster::start(&env, options).await });
        let world = Self { sim, clients, cluster: started.expect("it starts"), asked: Rc::default() };
        world.run(async move |ask| {
            let client = ask.client().await;
            let appends: Vec<_> =
                (0..count).map(|at| client.append_to(&[STREAM], entry(at, bytes))).collect();
            for append in appends {
                append.await.expect("appended");
            }
        });
        let drive = world.sim.drive([10, 0, 0, 1].into(), "data/unit-1.chain");
        let narrow = Narrow { asked: Rc::clone(&world.asked), ..Narrow::default() };
        world.sim.set_drive_speed(drive, Box::new(narrow));
        world
    }

    fn run<T: 'static>(&self, asking: impl AsyncFnOnce(Ask) -> T + 'static) -> T {
        let ask = Ask { env: self.sim.env(self.clients), addr: self.cluster.addrs()[0] };
        self.sim.block_on(self.clients, async move { asking(ask).await })
    }

    /// The drive was never asked for more together than reads may hold.
    fn check_drive(&self) {
        let (bytes, _) = self.asked.most.get();
        assert!(bytes as usize <= COLD_READS_MAX_BYTES, "{bytes} bytes are being read at once");
    }
}

fn entry(at: u64, bytes: usize) -> Bytes {
    Bytes::from(at.to_le_bytes().repeat(bytes / 8))
}

/// Who asks the unit.
#[derive(Clone)]
struct Ask {
    env: Env,
    addr: SocketAddr,
}

impl Ask {
    fn deadline(&self) -> Time {
        self.env.now() + LONG
    }

    async fn client(&self) -> Client {
        let options = ClientOptions { endpoints: vec![self.addr], timeout: LONG, ..ClientOptions::default() };
        Client::connect(&self.env, options).await.expect("it serves")
    }

    async fn connection(&self) -> Rc<Connection> {
        let who = Identity { client: ClientId(7), node: NodeId(1), cluster: ClusterId::UNKNOWN };
        let opened = Connection::open(&self.env, self.addr, who, self.deadline()).await;
        Rc::new(opened.expect("it serves"))
    }

    async fn status(&self, connection: &Connection, name: &str) -> u64 {
        let asked = connection.call::<_, NodeStatus>(&self.env, EPOCH, &GetStatus, self.deadline());
        let counters = asked.await.expect("it serves").0.counters;
        counters.into_iter().find(|(counter, _)| counter == name).expect("it is counted").1
    }

    /// Reads entries of so many bytes from `range` on, and compares them.
    async fn read(&self, connection: &Connection, range: Range<u64>, bytes: usize) {
        let count = (range.end - range.start).min((READ_MAX_BYTES / bytes) as u64);
        let asked = connection.call::<_, Runs>(&self.env, EPOCH, &read(range.clone()), self.deadline());
        let data = asked.await.expect("readable").1;
        let whole: Vec<Bytes> = (range.start..range.start + count).map(|at| entry(at, bytes)).collect();
        assert!(data.starts_with(&whole[0]) && data.len() + bytes >= whole.concat().len());
        assert!(whole.concat().starts_with(&data));
    }
}

fn read(range: Range<u64>) -> Read {
    Read { limit_bytes: READ_MAX_BYTES as u32, committed: false, ranges: vec![range.into()] }
}

/// While `reading` goes on, how much the unit says at the most that such reads hold, and how many wait.
async fn most_held(ask: &Ask, reading: Vec<TaskHandle<()>>) -> (usize, usize) {
    let connection = ask.connection().await;
    let left = Rc::new(Cell::new(reading.len()));
    for task in reading {
        let left = Rc::clone(&left);
        ask.env.spawn(async move {
            task.join().await.expect("it reads all");
            left.set(left.get() - 1);
        });
    }
    let (mut held, mut waiting) = (0, 0);
    while left.get() > 0 {
        held = held.max(ask.status(&connection, "cold_read_bytes").await as usize);
        waiting = waiting.max(ask.status(&connection, "cold_reads_waiting").await as usize);
    }
    assert_eq!(ask.status(&connection, "cold_read_bytes").await, 0, "all is given back");
    assert_eq!(ask.status(&connection, "cold_reads_waiting").await, 0);
    (held, waiting)
}

#[test]
fn bulk_reads_from_the_drive_hold_no_more_together_than_a_unit_has_for_them() {
    let world = World::with_entries(24, 256 << 10);
    let (held, waiting) = world.run(async |ask| {
        let mut reading = Vec::new();
        for _ in 0..4 {
            let connection = ask.connection().await;
            for _ in 0..16 {
                let (ask, connection) = (ask.clone(), Rc::clone(&connection));
                let env = ask.env.clone();
                reading.push(env.spawn(async move { ask.read(&connection, 0..24, 256 << 10).await }));
            }
        }
        most_held(&ask, reading).await
    });
    world.check_drive();
    assert!((COLD_READS_MAX_BYTES / 2..=COLD_READS_MAX_BYTES).contains(&held), "{held} bytes");
    assert!(waiting > 40, "{waiting} of 64");
}

#[test]
fn bulk_reads_of_a_stream_from_the_drive_are_bounded_too_and_each_gets_on_to_its_end() {
    // An answer takes several reads of the drive.
    let world = World::with_entries(1000, 8 << 10);
    let (held, _) = world.run(async |ask| {
        let mut clients = Vec::new();
        for _ in 0..40 {
            clients.push(ask.client().await);
        }
        let mut reading = Vec::new();
        for client in clients {
            reading.push(ask.env.spawn(async move {
                let (mut next, mut seen) = (LogPos(0), 0);
                while seen < 1000 {
                    let part = client.read_stream(STREAM, next..LogPos(1000), READ_MAX_BYTES).await;
                    let part = part.expect("readable");
                    for found in &part.entries {
                        assert_eq!(found.data, entry(seen, 8 << 10));
                        seen += 1;
                    }
                    next = part.upto;
                }
            }));
        }
        most_held(&ask, reading).await
    });
    world.check_drive();
    assert!((COLD_READS_MAX_BYTES / 2..=COLD_READS_MAX_BYTES).contains(&held), "{held} bytes");
}

/// Reads the heads of `range`, of every stream or of one, as often as it takes to come to its end, and counts them.
async fn read_heads(ask: &Ask, connection: &Connection, wanted: Wanted, range: Range<u64>) -> u64 {
    let (mut next, mut seen) = (range.start, 0);
    while next < range.end {
        let read = ReadStream {
            limit_bytes: READ_MAX_BYTES as u32,
            committed: false,
            heads_only: true,
            last_only: false,
            known_only: false,
            wait_ms: 0,
            wanted,
            ranges: vec![(next..range.end).into()],
        };
        let asked = connection.call::<_, StreamRuns>(&ask.env, EPOCH, &read, ask.deadline());
        let answer = asked.await.expect("readable").0.runs;
        let before = next;
        for run in answer.runs() {
            assert_eq!(run.range().start.0, next, "no gap");
            next = run.range().end.0;
            seen += if matches!(run.state, StateRef::Data { .. }) { run.range().count() } else { 0 };
        }
        assert!(next > before, "an answer gets on");
    }
    seen
}

#[test]
fn scans_of_heads_on_the_drive_hold_no_more_together_either_and_each_gets_on_to_its_end() {
    const COUNT: u64 = 3000;
    for wanted in [Wanted::EveryStream, Wanted::Stream(STREAM)] {
        let world = World::with_index(COUNT, 4096, 0);
        let (held, waiting) = world.run(async move |ask| {
            let mut reading = Vec::new();
            for _ in 0..40 {
                let connection = ask.connection().await;
                for _ in 0..4 {
                    let (ask, connection) = (ask.clone(), Rc::clone(&connection));
                    let env = ask.env.clone();
                    reading.push(env.spawn(async move {
                        assert_eq!(read_heads(&ask, &connection, wanted, 0..COUNT).await, COUNT);
                    }));
                }
            }
            most_held(&ask, reading).await
        });
        world.check_drive();
        assert!(
            (COLD_READS_MAX_BYTES / 2..=COLD_READS_MAX_BYTES).contains(&held),
            "{wanted:?}: {held} bytes"
        );
        assert!(waiting > 40, "{wanted:?}: {waiting} of 160");
    }
}

#[test]
fn thousands_of_small_reads_are_at_the_drive_together() {
    let world = World::with_entries(64, 4096);
    let (_, waiting) = world.run(async |ask| {
        let connection = ask.connection().await;
        let one = |at: u64| {
            let (ask, connection) = (ask.clone(), Rc::clone(&connection));
            ask.env.clone().spawn(async move { ask.read(&connection, at % 64..at % 64 + 1, 4096).await })
        };
        let reading = (0..4000).map(one).collect();
        most_held(&ask, reading).await
    });
    assert_eq!(waiting, 0);
    let (_, most) = world.asked.most.get();
    assert!(most > 3500, "{most} at once");
}

#[test]
fn small_reads_of_one_connection_do_not_wait_for_all_bulk_reads_of_another() {
    let world = World::with_entries(24, 256 << 10);
    let (small, bulk) = world.run(async |ask| {
        let (many, few) = (ask.connection().await, ask.connection().await);
        let done = Rc::new(Cell::new(0));
        let mut reading = Vec::new();
        for _ in 0..128 {
            let (ask, many, done) = (ask.clone(), Rc::clone(&many), Rc::clone(&done));
            reading.push(ask.env.clone().spawn(async move {
                ask.read(&many, 0..24, 256 << 10).await;
                done.set(done.get() + 1);
            }));
        }
        while ask.status(&few, "cold_reads_waiting").await < 100 {}
        let one = |at: u64| {
            let (ask, few) = (ask.clone(), Rc::clone(&few));
            ask.env.clone().spawn(async move { ask.read(&few, at % 24..at % 24 + 1, 256 << 10).await })
        };
        let small: Vec<_> = (0..14).map(one).collect();
        for read in small {
            read.join().await.expect("it reads all");
        }
        let before = done.get();
        for read in reading {
            read.join().await.expect("it reads all");
        }
        (before, done.get())
    });
    assert!(small < 40 && bulk == 128, "{small} of {bulk} bulk reads came first");
}

/// Says hello and asks for many bulk reads, and takes no answer.
async fn ask_and_take_nothing(ask: &Ask, count: u64) -> Conn {
    let mut conn = ask.env.connect(ask.addr).await.expect("it listens");
    let hello = Hello {
        version_min: PROTOCOL_VERSION,
        version_max: PROTOCOL_VERSION,
        client: ClientId(8),
        node: NodeId(0),
        cluster: ClusterId::UNKNOWN,
    };
    conn.writer.push(|out| encode_message(out, Head::new(RequestId(0), EPOCH), &hello));
    let mut greeted = BytesMut::new();
    while next_frame(&mut greeted).expect("a frame").is_none() {
        conn.reader.read(&mut greeted).await.expect("it answers");
    }
    for id in 1..=count {
        conn.writer.push(|out| encode_message(out, Head::new(RequestId(id), EPOCH), &read(0..24)));
    }
    ask.env.sleep(Duration::from_secs(5)).await;
    conn
}

#[test]
fn who_takes_no_answers_stops_its_own_reads_and_nobody_elses() {
    const COUNT: u64 = 128;
    let world = World::with_entries(24, 256 << 10);
    let conn = world.run(async |ask| ask_and_take_nothing(&ask, COUNT).await);
    let read = world.asked.bytes.get() as usize;
    // And what is on its way.
    let most = UNSENT_MAX_BYTES + READ_MAX_BYTES + COLD_READS_MAX_BYTES + (16 << 20);
    assert!(read <= most, "{read} bytes are read for somebody who takes none of them");
    world.run(async |ask| {
        let connection = ask.connection().await;
        ask.read(&connection, 0..24, 256 << 10).await;
    });
    // It takes them after all.
    world.run(async move |_| {
        let (mut conn, mut bytes, mut answers) = (conn, BytesMut::new(), 0);
        while answers < COUNT {
            assert!(conn.reader.read(&mut bytes).await.expect("it is not closed") > 0, "{answers} answers");
            while let Some(frame) = next_frame(&mut bytes).expect("a frame") {
                answers += u64::from(frame.kind == Runs::KIND as u16);
            }
        }
    });
}

#[test]
fn reads_whose_connection_is_gone_give_everything_back_and_read_nothing_more() {
    let mut world = World::with_entries(24, 256 << 10);
    let (stays, gone) = (world.clients, world.sim.process("gone", [10, 0, 0, 3].into()));
    world.clients = gone;
    let _conn = world.run(async |ask| ask_and_take_nothing(&ask, 128).await);
    world.clients = stays;
    let waiting = |ask: Ask| async move {
        let connection = ask.connection().await;
        ask.status(&connection, "cold_reads_waiting").await
    };
    assert!(world.run(waiting) > 90);
    let read = world.asked.bytes.get();
    world.sim.kill(gone);
    world.sim.run_for(Duration::from_secs(1));
    assert_eq!(world.run(waiting), 0);
    assert_eq!(world.asked.bytes.get(), read);
    world.run(async |ask| {
        let connection = ask.connection().await;
        assert_eq!(ask.status(&connection, "cold_read_bytes").await, 0);
    });
}
