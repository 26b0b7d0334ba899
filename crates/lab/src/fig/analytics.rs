//! Writers beside a long transaction that reads every object of a snapshot, and then of the next: Wei, figure 5.14.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::sim::{Dice, Domain};
use ithaca_env::task::gather;
use ithaca_object::collections::Map;
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed};
use crate::measure::Histogram;

const SEED: u64 = 1;
const UNITS: usize = 4;
/// Programs that record page views, and the calls of each.
const WRITERS: usize = 8;
const CALLS: usize = 8;
/// What each of these calls does once: "10K page views/sec" together.
const PERIOD: Duration = Duration::from_micros(6400);
/// Pages, each an object of its own.
const PAGES: u64 = 500;
/// Pages that the analytics reads at the same time.
const AT_ONCE: usize = 16;
/// The analytics begins so long after the start.
const BEGIN: Duration = Duration::from_millis(200);
const END: Duration = Duration::from_millis(600);
const BIN: Duration = Duration::from_millis(40);
/// What the writers are to reach while it runs, of what they did before, and how much longer p99 may be.
const ASKED: f64 = 0.9;
const ASKED_P99: f64 = 1.5;

/// What writers did in a bin, and how many pages were read.
#[derive(Default)]
struct Bin {
    written: Histogram,
    read: u64,
}

type Bins = Rc<RefCell<Vec<Bin>>>;

fn page(number: u64) -> String {
    format!("page {number}")
}

fn pages(runtime: &Runtime) -> Rc<Vec<Map<u64, [u64; 3]>>> {
    Rc::new(
        (0..PAGES).map(|number| Map::open(runtime, &page(number)).expect("nothing else is open")).collect(),
    )
}

/// Has a program record views: an address and where on the page.
fn start_writer(testbed: &Testbed, machine: usize, bins: &Bins) -> Rc<Load> {
    let (process, client) = testbed.client(machine);
    let env = testbed.sim.env(process);
    let pages = pages(&Runtime::new(&env, client, RuntimeOptions::default()));
    let (bins, start) = (Rc::clone(bins), env.now());
    testbed.start_at(machine, CALLS, move |_, turn| {
        let (pages, env, bins) = (Rc::clone(&pages), env.clone(), Rc::clone(&bins));
        async move {
            let page = Dice::new(SEED).below(Domain::User(machine as u32), 0, turn, PAGES);
            let began = env.now();
            let view = pages[page as usize].fast_put(turn % 64, [turn, page, machine as u64]);
            view.await.expect("a cluster without faults appends");
            let bin = (env.now().since(start).as_nanos() / BIN.as_nanos()) as usize;
            if let Some(bin) = bins.borrow_mut().get_mut(bin) {
                bin.written.add(env.now().since(began).as_nanos() as u64, 1);
            }
            env.sleep_until(began + PERIOD).await;
        }
    })
}

/// Reads every page as of one snapshot, again and again. Returns how many were read so far.
fn start_analytics(testbed: &Testbed, machine: usize) -> Rc<Cell<u64>> {
    let (process, client) = testbed.client(machine);
    let env = testbed.sim.env(process);
    let pages = pages(&Runtime::new(&env, client.clone(), RuntimeOptions::default()));
    let read = Rc::new(Cell::new(0));
    let count = Rc::clone(&read);
    env.spawn(async move {
        loop {
            let snapshot = client.check().await.expect("a cluster without faults answers").tail;
            for some in pages.chunks(AT_ONCE) {
                let reads = some.iter().map(async |page| page.at(snapshot).len().await);
                for len in gather(reads.collect(), Result::is_err).await.into_iter().flatten() {
                    len.expect("a cluster without faults is read");
                    count.set(count.get() + 1);
                }
            }
        }
    });
    read
}

fn count() -> Vec<Bin> {
    let testbed = Testbed::new(&Setup::steady(UNITS, WRITERS + 1, 1));
    let number = (END.as_nanos() / BIN.as_nanos()) as usize;
    let bins: Bins = Rc::new(RefCell::new((0..number).map(|_| Bin::default()).collect()));
    let loads: Vec<Rc<Load>> = (0..WRITERS).map(|machine| start_writer(&testbed, machine, &bins)).collect();
    testbed.sim.run_for(BEGIN);
    let read = start_analytics(&testbed, WRITERS);
    let mut before = 0;
    for nth in bin_of(BEGIN)..number {
        testbed.sim.run_for(BIN);
        bins.borrow_mut()[nth].read = read.get() - before;
        before = read.get();
    }
    loads.iter().for_each(|load| testbed.stop(load));
    bins.take()
}

fn bin_of(at: Duration) -> usize {
    (at.as_nanos() / BIN.as_nanos()) as usize
}

/// Measures.
pub fn measure() -> Figure {
    let bins = count();
    let rate = |done: u64| done as f64 / BIN.as_secs_f64() / 1e3;
    let start_ms = |nth: usize| nth as i64 * BIN.as_millis() as i64 - BEGIN.as_millis() as i64;
    let line = |name: &str, value: &dyn Fn(&Bin) -> f64| Line {
        name: name.to_string(),
        y: bins.iter().map(value).collect(),
    };
    let chart = |title: &str, y_label: &str, lines| Chart {
        title: title.to_string(),
        x_label: "milliseconds since the analytics began".to_string(),
        y_label: y_label.to_string(),
        x: (0..bins.len()).map(|nth| start_ms(nth).to_string()).collect(),
        scale: Scale::Linear,
        lines,
    };
    let p99_ms = |bin: &Bin| bin.written.quantile_us(0.99) / 1e3;
    let row = |nth: usize| {
        let bin = &bins[nth];
        let (written, read) = (rate(bin.written.total()), rate(bin.read));
        format!("{},{written:.2},{:.3},{read:.2}", start_ms(nth), p99_ms(bin))
    };
    Figure {
        name: "analytics",
        claim: "a long transaction that reads everything takes nothing from those who write".to_string(),
        expected: "Wei, figure 5.14: \"running the analytics thread has no impact on write throughput or latency of the system\"".to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units. {WRITERS} programs record 10,000 views a second of {PAGES} pages, each an object of its own; after {} ms \
             another program begins to read all pages as of one snapshot through local views, {AT_ONCE} at once, then of the next snapshot, and so on. \
             The text's 10,000 pages and 30 minutes are less here. Bins of {} ms, seed {SEED}.",
            BEGIN.as_millis(),
            BIN.as_millis()
        ),
        columns: "ms since the analytics began,views recorded K/s,p99 of recording ms,pages read K/s",
        rows: (0..bins.len()).map(row).collect(),
        charts: vec![
            chart(
                "page views",
                "thousands a second",
                vec![
                    line("recorded", &|bin| rate(bin.written.total())),
                    line("pages read", &|bin| rate(bin.read)),
                ],
            ),
            chart("recording one takes", "milliseconds", vec![line("p99", &p99_ms)]),
        ],
        checks: checks(&bins),
    }
}

fn checks(bins: &[Bin]) -> Vec<(String, bool)> {
    let begin = bin_of(BEGIN);
    let of = |bins: &[Bin]| {
        let mut all = Histogram::default();
        bins.iter().for_each(|bin| all.merge(&bin.written));
        (all.total() as f64 / bins.len() as f64 / BIN.as_secs_f64(), all.quantile_us(0.99) / 1e3)
    };
    // The first bin is that in which connections are made and streams begin.
    let ((before, before_ms), (after, after_ms)) = (of(&bins[1..begin]), of(&bins[begin..]));
    let read: u64 = bins.iter().map(|bin| bin.read).sum();
    vec![
        (
            format!(
                "{after:.0} views a second are recorded beside the analytics, {before:.0} before; asked {ASKED}"
            ),
            after >= ASKED * before,
        ),
        (
            format!(
                "p99 of {after_ms:.3} ms beside the analytics, {before_ms:.3} ms before; asked {ASKED_P99} times"
            ),
            after_ms <= ASKED_P99 * before_ms,
        ),
        (
            format!("{read} pages were read, {:.1} times all of them", read as f64 / PAGES as f64),
            read >= PAGES,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_transaction_that_reads_takes_nothing_from_writers() {
        let figure = measure();
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
