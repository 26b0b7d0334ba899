//! A stream that is written and read by local views while a unit fails that holds a share of it: Wei, figure 5.9.

use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::sim::{Death, Speed};
use ithaca_log::detector::Timing;
use ithaca_log::pos::NodeId;
use ithaca_object::collections::Map;
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed};

const UNITS: usize = 10;
/// The unit that fails, which neither decides layouts nor grants positions.
const UNIT: NodeId = NodeId(9);
/// Programs that read the object, each through a view of its own.
const VIEWS: usize = 2;
/// Calls that each program has under way.
const CALLS: usize = 8;
/// Keys that are written and read.
const KEYS: u64 = 64;
const BIN: Duration = Duration::from_millis(50);
/// The failure, and the end, after the start of the count.
const FAILURE: Duration = Duration::from_millis(500);
const END: Duration = Duration::from_millis(2000);
/// Bins at the end that are what comes after.
const AFTER_BINS: usize = 10;
/// Of as many worlds the figure shows the one whose appends afterwards are the median: all wait for one sequencer, and in one of eight worlds appends and
/// reads shared it otherwise for half a second.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;
/// The longest that appends and reads may stand still, as of `outage`.
const STILL_MAX: Duration = Duration::from_millis(450);

/// Thousands a second, by bin.
#[derive(Default)]
struct Series {
    appends: Vec<f64>,
    reads: Vec<f64>,
}

impl Series {
    /// Appends at the end.
    fn appends_after(&self) -> f64 {
        mean(&self.appends[self.appends.len() - AFTER_BINS..])
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

/// Has a program write or read the object again and again.
fn start(testbed: &Testbed, machine: usize, is_writer: bool) -> Rc<Load> {
    let (process, client) = testbed.client(machine);
    let runtime = Runtime::new(&testbed.sim.env(process), client, RuntimeOptions::default());
    let map = Map::<u64, u64>::open(&runtime, "object").expect("nothing else is open");
    testbed.start_at(machine, CALLS, move |_, turn| {
        let map = map.clone();
        async move {
            let key = turn % KEYS;
            let done = match is_writer {
                true => map.fast_put(key, turn).await.map(|_| ()),
                false => map.get(&key).await.map(|_| ()),
            };
            done.expect("a call ends well before its deadline");
        }
    })
}

fn series(seed: u64) -> Series {
    let testbed = Testbed::new(&Setup {
        registers: Speed::Ssd,
        own_sequencer: false,
        timing: Timing::default(),
        seed,
        ..Setup::steady(UNITS, 1 + VIEWS, 1)
    });
    let appending = start(&testbed, 0, true);
    let reading: Vec<Rc<Load>> = (1..=VIEWS).map(|machine| start(&testbed, machine, false)).collect();
    testbed.sim.run_for(BIN * 2);
    let process = testbed.nodes[UNIT.0 as usize - 1];
    testbed.sim.at(testbed.sim.now() + FAILURE, move |sim| sim.end(process, Death::Vanish));
    let done = || (appending.done(), reading.iter().map(|load| load.done()).sum::<u64>());
    let rate = |done: u64| done as f64 / BIN.as_secs_f64() / 1e3;
    let mut series = Series::default();
    let end: Time = testbed.sim.now() + END;
    while testbed.sim.now() < end {
        let before = done();
        testbed.sim.run_for(BIN);
        let after = done();
        series.appends.push(rate(after.0 - before.0));
        series.reads.push(rate(after.1 - before.1));
    }
    testbed.stop(&appending);
    reading.iter().for_each(|load| testbed.stop(load));
    series
}

/// Measures.
pub fn measure() -> Figure {
    let mut worlds: Vec<Series> = SEEDS.map(series).collect();
    worlds.sort_by(|one, other| one.appends_after().total_cmp(&other.appends_after()));
    let series = worlds.swap_remove(worlds.len() / 2);
    let start_ms = |bin: usize| bin as i64 * BIN.as_millis() as i64 - FAILURE.as_millis() as i64;
    let x = (0..series.appends.len()).map(|bin| match bin % 5 {
        0 => start_ms(bin).to_string(),
        // Every mark would be too many to be read.
        _ => String::new(),
    });
    let line = |name: &str, y: &[f64]| Line { name: name.to_string(), y: y.to_vec() };
    let row = |bin: usize| format!("{},{:.2},{:.2}", start_ms(bin), series.appends[bin], series.reads[bin]);
    Figure {
        name: "stream-outage",
        claim: "a stream goes on without a unit that held a share of it, for those who write it and for views that follow it".to_string(),
        expected: "Wei, figure 5.9: \"vCorfu performance degrades gracefully when a stream replica fails\": the view goes on from the log replicas, \"read throughput \
                   stays about the same\", and appends go on with one replica less"
            .to_string(),
        setting: format!(
            "The machines of `outage` with drives that are no limit, {UNITS} units, one of them the sequencer. One program writes an object and {VIEWS} read it through local views, {CALLS} calls each; \
             every read is linearizable, so it asks the sequencer and reads what is new. The machine of a unit loses power without a word. The text reconfigures \
             within a millisecond, because its failure is told; here nodes find out after 350 ms of silence. What was granted and is not written yet must be decided before a linearizable read ends, so reads wait for the next layout too. Bins of \
             {} ms; of seeds {} to {} the one whose appends afterwards are the median.",
            BIN.as_millis(),
            SEEDS.start(),
            SEEDS.end()
        ),
        columns: "ms since the failure,appends K/s,reads K/s",
        rows: (0..series.appends.len()).map(row).collect(),
        charts: vec![Chart {
            title: "an object while a unit fails".to_string(),
            x_label: "milliseconds since the failure".to_string(),
            y_label: "thousands a second".to_string(),
            x: x.collect(),
            scale: Scale::Linear,
            lines: vec![line("appends", &series.appends), line("reads", &series.reads)],
        }],
        checks: [("appends", &series.appends), ("reads", &series.reads)].into_iter().flat_map(checks).collect(),
    }
}

fn checks((what, rates): (&str, &Vec<f64>)) -> Vec<(String, bool)> {
    let failed = (FAILURE.as_millis() / BIN.as_millis()) as usize;
    let before = mean(&rates[..failed]);
    let after = mean(&rates[rates.len() - AFTER_BINS..]);
    let still = rates[failed..].iter().filter(|&&rate| rate < before / 20.0).count() as u32 * BIN;
    vec![
        (
            format!("{what} stand still for {} ms, at most {} ms", still.as_millis(), STILL_MAX.as_millis()),
            still <= STILL_MAX,
        ),
        (format!("{what} are back, {after:.1} K/s after {before:.1} K/s"), after >= before * 0.9),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_without_one_of_its_units() {
        let figure = measure();
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
