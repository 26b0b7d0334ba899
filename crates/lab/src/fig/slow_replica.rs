//! What clients see when a replica becomes a hundred times slower, and does not fail (docs/protocol/reconfigure.md; invariant 27).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::sim::{DriveFault, Speed};
use ithaca_log::client::Client;
use ithaca_log::detector::Timing;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Setup, Testbed};
use crate::measure::Histogram;

const SEED: u64 = 1;
const ENTRY_BYTES: usize = 512;
/// Appends under way at once.
const CALLS: usize = 8;
/// Appends are counted by when they began, in bins of this.
const BIN: Duration = Duration::from_millis(500);
/// When the drive becomes slow, how slow, and the end of the count.
const SLOW: Duration = Duration::from_secs(2);
const SLOW_PERCENT: u32 = 100 * 100;
const END: Duration = Duration::from_secs(12);
/// Latencies are to be as before so long after.
const BACK_WITHIN: Duration = Duration::from_secs(3);

/// The node whose drive it is; another one is the sequencer.
const SLOW_NODE: usize = 2;

/// Measures a cluster of three nodes.
pub fn measure() -> Figure {
    let (bins, healthy) = (count(true), count(false));
    let slow = bin_of(SLOW);
    let start_ms = |bin: usize| (bin as i64 - slow as i64) * BIN.as_millis() as i64;
    let quantiles = |bins: &[Histogram], quantile: f64| -> Vec<f64> {
        bins.iter().map(|bin| bin.quantile_us(quantile) / 1e3).collect()
    };
    let (half, most, all) = (quantiles(&bins, 0.5), quantiles(&bins, 0.99), quantiles(&bins, 1.0));
    let healthy_most = quantiles(&healthy, 0.99);
    let rates: Vec<f64> = bins.iter().map(|bin| bin.total() as f64 / BIN.as_secs_f64()).collect();
    let x = (0..bins.len()).map(|bin| if bin % 4 == 0 { start_ms(bin).to_string() } else { String::new() });
    let line = |name: &str, y: &[f64]| Line { name: name.to_string(), y: y.to_vec() };
    let chart = Chart {
        title: "appends by when they began".to_string(),
        x_label: "milliseconds since the drive became slow".to_string(),
        y_label: "milliseconds".to_string(),
        x: x.collect(),
        scale: Scale::Linear,
        lines: vec![line("p50", &half), line("p99", &most), line("p99 without the fault", &healthy_most)],
    };
    let row = |bin: usize| {
        let values = [half[bin], most[bin], all[bin], healthy_most[bin]].map(|value| format!("{value:.2}"));
        format!("{},{:.0},{}", start_ms(bin), rates[bin], values.join(","))
    };
    Figure {
        name: "slow-replica",
        claim: "a replica that becomes a hundred times slower is left out within seconds, and appends are as quick as before".to_string(),
        expected: format!(
            "from {} s on after the drive became slow, the p99 of appends is at most twice that of the same cluster without the fault",
            BACK_WITHIN.as_secs()
        ),
        setting: format!(
            "Three nodes with two copies on SATA SSDs, {CALLS} appends of {ENTRY_BYTES} B at once. From 0 ms on every request to the drive of a \
             node takes 100 times as long; it answers beats as ever. The others see that its writes take more than ten times as long as theirs for \
             2 s, and go on without it. It stays out for 10 s. The same again without the fault: now and then a drive's file grows. Bins of {} ms, seed {SEED}.",
            BIN.as_millis()
        ),
        columns: "ms since the drive became slow,appends a second,p50 ms,p99 ms,slowest ms,p99 ms without the fault",
        rows: (0..bins.len()).map(row).collect(),
        charts: vec![chart],
        checks: checks(&bins, &healthy),
    }
}

fn bin_of(at: Duration) -> usize {
    (at.as_nanos() / BIN.as_nanos()) as usize
}

/// How long appends took, by when they began.
fn count(is_faulty: bool) -> Vec<Histogram> {
    let testbed = Testbed::new(&Setup {
        units: 3,
        client_machines: 1,
        clients: 1,
        drive: || Speed::Ssd.model(),
        registers: Speed::Ssd,
        own_sequencer: false,
        segment_bytes: 8 << 20,
        timing: Timing::default(),
        seed: SEED,
    });
    let bins: Rc<RefCell<Vec<Histogram>>> = Rc::default();
    bins.borrow_mut().resize_with(bin_of(END), Histogram::default);
    let env = testbed.sim.env(testbed.client(0).0);
    let (entry, began) = (Bytes::from(vec![7; ENTRY_BYTES]), env.now());
    let counted = Rc::clone(&bins);
    let load = testbed.start((1, CALLS), move |client: Client, _| {
        let (appended, start) = (client.append(entry.clone()), env.now());
        let (env, bins) = (env.clone(), Rc::clone(&counted));
        async move {
            appended.await.expect("an append ends well before its deadline");
            if let Some(bin) = bins.borrow_mut().get_mut(bin_of(start.since(began))) {
                bin.add(env.now().since(start).as_nanos() as u64, 1);
            }
        }
    });
    testbed.sim.run_for(SLOW);
    let for_ever = END * 2;
    if is_faulty {
        let slow = DriveFault::Slow { percent: SLOW_PERCENT, span: for_ever };
        testbed.sim.fault_drive(testbed.drives[SLOW_NODE], slow);
    }
    let end: Time = began + END;
    testbed.sim.run_for(end.since(testbed.sim.now()));
    testbed.stop(&load);
    bins.take()
}

fn checks(bins: &[Histogram], healthy: &[Histogram]) -> Vec<(String, bool)> {
    let p99_ms = |bins: &[Histogram]| {
        let mut all = Histogram::default();
        bins.iter().for_each(|bin| all.merge(bin));
        all.quantile_us(0.99) / 1e3
    };
    let (slow, back) = (bin_of(SLOW), bin_of(SLOW + BACK_WITHIN));
    let (during, after) = (p99_ms(&bins[slow..back]), p99_ms(&bins[back..]));
    let (usual, usual_then) = (p99_ms(&healthy[slow..back]), p99_ms(&healthy[back..]));
    vec![
        (
            format!("the slow drive is felt: p99 of {during:.1} ms, {usual:.1} ms without the fault"),
            during > 4.0 * usual,
        ),
        (
            format!(
                "from {} s on: p99 of {after:.1} ms, {usual_then:.1} ms without the fault",
                BACK_WITHIN.as_secs()
            ),
            after <= 2.0 * usual_then,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_replica_is_left_out_and_latencies_are_as_before() {
        let figure = measure();
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
