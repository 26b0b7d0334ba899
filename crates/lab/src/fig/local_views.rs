//! Reads of an object through local views while it is written, by the number of views: the local half of Wei, figure 5.10.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_object::collections::Map;
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed};
use crate::measure::Histogram;

const UNITS: usize = 4;
/// Calls that each program has under way.
const CALLS: usize = 8;
/// Keys that are written and read.
const KEYS: u64 = 64;
/// Before each measurement.
const WARM: Duration = Duration::from_millis(30);
/// What a view is to give at least, of what one alone gives; from some number on the log gives no more.
const ASKED: f64 = 0.4;
/// With 32 views the text's reads take longer than this.
const TEXT_MS: f64 = 1000.0;

/// What one writer and so many views did.
struct Point {
    views: usize,
    writes: f64,
    reads: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Has a program write or read the object again and again; how long its calls took.
fn start(testbed: &Testbed, machine: usize, is_writer: bool, took: &Rc<RefCell<Histogram>>) -> Rc<Load> {
    let (process, client) = testbed.client(machine);
    let env = testbed.sim.env(process);
    let runtime = Runtime::new(&env, client, RuntimeOptions::default());
    let map = Map::<u64, u64>::open(&runtime, "object").expect("nothing else is open");
    let took = Rc::clone(took);
    testbed.start_at(machine, CALLS, move |_, turn| {
        let (map, env, took) = (map.clone(), env.clone(), Rc::clone(&took));
        async move {
            let (key, began) = (turn % KEYS, env.now());
            let done = match is_writer {
                true => map.fast_put(key, turn).await.map(|_| ()),
                false => map.get(&key).await.map(|_| ()),
            };
            done.expect("a cluster without faults answers");
            took.borrow_mut().add(env.now().since(began).as_nanos() as u64, 1);
        }
    })
}

fn point(views: usize, span: Duration) -> Point {
    let testbed = Testbed::new(&Setup::steady(UNITS, 1 + views, 1));
    let (written, read): (Rc<RefCell<Histogram>>, Rc<RefCell<Histogram>>) = (Rc::default(), Rc::default());
    let mut loads = vec![start(&testbed, 0, true, &written)];
    loads.extend((1..=views).map(|machine| start(&testbed, machine, false, &read)));
    testbed.sim.run_for(WARM);
    written.take();
    read.take();
    testbed.sim.run_for(span);
    let (written, read) = (written.take(), read.take());
    loads.iter().for_each(|load| testbed.stop(load));
    let a_second = |done: &Histogram| done.total() as f64 / span.as_secs_f64();
    let ms = |quantile| read.quantile_us(quantile) / 1e3;
    Point { views, writes: a_second(&written), reads: a_second(&read), p50_ms: ms(0.5), p99_ms: ms(0.99) }
}

/// Measures so many views for `span` of virtual time each.
pub fn measure(views: &[usize], span: Duration) -> Figure {
    let points: Vec<Point> = views.iter().map(|count| point(*count, span)).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(value).collect(),
    };
    let chart = |title: &str, y_label: &str, lines| Chart {
        title: title.to_string(),
        x_label: "local views".to_string(),
        y_label: y_label.to_string(),
        x: views.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines,
    };
    let row = |it: &Point| {
        let Point { views, writes, reads, p50_ms, p99_ms } = it;
        format!("{views},{writes:.0},{reads:.0},{p50_ms:.3},{p99_ms:.3}")
    };
    Figure {
        name: "local-views",
        claim: "reads of an object grow with the programs that have a view of it, while it is written, until the log gives no more".to_string(),
        expected: "Wei 5.1.1: \"strongly consistent read throughput can be scaled simply by instantiating more views\", which \"scale linearly until the log is \
                   saturated\"; figure 5.10: \"with just 32 clients, the read latency jumps to above one second\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units. One program writes an object, {CALLS} calls under way; others have a view of it each and read it, {CALLS} calls \
             each. A read is linearizable: it asks the sequencer where the object's stream ends and reads what is new; calls that wait at the same time \
             do so together. What a program does in memory takes no time here. {} ms each, seed 1.",
            span.as_millis()
        ),
        columns: "views,written /s,read /s,p50 of reads ms,p99 of reads ms",
        rows: points.iter().map(row).collect(),
        charts: vec![
            chart(
                "calls",
                "thousands a second",
                vec![line("reads", |it| it.reads / 1e3), line("writes", |it| it.writes / 1e3)],
            ),
            chart("reads take", "milliseconds", vec![line("p50", |it| it.p50_ms), line("p99", |it| it.p99_ms)]),
        ],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let Some(first) = points.first() else { return Vec::new() };
    let check = |it: &Point| {
        let factor = it.reads / first.reads / (it.views as f64 / first.views as f64);
        let text = format!(
            "{} views: {:.0} reads a second, {factor:.2} of {} times as many as one gives, asked {ASKED}; p99 {:.2} ms, below the text's {TEXT_MS:.0}; {:.0} writes",
            it.views, it.reads, it.views, it.p99_ms, it.writes
        );
        (text, factor >= ASKED && it.p99_ms < TEXT_MS)
    };
    points.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_views_read_more() {
        let figure = measure(&[1, 4], Duration::from_millis(40));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
