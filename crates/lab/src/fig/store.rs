//! Gets and puts of several keys at once in a store whose values stay in the log, by how many keys (Wei, figures 3.18 and 3.19).

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Dice, Domain};
use ithaca_env::task::gather;
use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::Blob;
use ithaca_object::store::{Store, StoreOptions};
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{MESSAGES_PER_S, Setup, Testbed, emulated};

const SEED: u64 = 1;
/// Programs of a machine. Each has one call under way.
const PROGRAMS: usize = 16;
/// Keys that are in the store before gets are measured, each in an entry of its own.
const KEYS: u64 = 2_000;
const VALUE_BYTES: usize = 512;
/// How long programs may take until each has done something.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Before each measurement.
const WARM: Duration = Duration::from_millis(30);
/// Of the keys that gets of one key read, those of several are to read as many at least.
const KEYS_READ_MIN: f64 = 0.7;

type Values = Store<u64, Blob>;

/// How many of what.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Units of the log.
    pub units: usize,
    /// Machines with programs.
    pub machines: usize,
    /// Virtual time that each number of keys is measured for.
    pub span: Duration,
}

/// What was done with so many keys a call, in calls a second.
struct Point {
    keys: usize,
    gets: f64,
    puts: f64,
}

impl Point {
    /// Puts that the text's way would come to, if nothing limits it but the sequencer: an append for each key, and one for the commit.
    fn text_puts(&self) -> f64 {
        MESSAGES_PER_S as f64 / (self.keys + 1) as f64
    }
}

fn value() -> Blob {
    Blob(Bytes::from(vec![7; VALUE_BYTES]))
}

/// Every program with the store open; nothing that was read is kept.
fn programs(testbed: &Testbed) -> Vec<(ithaca_env::Env, Values)> {
    let open = |(env, client): (ithaca_env::Env, _)| {
        let options = RuntimeOptions { checkpoints: Policy::NEVER, ..RuntimeOptions::default() };
        let runtime = Runtime::new(&env, client, options);
        let store = Store::open_with(&runtime, "store", StoreOptions { cache_bytes: 0 });
        (env, store.expect("the name is open as nothing else"))
    };
    testbed.programs().into_iter().map(open).collect()
}

fn testbed(extent: Extent) -> Testbed {
    let setup = Setup::steady(extent.units, extent.machines, PROGRAMS);
    Testbed::new(&Setup { drive: emulated, seed: SEED, ..setup })
}

/// Has every program do `work` again and again, which is told which time it is, of all. Calls a second, once each has done it.
fn rate<F: Future<Output = ()> + 'static>(
    testbed: &Testbed,
    programs: Vec<(ithaca_env::Env, Values)>,
    span: Duration,
    work: impl Fn(Values, u64) -> F + 'static,
) -> f64 {
    let (done, work) = (Rc::new(Cell::new(0)), Rc::new(work));
    let late = Rc::new(Cell::new(programs.len()));
    for (env, store) in programs {
        let (done, work, late) = (Rc::clone(&done), Rc::clone(&work), Rc::clone(&late));
        env.spawn(async move {
            // The first call reads the index, or waits for its share of those that do.
            work(store.clone(), done.get()).await;
            late.set(late.get() - 1);
            loop {
                work(store.clone(), done.get()).await;
                done.set(done.get() + 1);
            }
        });
    }
    let begun = testbed.sim.run_while(testbed.sim.now() + OPEN_MAX, |_| late.get() > 0);
    assert!(begun.is_ok(), "{} programs have not begun: {begun:?}", late.get());
    testbed.sim.run_for(WARM);
    let before = done.get();
    testbed.sim.run_for(span);
    (done.get() - before) as f64 / span.as_secs_f64()
}

/// `count` keys of `of`, by the number of the call.
fn some_keys(turn: u64, count: usize, of: u64) -> Vec<u64> {
    (0..count as u64).map(|nth| Dice::new(SEED).below(Domain::User(0), turn, nth, of)).collect()
}

/// Fills the store, leaves a checkpoint of its index, and reads from it.
fn gets(keys: usize, extent: Extent) -> f64 {
    let testbed = testbed(extent);
    let programs = programs(&testbed);
    let (process, _) = testbed.client(0);
    let loader = programs[0].1.clone();
    testbed.sim.block_on(process, async move {
        let puts = (0..KEYS).map(|key| loader.put(key, value())).collect();
        for put in gather(puts, Result::is_err).await {
            put.expect("it ended").expect("a cluster without faults appends");
        }
        loader.handle().checkpoint().await.expect("a cluster without faults takes it");
    });
    rate(&testbed, programs, extent.span, move |store, turn| async move {
        let found = store.multi_get(&some_keys(turn, keys, KEYS)).await.expect("they are there");
        assert!(found.iter().all(Option::is_some), "every key has a value");
    })
}

fn puts(keys: usize, extent: Extent) -> f64 {
    let testbed = testbed(extent);
    let programs = programs(&testbed);
    rate(&testbed, programs, extent.span, move |store, turn| async move {
        let puts = some_keys(turn, keys, u64::MAX).into_iter().map(|key| (key, Some(value()))).collect();
        store.multi_put(puts).await.expect("a cluster without faults appends");
    })
}

/// Measures calls of so many keys.
pub fn measure(keys: &[usize], extent: Extent) -> Figure {
    let Extent { units, machines, span } = extent;
    let point = |&keys: &usize| Point { keys, gets: gets(keys, extent), puts: puts(keys, extent) };
    let points: Vec<Point> = keys.iter().map(point).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_owned(),
        y: points.iter().map(|point| value(point) / 1e3).collect(),
    };
    let chart = |title: &str, lines| Chart {
        title: title.to_owned(),
        x_label: "keys of a call".to_owned(),
        y_label: "thousands a second".to_owned(),
        x: keys.iter().map(usize::to_string).collect(),
        scale: Scale::Linear,
        lines,
    };
    let row = |it: &Point| {
        let (read, put) = (it.gets * it.keys as f64, it.puts * it.keys as f64);
        format!("{},{:.0},{read:.0},{:.0},{put:.0},{:.0}", it.keys, it.gets, it.puts, it.text_puts())
    };
    Figure {
        name: "store",
        claim: "a get asks the sequencer once, of however many keys, and reads from then on what the drives give; a put of several keys is one append, as is that of one".to_owned(),
        expected: "Wei 3.5.4, figure 3.18: \"the overall log throughput stays constant while multi-get throughput decreases\"; figure 3.19: k + 1 appends for \
                   a put of k keys, 30,000 puts of five keys a second where the log takes 180,000 appends"
            .to_owned(),
        setting: format!(
            "The machines of `scaling`, {units} units, two replicas; {machines} machines with {PROGRAMS} programs each, which have one call under way. Values of \
             {VALUE_BYTES} bytes, {KEYS} keys that were put one by one; nothing that was read is kept. A get asks the sequencer first. What a program does in \
             memory takes no time here. Text's puts: what {MESSAGES_PER_S} tokens a second make with k + 1 of them for a put. {} ms each, seed {SEED}.",
            span.as_millis()
        ),
        columns: "keys,gets /s,keys read /s,puts /s,keys put /s,text's puts /s",
        rows: points.iter().map(row).collect(),
        charts: vec![
            chart("gets", vec![line("gets", |it| it.gets), line("keys read", |it| it.gets * it.keys as f64)]),
            chart("puts", vec![line("puts", |it| it.puts), line("k + 1 appends each", Point::text_puts)]),
        ],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let Some(first) = points.first() else { return Vec::new() };
    let one = first.gets * first.keys as f64;
    let mut checks = Vec::new();
    for it in &points[1..] {
        let read = it.gets * it.keys as f64;
        let says = format!(
            "gets of {} keys read {read:.0} keys a second, {:.2} of what those of {} read, asked {KEYS_READ_MIN}",
            it.keys,
            read / one,
            first.keys
        );
        checks.push((says, read >= KEYS_READ_MIN * one));
        let says = format!(
            "puts of {} keys: {:.0} a second, the text's way {:.0}",
            it.keys,
            it.puts,
            it.text_puts()
        );
        checks.push((says, it.puts > it.text_puts()));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_keys_are_read_as_fast_as_one_and_put_in_one_append() {
        let figure = measure(&[1, 4], Extent { units: 4, machines: 4, span: Duration::from_millis(10) });
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
