//! How long a linearizable read of an object takes that somebody changes all the time, by how many programs read it: each with the state
//! in its own memory, or all with the view of a node (Wei, figure 5.10).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::sim::{Dice, Domain, Speed};
use ithaca_log::client::Client;
use ithaca_log::detector::Timing;
use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::{Blob, Map};
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{LINK_BYTES_PER_S, MESSAGES_PER_S, Setup, Testbed, emulated};

const SEED: u64 = 1;
/// Objects are spread over them; with two, 1,000 programs ask one for more than it can answer.
const UNITS: usize = 8;
/// Programs of one machine, one of which writes.
const PROGRAMS: usize = 20;
const VALUE_BYTES: usize = 1024;
const KEYS: u64 = 64;
/// A program reads so often,
const READ_EVERY: Duration = Duration::from_millis(20);
/// and one of them puts a value so often.
const PUT_EVERY: Duration = Duration::from_millis(5);
/// Before the measurement.
const WARM: Duration = Duration::from_millis(100);
/// Round trips of which the median is taken for one.
const TRIPS: usize = 101;
/// Round trips that a read at a node may take with the most programs.
const MOST_TRIPS: f64 = 2.0;

/// Where the readers have the state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Local,
    Remote,
}

/// What so many programs have seen: times in round trips.
struct Seen {
    p50: f64,
    p99: f64,
    reads_per_s: f64,
}

fn timing() -> Timing {
    let never = Duration::from_secs(3600);
    Timing { silent_after: never, slow_after: never, return_after: never, ..Timing::default() }
}

fn opened(env: &Env, client: Client, place: Place) -> Map<u64, Blob> {
    let options = RuntimeOptions { checkpoints: Policy::NEVER, ..RuntimeOptions::default() };
    let runtime = Runtime::new(env, client, options);
    let map = match place {
        Place::Local => Map::open(&runtime, "map"),
        Place::Remote => Map::open_remote(&runtime, "map"),
    };
    map.expect("the name is open as nothing else")
}

/// Puts values until the world ends.
async fn write(env: Env, map: Map<u64, Blob>) {
    for turn in 0.. {
        let key = Dice::new(SEED).below(Domain::User(0), 0, turn, KEYS);
        map.fast_put(key, Blob(vec![7; VALUE_BYTES].into())).await.expect("a cluster without faults appends");
        env.sleep(PUT_EVERY).await;
    }
}

/// Reads until the world ends, and notes how long each takes from when it was due.
async fn read(
    number: u64,
    env: Env,
    map: Map<u64, Blob>,
    times: Rc<RefCell<Vec<u64>>>,
    is_noted: Rc<Cell<bool>>,
) {
    let phase = Dice::new(SEED).below(Domain::User(1), 0, number, READ_EVERY.as_nanos() as u64);
    env.sleep(Duration::from_nanos(phase)).await;
    for turn in 0.. {
        let due = env.now();
        let key = Dice::new(SEED).below(Domain::User(2), number, turn, KEYS);
        map.get(&key).await.expect("a cluster without faults reads");
        if is_noted.get() {
            times.borrow_mut().push(env.now().since(due).as_nanos() as u64);
        }
        env.sleep_until(due + READ_EVERY).await;
    }
}

fn seen(programs: usize, place: Place, span: Duration) -> Seen {
    // One program writes.
    let machines = (programs + 1).div_ceil(PROGRAMS);
    let testbed = Testbed::new(&Setup {
        units: UNITS,
        client_machines: machines,
        clients: PROGRAMS,
        drive: emulated,
        registers: Speed::Ram,
        own_sequencer: true,
        segment_bytes: 1 << 20,
        timing: timing(),
        seed: SEED,
    });
    let mut all = testbed.programs().into_iter();
    let (env, client) = all.next().expect("there is a program");
    let trip = round_trip(&testbed, &env, &client);
    env.spawn(write(env.clone(), opened(&env, client, Place::Local)));
    let (times, is_noted) = (Rc::<RefCell<Vec<u64>>>::default(), Rc::new(Cell::new(false)));
    for (number, (env, client)) in all.take(programs).enumerate() {
        let map = opened(&env, client, place);
        env.spawn(read(number as u64, env.clone(), map, Rc::clone(&times), Rc::clone(&is_noted)));
    }
    testbed.sim.run_for(WARM);
    is_noted.set(true);
    testbed.sim.run_for(span);
    let mut times = times.take();
    assert!(!times.is_empty(), "somebody has read");
    times.sort_unstable();
    let part = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / trip;
    Seen { p50: part(50), p99: part(99), reads_per_s: times.len() as f64 / span.as_secs_f64() }
}

/// Nanoseconds of a round trip between machines that have nothing else to do: a question to the sequencer, the median of several, because one
/// takes 60 to 110 us by chance.
fn round_trip(testbed: &Testbed, env: &Env, client: &Client) -> f64 {
    let (process, _) = testbed.client(0);
    let (env, client) = (env.clone(), client.clone());
    testbed.sim.block_on(process, async move {
        client.stream_tails(&[]).await.expect("a cluster without faults answers");
        let mut trips = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let asked = env.now();
            client.stream_tails(&[]).await.expect("a cluster without faults answers");
            trips.push(env.now().since(asked).as_nanos() as u64);
        }
        trips.sort_unstable();
        trips[TRIPS / 2] as f64
    })
}

/// Measures so many programs for `span` of virtual time each.
pub fn measure(programs: &[usize], span: Duration) -> Figure {
    let points: Vec<(usize, Seen, Seen)> = programs
        .iter()
        .map(|&count| (count, seen(count, Place::Local, span), seen(count, Place::Remote, span)))
        .collect();
    let line = |name: &str, value: &dyn Fn(&(usize, Seen, Seen)) -> f64| Line {
        name: name.to_owned(),
        y: points.iter().map(value).collect(),
    };
    let chart = |title: &str, lines| Chart {
        title: title.to_owned(),
        x_label: "programs that read".to_owned(),
        y_label: "round trips".to_owned(),
        x: programs.iter().map(usize::to_string).collect(),
        scale: Scale::Log,
        lines,
    };
    let row = |(count, local, remote): &(usize, Seen, Seen)| {
        format!(
            "{count},{:.2},{:.2},{:.0},{:.2},{:.2},{:.0}",
            local.p50, local.p99, local.reads_per_s, remote.p50, remote.p99, remote.reads_per_s
        )
    };
    Figure {
        name: "remote-views",
        claim: "with the state in every program each of them reads every change, and beyond what the units can send they fall behind; a node reads \
                each change once, however many ask it"
            .to_owned(),
        expected: format!(
            "Wei, figure 5.10: with local views latency rises without bound once reads are saturated, with a remote view it stays even with 1,000 \
             clients; here below {MOST_TRIPS} round trips at the median"
        ),
        setting: setting(span),
        columns: "programs,local p50 (round trips),local p99,local reads/s,remote p50 (round trips),remote p99,remote reads/s",
        rows: points.iter().map(row).collect(),
        charts: vec![
            chart(
                "median of a read",
                vec![line("local views", &|it| it.1.p50), line("remote view", &|it| it.2.p50)],
            ),
            chart(
                "99th percentile",
                vec![line("local views", &|it| it.1.p99), line("remote view", &|it| it.2.p99)],
            ),
        ],
        checks: checks(&points),
    }
}

fn setting(span: Duration) -> String {
    format!(
        "The testbed of figure 3.14 with {UNITS} units and a sequencer of its own: links of {} MB/s, {MESSAGES_PER_S} messages a second for each \
         process, {PROGRAMS} programs on a machine. One program puts a value of {VALUE_BYTES} bytes every {} ms; each of the others reads one of {KEYS} \
         keys every {} ms, linearizably. A round trip is a question to the sequencer when nothing else is going on, the median of {TRIPS}. {} ms each, seed {SEED}.",
        LINK_BYTES_PER_S / 1_000_000,
        PUT_EVERY.as_millis(),
        READ_EVERY.as_millis(),
        span.as_millis()
    )
}

fn checks(points: &[(usize, Seen, Seen)]) -> Vec<(String, bool)> {
    let Some((count, local, remote)) = points.last() else { return Vec::new() };
    let says = format!(
        "{count} programs: a read at a node takes {:.2} round trips at the median, below {MOST_TRIPS}",
        remote.p50
    );
    let mut checks = vec![(says, remote.p50 < MOST_TRIPS)];
    if *count >= 1_000 {
        let says = format!(
            "{count} programs: with a state in each it takes {:.1} at the median and {:.1} at the 99th percentile, more than at a node",
            local.p50, local.p99
        );
        checks.push((says, local.p50 > remote.p50 && local.p99 > remote.p99));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_at_a_node_takes_less_than_two_round_trips() {
        let figure = measure(&[40], Duration::from_millis(60));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
