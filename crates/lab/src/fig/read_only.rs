//! Transactions that only read, beside writers: snapshots of the log, and two-phase locking. Wei, figure 5.13.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Dice, Domain};
use ithaca_env::sync::Notify;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::LogPos;
use ithaca_object::composed::HashedMap;
use ithaca_object::{Runtime, RuntimeOptions, Tx, TxOptions};

use super::Figure;
use super::abort_rate::Ended;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed};
use crate::locks::{self, Locks, Mode};

const SEED: u64 = 1;
const UNITS: usize = 4;
/// Entries, and how many of them each transaction reads or writes.
const KEYS: u64 = 2000;
const EACH: u64 = 10;
/// Objects that ours are spread over.
const BUCKETS: u64 = 64;
/// What the writer is to commit beside any number of readers, of what it commits under two-phase locking.
const ASKED: f64 = 2.0;
/// Before each measurement.
const WARM: Duration = Duration::from_millis(30);
/// The machine of the lock server.
const SERVER: ([u8; 4], u16) = ([10, 2, 0, 3], 7421);

/// What one writer and so many readers did.
struct Point {
    readers: usize,
    /// Of the writer's transactions: committed a second, and the part that aborted.
    written: f64,
    writer_aborts: f64,
    /// Readers' transactions that committed, a second; and the part that aborted.
    read: f64,
    reader_aborts: f64,
}

fn keys(who: usize, turn: u64) -> Vec<u64> {
    let mut keys: Vec<u64> =
        (0..EACH).map(|what| Dice::new(SEED).below(Domain::User(who as u32), turn, what, KEYS)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Counts for `span` what the writer and the readers do.
fn count(
    testbed: &Testbed,
    readers: usize,
    span: Duration,
    start: impl Fn(usize, &Rc<Ended>) -> Rc<Load>,
) -> Point {
    let (writing, reading) = (Rc::new(Ended::default()), Rc::new(Ended::default()));
    let loads: Vec<Rc<Load>> =
        (0..=readers).map(|who| start(who, if who == 0 { &writing } else { &reading })).collect();
    testbed.sim.run_for(WARM);
    writing.reset();
    reading.reset();
    testbed.sim.run_for(span);
    let a_second = |ended: &Ended| ended.committed.get() as f64 / span.as_secs_f64();
    let (written, read) = (a_second(&writing), a_second(&reading));
    let (writer_aborts, reader_aborts) = (writing.abort_rate(), reading.abort_rate());
    loads.iter().for_each(|load| testbed.stop(load));
    Point { readers, written, writer_aborts, read, reader_aborts }
}

/// Transactions of ours: the first program writes, the others read.
fn ours(readers: usize, span: Duration) -> Point {
    let testbed = Testbed::new(&Setup::steady(UNITS, readers + 1, 1));
    let (process, client) = testbed.client(0);
    let runtime = Runtime::new(&testbed.sim.env(process), client, RuntimeOptions::default());
    testbed.sim.block_on(process, async move {
        let map = HashedMap::<u64, u64>::open_with(&runtime, "map", BUCKETS).expect("nothing else is open");
        for key in 0..KEYS {
            map.fast_put(key, key).await.expect("a cluster without faults appends");
        }
    });
    count(&testbed, readers, span, |who, ended| {
        let (process, client) = testbed.client(who);
        // The first client has been a runtime's already.
        let env = testbed.sim.env(process);
        let fresh = testbed.sim.block_on(process, {
            let env = env.clone();
            async move { another(&env, &client).await }
        });
        let runtime = Runtime::new(&env, fresh, RuntimeOptions::default());
        let map = HashedMap::<u64, u64>::open_with(&runtime, "map", BUCKETS).expect("nothing else is open");
        let ended = Rc::clone(ended);
        testbed.start_at(who, 1, move |_, turn| {
            let (runtime, map, ended) = (runtime.clone(), map.clone(), Rc::clone(&ended));
            async move {
                let options = TxOptions { retries: 0, ..TxOptions::default() };
                let body = async |tx: &Tx| {
                    let map = map.within(tx);
                    for key in keys(who, turn) {
                        match who {
                            0 => map.fast_put(key, turn).await?,
                            _ => assert!(map.get(&key).await?.is_some(), "every key has a value"),
                        }
                    }
                    Ok(())
                };
                ended.count(runtime.transact(&options, body).await);
            }
        })
    })
}

/// One more client of the cluster.
async fn another(env: &ithaca_env::Env, client: &Client) -> Client {
    let layout = client.layout().await.expect("a cluster without faults has a layout");
    let node = layout.node(layout.sequencer).expect("the sequencer is a member");
    let endpoints = vec![node.address.parse().expect("a simulated node has an address")];
    let options =
        ClientOptions { endpoints, forward_appends: false, relay_writes: false, ..ClientOptions::default() };
    Client::connect(env, options).await.expect("a cluster without faults is reached")
}

/// A transaction under locks: what was locked is read or written, and released.
async fn locked(
    locks: &mut Locks,
    client: &Client,
    places: &RefCell<Vec<LogPos>>,
    (keys, mode): (Vec<u64>, Mode),
) -> bool {
    if !locks.lock(&keys, mode).await.expect("the server lives") {
        return false;
    }
    match mode {
        Mode::Read => {
            let positions: Vec<LogPos> = keys.iter().map(|key| places.borrow()[*key as usize]).collect();
            client.read_many(&positions).await.expect("a cluster without faults is read");
        }
        Mode::Write => {
            // All of them in one entry.
            let entry = Bytes::from(vec![7; 16 * keys.len()]);
            let pos = client.append(entry).await.expect("a cluster without faults appends");
            keys.iter().for_each(|key| places.borrow_mut()[*key as usize] = pos);
        }
    }
    locks.release().await.expect("the server lives");
    true
}

/// The same transactions under two-phase locking. Where each entry stands is known to everybody, which costs nothing here.
fn two_phase(readers: usize, span: Duration) -> Point {
    let testbed = Testbed::new(&Setup::steady(UNITS, readers + 1, 1));
    let addr = SocketAddr::from(SERVER);
    let server = testbed.sim.process("locks", addr.ip());
    testbed.sim.start(server, move |env| locks::serve(env, addr));
    let (process, client) = testbed.client(0);
    let first = testbed.sim.block_on(process, async move { client.append(Bytes::from(vec![7; 16])).await });
    let first = first.expect("a cluster without faults appends");
    let places = Rc::new(RefCell::new(vec![first; KEYS as usize]));
    count(&testbed, readers, span, |who, ended| {
        let (process, _) = testbed.client(who);
        let env = testbed.sim.env(process);
        let connected = testbed.sim.block_on(process, async move { Locks::connect(&env, addr).await });
        let slot = Rc::new(RefCell::new(Some(connected.expect("the server lives"))));
        let (back, ended, places) = (Rc::new(Notify::default()), Rc::clone(ended), Rc::clone(&places));
        testbed.start_at(who, 1, move |client, turn| {
            let (slot, back) = (Rc::clone(&slot), Rc::clone(&back));
            let (ended, places) = (Rc::clone(&ended), Rc::clone(&places));
            async move {
                let mut locks = back.until(|| slot.borrow_mut().take()).await;
                let mode = if who == 0 { Mode::Write } else { Mode::Read };
                let done = locked(&mut locks, &client, &places, (keys(who, turn), mode)).await;
                let count: &Cell<u64> = if done { &ended.committed } else { &ended.aborted };
                count.set(count.get() + 1);
                slot.replace(Some(locks));
                back.ring();
            }
        })
    })
}

/// Measures so many readers beside one writer, for `span` of virtual time each. The first number must be 0.
pub fn measure(readers: &[usize], span: Duration) -> Figure {
    let ours: Vec<Point> = readers.iter().map(|count| ours(*count, span)).collect();
    let locked: Vec<Point> = readers.iter().map(|count| two_phase(*count, span)).collect();
    let chart = |title: &str, y_label: &str, value: fn(&Point) -> f64| Chart {
        title: title.to_string(),
        x_label: "readers".to_string(),
        y_label: y_label.to_string(),
        x: readers.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines: vec![
            Line { name: "snapshots".to_string(), y: ours.iter().map(value).collect() },
            Line { name: "two-phase locking".to_string(), y: locked.iter().map(value).collect() },
        ],
    };
    let row = |(name, it): (&str, &Point)| {
        let Point { readers, written, writer_aborts, read, reader_aborts } = it;
        format!("{name},{readers},{written:.0},{writer_aborts:.3},{read:.0},{reader_aborts:.3}")
    };
    let rows = ours.iter().map(|it| ("snapshots", it)).chain(locked.iter().map(|it| ("2PL", it)));
    Figure {
        name: "read-only",
        claim: "transactions that only read never conflict with anybody; under two-phase locking they take a writer's keys from it".to_string(),
        expected: "Wei, figure 5.13: \"as the number of reader clients increase, so does the abort rate for 2PL\", at 200 of them 92 % of the writer's; \
                   \"in vCorfu, the goodput remains 100%\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units. One writer changes {EACH} of {KEYS} entries in each transaction, readers read {EACH}; each has one transaction \
             under way on a machine of its own. Snapshots: a hashed map of {BUCKETS} buckets, local views. Two-phase locking: a lock server on a machine \
             of its own, as fast as the sequencer's; one round trip a lock; what is refused releases all and aborts; entries are appended and read at the \
             units, where each stands is known for nothing. The text's 100,000 entries and 200 readers are {KEYS} and fewer here. {} ms each, seed {SEED}.",
            span.as_millis()
        ),
        columns: "by,readers,written /s,writer's aborts,read /s,readers' aborts",
        rows: rows.map(row).collect(),
        charts: vec![
            chart("the writer's transactions", "committed a second", |it| it.written),
            chart("the writer's aborts", "% of all", |it| it.writer_aborts * 100.0),
        ],
        checks: checks(&ours, &locked),
    }
}

fn checks(ours: &[Point], locked: &[Point]) -> Vec<(String, bool)> {
    let (Some(alone), Some(locked_alone)) = (ours.first(), locked.first()) else { return Vec::new() };
    let check = |(it, locked): (&Point, &Point)| {
        // Views that play back what is written take messages of units from the writer, so that it commits less; but none of them aborts.
        let text = format!(
            "{} readers: nobody aborts, the writer commits {:.0} a second, {:.0} alone; under two-phase locking {:.0}, {:.0} alone",
            it.readers, it.written, alone.written, locked.written, locked_alone.written
        );
        let is_clean = it.reader_aborts == 0.0 && it.writer_aborts == 0.0;
        (text, is_clean && it.written >= ASKED * locked.written)
    };
    let mut checks: Vec<(String, bool)> = ours.iter().zip(locked).skip(1).map(check).collect();
    let most = locked.last().unwrap_or(locked_alone);
    let percent = most.writer_aborts * 100.0;
    checks.push((
        format!("two-phase locking, {} readers: {percent:.0} % of the writer's abort", most.readers),
        most.writer_aborts >= 0.2 && most.written < 0.8 * locked_alone.written,
    ));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_snapshots_take_nothing_from_a_writer() {
        // As long as the whole figure: readers that have just begun take more of the units, and 60 ms are 50 transactions of the writer.
        let figure = measure(&[0, 24], Duration::from_millis(150));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
