//! What clients do to the log in a simulation, noting all of it in the history.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::sim::{Dice, Domain, Plan, Sim};
use ithaca_log::client::{Client, ClientError, ClientOptions, Entry, EntryKind, ErrorClass};
use ithaca_log::layout::NodeState;
use ithaca_log::planted::Planted;
use ithaca_log::pos::LogPos;

use super::history::{Checked, Fate, History, Moment, Seen};
use super::replicas;
use super::stream_work;
use super::value::{VALUE_MIN_BYTES, Value};

/// Appends that the audit tries; it trims after the first. They last longer than two beats that are lost one after the other: each is given
/// up after 350 ms.
const APPENDS_AFTER_TRIM: u32 = 50;

/// Which clients send their appends whole; the others ask for positions and write themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// None does.
    Nobodys,
    /// All do.
    Everybodys,
    /// Those with odd numbers.
    Odd,
}

/// What all clients of a run share.
pub struct Shared {
    /// What they do and see.
    pub history: Rc<History>,
    /// Where nodes listen that clients begin with.
    pub addrs: Vec<SocketAddr>,
    /// The longest entry.
    pub entry_max_bytes: usize,
    /// Most appends that one client has under way together.
    pub burst_max: u64,
    /// The longest pause between operations, in microseconds.
    pub pause_us: u64,
    /// Whose appends go whole to the sequencer.
    pub forwarded: Forwarded,
    /// Whether writes are handed on by the nodes of the units.
    pub relayed: bool,
    /// How many streams there are; 0 if none is used.
    pub streams: u64,
    /// A fault of the clients to put in force.
    pub planted: Planted,
    /// Clients that have done all their operations.
    pub done: Cell<u32>,
    /// Reads of theirs that another replica than the last has answered.
    pub elsewhere: Cell<u64>,
}

impl Shared {
    /// What `plan` sets, for clients that begin with the nodes at `addrs`.
    pub fn of_plan(plan: &Plan, addrs: Vec<SocketAddr>, planted: Planted) -> Rc<Self> {
        Rc::new(Self {
            history: Rc::new(History::default()),
            addrs,
            entry_max_bytes: plan.setting("workload.entry_max_bytes", 300) as usize,
            burst_max: plan.setting("workload.burst_max", 4),
            pause_us: plan.setting("workload.pause_us", 3_000),
            forwarded: match plan.setting("workload.forwarded", 2) {
                0 => Forwarded::Nobodys,
                1 => Forwarded::Everybodys,
                _ => Forwarded::Odd,
            },
            relayed: plan.setting("workload.relayed", 1) == 1,
            streams: plan.setting("workload.streams", 0),
            planted,
            done: Cell::new(0),
            elsewhere: Cell::new(0),
        })
    }

    /// Starts the clients of `plan`, on the machines after `clients`, and its followers, on those from `followers` on. How many
    /// clients there are.
    pub fn start(self: &Rc<Self>, sim: &Sim, plan: &Plan, clients: u8, followers: u8) -> u32 {
        let count = plan.setting("topology.clients", 1) as u32;
        let operations = plan.setting("workload.operations", 100) / u64::from(count.max(1));
        for number in 1..=count {
            let env = sim.env(sim.process(&format!("client-{number}"), machine(clients + number as u8)));
            env.spawn(work(env.clone(), sim.dice(), Rc::clone(self), number, operations));
        }
        for number in 0..plan.setting("topology.followers", 0) {
            let at = machine(followers + number as u8);
            let env = sim.env(sim.process(&format!("follower-{number}"), at));
            env.spawn(follow(env.clone(), Rc::clone(self)));
        }
        count
    }

    fn options(&self, number: u32) -> ClientOptions {
        ClientOptions {
            endpoints: self.addrs.clone(),
            timeout: Duration::from_secs(2),
            hole_wait: Duration::from_millis(5),
            max_in_flight_bytes: 256 << 10,
            retry_appends: true,
            forward_appends: match self.forwarded {
                Forwarded::Nobodys => false,
                Forwarded::Everybodys => true,
                Forwarded::Odd => number % 2 == 1,
            },
            relay_writes: self.relayed,
            only_epoch: None,
            outlives_loss: false,
            is_of_node: false,
            planted: self.planted,
        }
    }

    /// Client `number`, as soon as the cluster can be reached.
    pub async fn connect(&self, env: &Env, number: u32) -> Client {
        loop {
            if let Ok(client) = Client::connect(env, self.options(number)).await {
                return client;
            }
            env.sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The address of a machine.
pub fn machine(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

/// Runs `task` in `env`; its result is there when it has ended.
pub fn result_of<T: 'static>(env: &Env, task: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&result);
    env.spawn(async move {
        let ended = task.await;
        *slot.borrow_mut() = Some(ended);
    });
    result
}

/// One client of the workload.
pub(super) struct Worker {
    pub(super) env: Env,
    pub(super) dice: Dice,
    pub(super) shared: Rc<Shared>,
    pub(super) client: Client,
    number: u32,
    next_value: u32,
    draws: u64,
    /// The tail, as it was when it was asked for last: what transactions begin with.
    pub(super) snapshot: LogPos,
}

/// Does `operations` operations as client `number` (from 1).
async fn work(env: Env, dice: Dice, shared: Rc<Shared>, number: u32, operations: u64) {
    let client = shared.connect(&env, number).await;
    let (next_value, draws, snapshot) = (0, 0, LogPos(0));
    let mut worker = Worker { env, dice, shared, client, number, next_value, draws, snapshot };
    let mut left = operations;
    while left > 0 {
        left = left.saturating_sub(worker.operate().await);
        if worker.draw(3) == 0 {
            let pause = Duration::from_micros(worker.draw(worker.shared.pause_us));
            worker.env.sleep(pause).await;
        }
        if worker.client.is_after_loss() {
            worker.note_elsewhere();
            worker.client = worker.shared.connect(&worker.env, number).await;
        }
    }
    worker.shared.done.set(worker.shared.done.get() + 1);
    worker.note_elsewhere();
}

impl Worker {
    pub(super) fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        self.dice.below(Domain::User(1), u64::from(self.number), self.draws, bound.max(1))
    }

    fn note_elsewhere(&self) {
        let elsewhere = self.shared.elsewhere.get() + self.client.reads_elsewhere();
        self.shared.elsewhere.set(elsewhere);
    }

    /// A position that may hold something: any, or one at the end, where things are decided.
    pub(super) fn known(&mut self) -> u64 {
        let end = self.shared.history.known_end();
        match self.draw(3) {
            0 => end + self.draw(4),
            1 => end.saturating_sub(self.draw(4)),
            _ => self.draw(end + 1),
        }
    }

    /// One operation or a few at once. Returns how many.
    async fn operate(&mut self) -> u64 {
        match self.draw(20) {
            0..=8 => return self.append().await,
            9..=12 => {
                let pos = self.known();
                self.read(pos).await;
            }
            13..=15 if self.uses_streams() => match self.draw(4) {
                0 => self.follow_stream().await,
                _ => self.read_stream().await,
            },
            13..=15 => {
                let from = self.known();
                self.read_range(from, from + 1 + self.dice.seed() % 17).await;
            }
            16 => {
                let pos = self.known();
                self.fill(pos).await;
            }
            17 if self.uses_streams() => self.trim_stream().await,
            17 => {
                let pos = self.known();
                self.trim(pos..pos + 1).await;
            }
            18 if self.draw(3) == 0 => {
                let end = self.known() * (1 + self.draw(3)) / 4;
                self.trim(0..end).await;
            }
            _ if self.uses_streams() => self.check_streams().await,
            _ => self.check().await,
        }
        1
    }

    async fn append(&mut self) -> u64 {
        let count = 1 + self.draw(self.shared.burst_max);
        let mut under_way = Vec::new();
        for _ in 0..count {
            self.next_value += 1;
            let value = Value { client: self.number, number: self.next_value };
            let longest = self.shared.entry_max_bytes as u64;
            // Mostly short, now and then a whole block, which takes the aligned path.
            let len = match self.draw(8) {
                0 => self.draw(longest),
                1 => 4096.min(longest),
                _ => self.draw(200),
            };
            let bytes = value.encode((len as usize).max(VALUE_MIN_BYTES));
            let asked = if self.uses_streams() { Some(self.asked()) } else { None };
            let start = self.shared.history.now();
            under_way.push((value, start, self.send(value, asked, bytes)));
        }
        for (value, start, append) in under_way {
            let placed = append.placed().await;
            let history = &self.shared.history;
            match &placed {
                Ok(placed) => history.streams.told(placed.pos.0, value, placed.places.to_vec()),
                Err(ClientError::Conflict { .. }) => history.streams.refused(true),
                Err(ClientError::TooOld { low_water }) => {
                    history.streams.refused(false);
                    self.snapshot = self.snapshot.max(*low_water);
                }
                Err(_) => {}
            }
            history.appended(value, start, Fate::of(&placed.map(|placed| placed.pos)));
        }
        count
    }

    async fn read(&mut self, pos: u64) {
        let start = self.shared.history.now();
        match self.client.read(LogPos(pos)).await {
            Ok(entry) => note_entry(&self.shared.history, &entry, start),
            Err(error) => note_failure(&self.shared.history, &error, start),
        }
    }

    async fn read_range(&mut self, from: u64, to: u64) {
        let start = self.shared.history.now();
        match self.client.read_range(LogPos(from), LogPos(to)).await {
            Ok(entries) => note_entries(&self.shared.history, from, &entries, start),
            Err(error) => note_failure(&self.shared.history, &error, start),
        }
    }

    async fn fill(&mut self, pos: u64) {
        let start = self.shared.history.now();
        let seen = match self.client.fill(LogPos(pos)).await {
            Ok(EntryKind::Data) => Seen::SomeData,
            Ok(EntryKind::Junk) => Seen::Junk,
            Ok(EntryKind::Trimmed) => Seen::Trimmed,
            Err(_) => return,
        };
        self.shared.history.saw(pos, seen, start);
    }

    async fn trim(&mut self, range: Range<u64>) {
        let trim = self.shared.history.trims(range.clone());
        let done = match range.start {
            0 => self.client.trim_prefix(LogPos(range.end)).await,
            start => self.client.trim(LogPos(start)).await,
        };
        if done.is_ok() {
            self.shared.history.trimmed(trim);
        }
    }

    async fn check(&mut self) {
        // An error says nothing of the ends.
        tail(&self.client, &self.shared.history).await.ok();
    }
}

/// Where the log ends, for the oracle to judge where it begins, too.
async fn tail(client: &Client, history: &History) -> Result<LogPos, ClientError> {
    let start = history.now();
    let bounds = client.check().await?;
    let end = history.now();
    history.checks.borrow_mut().push(Checked { tail: bounds.tail.0, first: bounds.first.0, start, end });
    Ok(bounds.tail)
}

/// Notes entries of a range that was read from `from` on: in order and without gaps.
pub fn note_entries(history: &History, from: u64, entries: &[Entry], start: Moment) {
    for (pos, entry) in (from..).zip(entries) {
        if entry.pos.0 != pos {
            history.wrong.borrow_mut().push(format!("a range has {} in the place of {pos}", entry.pos.0));
        }
        note_entry(history, entry, start);
    }
}

pub(super) fn note_entry(history: &History, entry: &Entry, start: Moment) {
    let seen = match entry.kind {
        EntryKind::Junk => Seen::Junk,
        EntryKind::Trimmed => Seen::Trimmed,
        EntryKind::Data if entry.streams.iter().any(|place| place.stream.is_system()) => Seen::System,
        EntryKind::Data => match Value::decode(&entry.data) {
            Some(value) => {
                history.streams.saw(entry.pos.0, value, &entry.streams);
                Seen::Data(value)
            }
            None => {
                let len = entry.data.len();
                history.wrong.borrow_mut().push(format!("the {len} bytes at {} are nobody's", entry.pos.0));
                return;
            }
        },
    };
    history.saw(entry.pos.0, seen, start);
}

pub(super) fn note_failure(history: &History, error: &ClientError, start: Moment) {
    match error {
        ClientError::Unwritten { pos } => history.saw(pos.0, Seen::Unwritten, start),
        ClientError::Damaged { pos } => history.saw(pos.0, Seen::Damaged, start),
        _ => {}
    }
}

/// Follows the log from its beginning on, for as long as the run lasts.
async fn follow(env: Env, shared: Rc<Shared>) {
    let client = shared.connect(&env, 0).await;
    let mut tailing = client.tail_from(LogPos(0));
    // What is pushed may have been under way for long: it promises order, not freshness.
    let start = shared.history.now();
    loop {
        let next = tailing.position().0;
        match tailing.next().await {
            Ok(entries) => note_entries(&shared.history, next, &entries, start),
            Err(ClientError::AfterLoss { .. }) => return,
            Err(_) => env.sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Reads the whole log and appends once more, as a client that comes when everything is healed. Errors are of the audit
/// itself; what it sees goes to the history.
pub async fn audit(env: Env, shared: Rc<Shared>) -> Result<(), ClientError> {
    let history = Rc::clone(&shared.history);
    let client = shared.connect(&env, 0).await;
    let end = tail(&client, &history).await?;
    let end = match read_all(&client, &history, end).await {
        // Half of the reserve is for junk and copies: of segments as small as these it is less than a burst. There must be room for a trim.
        Err(error) if error.is_full() => {
            trim_all(&client, &history, end).await?;
            read_all(&client, &history, end).await?
        }
        read => read?,
    };
    stream_work::read_all(&client, &history, shared.streams, end).await?;
    append_or_make_room(&env, &client, &history, end).await?;
    replicas::compare(&env, &client, &history, end).await
}

/// Trims everything, as an operator who is told that nodes have no room; what is there is read before. Whether any node had
/// none. Tried until it is done.
pub async fn make_room(env: Env, shared: Rc<Shared>) -> bool {
    let client = shared.connect(&env, 0).await;
    loop {
        if let Ok(was_full) = try_make_room(&client, &shared.history).await {
            return was_full;
        }
        env.sleep(Duration::from_millis(100)).await;
    }
}

async fn try_make_room(client: &Client, history: &History) -> Result<bool, ClientError> {
    let layout = client.layout().await?;
    let end = tail(client, history).await?;
    match read_all(client, history, end).await {
        Err(error) if !error.is_full() => return Err(error),
        _ => {}
    }
    trim_all(client, history, end).await?;
    Ok(layout.nodes.iter().any(|node| node.state == NodeState::Full))
}

/// Reads up to `end`, or to where the log ends if that is lower by now: what an epoch has granted and nobody wrote ends with it.
/// Returns which.
async fn read_all(client: &Client, history: &History, mut end: LogPos) -> Result<LogPos, ClientError> {
    let mut pos = 0;
    while pos < end.0 {
        let start = history.now();
        let entries = match client.read_range(LogPos(pos), end).await {
            // What is behind it is to be there.
            Err(error) if error.class() == ErrorClass::Damaged => {
                read_one(client, history, LogPos(pos)).await?;
                pos += 1;
                continue;
            }
            read => read?,
        };
        if entries.is_empty() {
            end = tail(client, history).await?;
            if pos < end.0 {
                history.wrong.borrow_mut().push(format!("a read from {pos} below the tail gave nothing"));
            }
            break;
        }
        note_entries(history, pos, &entries, start);
        pos += entries.len() as u64;
    }
    Ok(end)
}

/// Reads a position that may be damaged, also where the first replica has lost what no other one has yet: a hole that cannot be filled.
async fn read_one(client: &Client, history: &History, pos: LogPos) -> Result<(), ClientError> {
    let start = history.now();
    match client.read(pos).await {
        Ok(entry) => note_entry(history, &entry, start),
        Err(error) if error.class() == ErrorClass::Damaged => history.saw(pos.0, Seen::Damaged, start),
        Err(ClientError::Unwritten { .. }) => match client.fill(pos).await {
            Err(error) if error.class() == ErrorClass::Damaged => history.saw(pos.0, Seen::Damaged, start),
            filled => filled.map(|_| ())?,
        },
        Err(error) => return Err(error),
    }
    Ok(())
}

/// What all nodes that answer count together under a name.
pub async fn counted(client: &Client, name: &str) -> Result<u64, ClientError> {
    let answers = client.status().await?.into_iter().filter_map(|(_, _, answer)| answer.ok());
    let counters = answers.flat_map(|status| status.counters);
    Ok(counters.filter(|(counter, _)| counter == name).map(|(_, count)| count).sum())
}

async fn trim_all(client: &Client, history: &History, tail: LogPos) -> Result<(), ClientError> {
    let trim = history.trims(0..tail.0);
    client.trim_prefix(tail).await?;
    history.trimmed(trim);
    Ok(())
}

/// A full drive is freed by a trim: some append must go through then.
async fn append_or_make_room(
    env: &Env,
    client: &Client,
    history: &History,
    tail: LogPos,
) -> Result<(), ClientError> {
    for number in 1.. {
        let value = Value { client: 0, number };
        let start = history.now();
        let appended = client.append(value.encode(100)).await;
        history.appended(value, start, Fate::of(&appended));
        match appended {
            Ok(_) => break,
            Err(error) if number == APPENDS_AFTER_TRIM => return Err(error),
            Err(_) => {}
        }
        if number == 1 {
            trim_all(client, history, tail).await?;
        }
        // Nodes tell each other ten times a second that they have room, if no beat is lost.
        env.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
