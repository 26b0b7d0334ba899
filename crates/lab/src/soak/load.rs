//! Load: several clients of the real client library that append, read, trim and fill at once, and write down in the
//! ledger what they asked for and what they were told.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ithaca_env::Env;
use ithaca_env::sim::Random;
use ithaca_env::sync::Notify;
use ithaca_env::task::TaskHandle;
use ithaca_log::client::{Client, ClientError, ClientOptions};
use ithaca_log::pos::LogPos;

use super::entry::{Name, random_len};
use super::ledger::{Ledger, Violation};

/// Every call of a client ends within this time.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A call may end later than that by this much: this process may not have had a processor when its time was over.
const LATE: Duration = Duration::from_millis(500);
/// A reader gives a hole's writer this long before it fills the hole.
const HOLE_WAIT: Duration = Duration::from_millis(20);
/// Appends without a result at the most, over all clients.
const OUTSTANDING_MAX: usize = 512;
/// Appends that a client starts together at the most.
const BURST_MAX: u64 = 32;

/// What the clients share.
pub struct Load {
    env: Env,
    addrs: Vec<SocketAddr>,
    ledger: Rc<RefCell<Ledger>>,
    keep: u64,
    pause: Duration,
    stopped: Cell<bool>,
    outstanding: Cell<usize>,
    changed: Notify,
}

/// A call that was begun at `begun` has ended just now: not long after its time.
pub fn must_have_ended(ledger: &mut Ledger, call: &str, begun: Instant) {
    let took = begun.elapsed();
    if took > CALL_TIMEOUT + LATE {
        let what = format!("{call} took {took:?}, its time is {CALL_TIMEOUT:?}");
        ledger.violated(Violation::Differing, what);
    }
}

/// A client of the cluster that has nodes at `addrs`, as all of a soak are set up.
pub async fn connect(env: &Env, addrs: &[SocketAddr]) -> Result<Client, ClientError> {
    let options = ClientOptions {
        endpoints: addrs.to_vec(),
        timeout: CALL_TIMEOUT,
        hole_wait: HOLE_WAIT,
        max_in_flight_bytes: 1 << 20,
        ..ClientOptions::default()
    };
    Client::connect(env, options).await
}

impl Load {
    /// A load on the cluster that has nodes at `addrs`; it trims what was audited, but for the last `keep` positions.
    pub fn new(env: &Env, addrs: &[SocketAddr], ledger: &Rc<RefCell<Ledger>>, keep: u64) -> Rc<Self> {
        Self::paced(env, addrs, ledger, keep, Duration::ZERO)
    }

    /// The same, whose clients rest for `pause` after each thing that they do.
    pub fn paced(
        env: &Env,
        addrs: &[SocketAddr],
        ledger: &Rc<RefCell<Ledger>>,
        keep: u64,
        pause: Duration,
    ) -> Rc<Self> {
        Rc::new(Self {
            env: env.clone(),
            addrs: addrs.to_vec(),
            ledger: Rc::clone(ledger),
            keep,
            pause,
            stopped: Cell::new(false),
            outstanding: Cell::new(0),
            changed: Notify::default(),
        })
    }

    /// Appends without a result.
    pub fn outstanding(&self) -> usize {
        self.outstanding.get()
    }

    /// Starts a client; `worker` is a number that no other client of the soak has.
    pub fn start(self: &Rc<Self>, worker: u32, random: Random) -> TaskHandle<()> {
        self.env.spawn(work(Rc::clone(self), worker, random))
    }

    /// Starts nothing more, and waits until every call under way has ended. An append without a result by its deadline
    /// is a violation: no client may hang.
    pub async fn drain(&self, workers: Vec<TaskHandle<()>>) {
        self.stopped.set(true);
        let ended = async {
            for worker in workers {
                worker.join().await;
            }
            self.changed.until(|| (self.outstanding.get() == 0).then_some(())).await;
        };
        if self.env.timeout(2 * CALL_TIMEOUT, ended).await.is_err() {
            let what = format!("{} appends have no result after their deadline", self.outstanding.get());
            self.ledger.borrow_mut().violated(Violation::Differing, what);
        }
    }
}

async fn work(load: Rc<Load>, worker: u32, mut random: Random) {
    let mut number = 0;
    let Some(client) = reach(&load).await else { return };
    while !load.stopped.get() {
        // Errors of these are what an outage looks like; what matters is what they claim to have done.
        match random.below(1000) {
            0..10 => read_some(&load, &client, &mut random).await,
            10..20 => trim_one(&load, &client, &mut random).await,
            20..30 => leave_hole(&load, &client, &mut random).await,
            30..34 => trim_prefix(&load, &client).await,
            _ => {
                for _ in 0..=random.below(BURST_MAX) {
                    append(&load, &client, Name { worker, len: random_len(&mut random), number });
                    number += 1;
                }
                client.room().await;
                let shared = Rc::clone(&load);
                load.changed.until(move || (shared.outstanding.get() < OUTSTANDING_MAX).then_some(())).await;
            }
        }
        match load.pause {
            Duration::ZERO => load.env.yield_now().await,
            pause => load.env.sleep(pause).await,
        }
    }
}

async fn reach(load: &Load) -> Option<Client> {
    loop {
        match connect(&load.env, &load.addrs).await {
            Ok(client) => return Some(client),
            Err(_) if !load.stopped.get() => load.env.sleep(Duration::from_millis(5)).await,
            Err(_) => return None,
        }
    }
}

/// Starts an append; its result goes to the ledger whenever it comes.
fn append(load: &Rc<Load>, client: &Client, name: Name) {
    load.ledger.borrow_mut().sending(name);
    load.outstanding.set(load.outstanding.get() + 1);
    let append = client.append(name.bytes());
    // Appends end with the last clone of their client.
    let (load, client) = (Rc::clone(load), client.clone());
    let env = load.env.clone();
    env.spawn(async move {
        let result = append.await;
        drop(client);
        load.ledger.borrow_mut().settled(name, &result);
        load.outstanding.set(load.outstanding.get() - 1);
        load.changed.ring();
    });
}

async fn read_some(load: &Load, client: &Client, random: &mut Random) {
    let chosen: Vec<(LogPos, bool)> = {
        let ledger = load.ledger.borrow();
        let (first, end) = (ledger.prefix_done(), ledger.last_known().unwrap_or(0) + 1);
        let spread = end.saturating_sub(first);
        let known = (0..8).filter_map(|_| ledger.known_from(first + random.below(spread)));
        known.map(|pos| (LogPos(pos), ledger.is_trimmed(pos))).collect()
    };
    let positions: Vec<LogPos> = chosen.iter().map(|&(pos, _)| pos).collect();
    if let Ok(entries) = client.read_many(&positions).await {
        let mut ledger = load.ledger.borrow_mut();
        for (entry, (_, was_trimmed)) in entries.iter().zip(chosen) {
            ledger.observed(entry.pos.0, entry.kind, &entry.data, was_trimmed);
        }
    }
}

async fn trim_one(load: &Load, client: &Client, random: &mut Random) {
    let chosen = {
        let mut ledger = load.ledger.borrow_mut();
        let (first, end) = (ledger.prefix_done(), ledger.last_known().unwrap_or(0) + 1);
        let chosen = ledger.known_from(first + random.below(end.saturating_sub(first)));
        chosen.inspect(|&pos| ledger.trim_asked(pos))
    };
    let Some(pos) = chosen else { return };
    if client.trim(LogPos(pos)).await.is_ok() {
        load.ledger.borrow_mut().trimmed(pos);
    }
}

/// Takes a position and does not write it; half of these holes are filled here, the others by whoever reads them.
async fn leave_hole(load: &Load, client: &Client, random: &mut Random) {
    let Ok(positions) = client.tokens(1).await else { return };
    let pos = positions.start;
    if random.percent(50)
        && let Ok(kind) = client.fill(pos).await
    {
        // A fill of a position that was trimmed meanwhile, as part of a prefix, finds it trimmed.
        load.ledger.borrow_mut().filled(pos.0, kind);
    }
}

async fn trim_prefix(load: &Load, client: &Client) {
    let end = {
        let mut ledger = load.ledger.borrow_mut();
        let last = ledger.last_known().unwrap_or(0);
        let end = last.saturating_sub(load.keep).min(ledger.audited());
        if end <= ledger.prefix_done() + load.keep / 8 {
            return;
        }
        ledger.prefix_asked(end);
        end
    };
    if client.trim_prefix(LogPos(end)).await.is_ok() {
        load.ledger.borrow_mut().prefix_trimmed(end);
    }
}
