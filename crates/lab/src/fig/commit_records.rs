//! Transactions whose condition the sequencer checks, beside commit and decision records that everybody has to judge (Wei 5.2, 5.3.3).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::sim::{Dice, Domain};
use ithaca_env::sync::Notify;
use ithaca_env::task::gather;
use ithaca_log::pos::StreamId;
use ithaca_object::collections::{Map, MapState};
use ithaca_object::key::Key;
use ithaca_object::{Runtime, RuntimeOptions, Tx, TxOptions};

use super::Figure;
use super::abort_rate::Ended;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed};
use crate::commit_records::Program;
use crate::commit_records::record::Write;

const SEED: u64 = 1;
const UNITS: usize = 4;
/// Objects; each program reads those of its half and writes to all.
const OBJECTS: u64 = 100;
/// Keys of an object.
const KEYS: u64 = 100;
/// What is to be committed of what commit records commit where every program plays every object, and how much more may abort: a
/// transaction asks for a snapshot that no failure can change, which takes it two questions more and makes its window longer.
const ASKED: f64 = 0.7;
const ASKED_ABORTS: f64 = 3.0;
/// Before each measurement.
const WARM: Duration = Duration::from_millis(30);

/// How it is decided what commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By the sequencer.
    Condition,
    /// By commit records; every program hosts every object.
    Records,
    /// By commit records, and decision records for those who do not host what was read: each program hosts its half.
    Decisions,
}

const MODES: [Mode; 3] = [Mode::Condition, Mode::Records, Mode::Decisions];

/// What so many programs did.
struct Point {
    mode: Mode,
    writers: usize,
    abort_rate: f64,
    committed_per_s: f64,
    /// Entries of the log for each transaction that committed.
    entries: f64,
}

fn object(number: u64) -> String {
    format!("object {number}")
}

/// What a transaction does: two objects to read, one to write, a key.
fn drawn(writer: usize, turn: u64) -> ([u64; 2], u64, u64) {
    let draw = |what, bound| Dice::new(SEED).below(Domain::User(writer as u32), turn, what, bound);
    let half = OBJECTS / 2;
    let own = |what| draw(what, half) + half * (writer as u64 % 2);
    ([own(0), own(1)], draw(2, OBJECTS), draw(3, KEYS))
}

/// Each object has its first change, and the log its name, before anything is counted.
fn begin_objects(testbed: &Testbed) {
    let (process, client) = testbed.client(0);
    let env = testbed.sim.env(process);
    testbed.sim.block_on(process, async move {
        let runtime = Runtime::new(&env, client, RuntimeOptions::default());
        for number in 0..OBJECTS {
            let map = Map::<u64, u64>::open(&runtime, &object(number)).expect("nothing else is open");
            map.fast_put(0, 0).await.expect("a cluster without faults appends");
        }
    });
}

fn start_conditional(testbed: &Testbed, writer: usize, ended: &Rc<Ended>) -> Rc<Load> {
    let (process, client) = testbed.client(writer);
    let runtime = Runtime::new(&testbed.sim.env(process), client, RuntimeOptions::default());
    let maps: Vec<Map<u64, u64>> = (0..OBJECTS)
        .map(|number| Map::open(&runtime, &object(number)).expect("nothing else is open"))
        .collect();
    let (maps, ended) = (Rc::new(maps), Rc::clone(ended));
    testbed.start_at(writer, 1, move |_, turn| {
        let (reads, written, key) = drawn(writer, turn);
        let (runtime, maps, ended) = (runtime.clone(), Rc::clone(&maps), Rc::clone(&ended));
        async move {
            let options = TxOptions { retries: 0, ..TxOptions::default() };
            let body = async |tx: &Tx| {
                let value = |map: &MapState<u64, u64>| map.entries().get(&key).map(|placed| placed.value);
                let read = async |read: u64| {
                    let map = maps[read as usize].handle().within(tx);
                    map.read(|| vec![Key::all()], value).await
                };
                for value in gather(reads.map(read).into(), Result::is_err).await.into_iter().flatten() {
                    value?;
                }
                maps[written as usize].within(tx).fast_put(key, turn).await
            };
            ended.count(runtime.transact(&options, body).await);
        }
    })
}

fn start_records(testbed: &Testbed, writer: usize, ended: &Rc<Ended>, is_shared: bool) -> Rc<Load> {
    let (process, client) = testbed.client(writer);
    let half = OBJECTS / 2;
    let first = half * (writer as u64 % 2);
    let hosted = if is_shared { first..first + half } else { 0..OBJECTS };
    let streams = hosted.map(|number| StreamId::of_name(&object(number)));
    let program = Program::new(&testbed.sim.env(process), client, streams, is_shared);
    // One transaction at a time has it.
    let (program, ended) = (Rc::new(RefCell::new(Some(program))), Rc::clone(ended));
    let back = Rc::new(Notify::default());
    testbed.start_at(writer, 1, move |_, turn| {
        let (reads, written, key) = drawn(writer, turn);
        let (slot, ended, back) = (Rc::clone(&program), Rc::clone(&ended), Rc::clone(&back));
        async move {
            let mut program = back.until(|| slot.borrow_mut().take()).await;
            let reads = reads.map(|read| StreamId::of_name(&object(read)));
            let stream = StreamId::of_name(&object(written));
            let body = |program: &Program| {
                let value = reads.iter().filter_map(|read| program.get(*read, key)).sum::<u64>() / 2;
                vec![Write { stream, key, value: value.max(turn) }]
            };
            let done = program.transact(&reads, body).await;
            assert_eq!(program.orphans(), 0, "decisions come where nobody dies");
            let count = match done.expect("a cluster without faults appends") {
                true => &ended.committed,
                false => &ended.aborted,
            };
            count.set(count.get() + 1);
            slot.replace(Some(program));
            back.ring();
        }
    })
}

fn point(mode: Mode, writers: usize, span: Duration) -> Point {
    let testbed = Testbed::new(&Setup::steady(UNITS, writers, 1));
    let ended = Rc::new(Ended::default());
    if mode == Mode::Condition {
        begin_objects(&testbed);
    }
    let start = |writer| match mode {
        Mode::Condition => start_conditional(&testbed, writer, &ended),
        Mode::Records => start_records(&testbed, writer, &ended, false),
        Mode::Decisions => start_records(&testbed, writer, &ended, true),
    };
    let loads: Vec<Rc<Load>> = (0..writers).map(start).collect();
    let tail = || {
        let (process, client) = testbed.client(0);
        let bounds = testbed.sim.block_on(process, async move { client.check().await });
        bounds.expect("a cluster without faults answers").tail.0
    };
    testbed.sim.run_for(WARM);
    let before = tail();
    ended.reset();
    testbed.sim.run_for(span);
    let (abort_rate, committed) = (ended.abort_rate(), ended.committed.get() as f64);
    let entries = (tail() - before) as f64 / committed;
    loads.iter().for_each(|load| testbed.stop(load));
    Point { mode, writers, abort_rate, committed_per_s: committed / span.as_secs_f64(), entries }
}

/// Measures so many writers for `span` of virtual time each.
pub fn measure(writers: &[usize], span: Duration) -> Figure {
    let of_mode = |mode| -> Vec<Point> { writers.iter().map(|count| point(mode, *count, span)).collect() };
    let points = MODES.map(of_mode);
    let names = ["the sequencer's condition", "commit records", "and decision records"];
    let chart = |title: &str, y_label: &str, value: fn(&Point) -> f64| Chart {
        title: title.to_string(),
        x_label: "writers".to_string(),
        y_label: y_label.to_string(),
        x: writers.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines: names
            .iter()
            .zip(&points)
            .map(|(name, points)| Line { name: (*name).to_string(), y: points.iter().map(value).collect() })
            .collect(),
    };
    let row = |it: &Point| {
        let Point { mode, writers, abort_rate, committed_per_s, entries } = it;
        format!("{mode:?},{writers},{abort_rate:.4},{committed_per_s:.0},{entries:.2}")
    };
    Figure {
        name: "commit-records",
        claim: "what aborts under a sequencer that checks conditions is not in the log, and nobody waits for a decision".to_string(),
        expected: "Wei 5.2, 5.3.3: \"the extra phase adds latency to the transaction but does not increase the abort rate\"; with conditional tokens \"the \
                   sequencer issues no token and the transaction is aborted by the client without writing an entry into the log\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units; each writer is a program on a machine of its own with one transaction under way: two of {OBJECTS} \
             objects are read, of the half that is the writer's, and one of all is written. Conflicts are by object in all three. With commit records every \
             program hosts every object and plays it; with decision records it hosts its half, and waits for the decision on what the others have \
             read. One that aborts is not run again. {} ms each, seed {SEED}.",
            span.as_millis()
        ),
        columns: "decided by,writers,abort rate,committed /s,log entries for each",
        rows: points.iter().flatten().map(row).collect(),
        charts: vec![
            chart("committed", "a second", |it| it.committed_per_s),
            chart("aborted", "% of all", |it| it.abort_rate * 100.0),
        ],
        checks: (0..writers.len()).flat_map(|nth| checks(points.each_ref().map(|points| &points[nth]))).collect(),
    }
}

fn checks([condition, records, decisions]: [&Point; 3]) -> Vec<(String, bool)> {
    let writers = condition.writers;
    let of_records = condition.committed_per_s / records.committed_per_s;
    let percent = [condition, records, decisions].map(|it| it.abort_rate * 100.0);
    // What aborts with commit records is in the log all the same.
    let wasted = |it: &Point| it.abort_rate / (1.0 - it.abort_rate);
    vec![
        (
            format!(
                "{writers} writers: {:.0} commit a second, more than {:.0} with decision records; {of_records:.2} of the {:.0} with commit records where every \
                 program plays every object, asked {ASKED}",
                condition.committed_per_s, decisions.committed_per_s, records.committed_per_s
            ),
            condition.committed_per_s > decisions.committed_per_s && of_records >= ASKED,
        ),
        (
            format!(
                "{writers} writers: {:.1} % abort; {:.1} % with commit records, {:.1} % with decision records; at most {ASKED_ABORTS} times as many, or 2 % more",
                percent[0], percent[1], percent[2]
            ),
            condition.abort_rate <= (ASKED_ABORTS * records.abort_rate).max(records.abort_rate + 0.02),
        ),
        (
            format!(
                "{writers} writers: {:.2} entries of the log for each that commits; {:.2} with commit records, {:.2} with decision records",
                condition.entries, records.entries, decisions.entries
            ),
            condition.entries <= 1.02
                && records.entries >= 1.0 + wasted(records) / 2.0
                && decisions.entries >= 2.0 * (1.0 + wasted(decisions) / 2.0) - 0.1,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_commits_more_than_records_and_leaves_nothing_of_what_aborts() {
        // As long as the figure's own: of hundreds that commit so few abort that their share is chance.
        let figure = measure(&[8], Duration::from_millis(800));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
