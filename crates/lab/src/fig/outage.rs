//! What clients see when a unit fails, or the sequencer: Wei, figure 3.15.
//!
//! One process appends and one reads at random what was appended before. A unit's machine goes without a word; the cluster finds out,
//! seals the epoch, and goes on without it. What was read at the failed unit is read at another replica meanwhile.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::sim::{Death, Dice, Domain, Speed};
use ithaca_log::client::Client;
use ithaca_log::detector::Timing;
use ithaca_log::pos::{LogPos, NodeId};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Load, Setup, Testbed, emulated};

/// Calls of one process keep step with each other, well or badly by chance and for long: rates are means of these.
const SEEDS: [u64; 3] = [1, 2, 3];
const ENTRY_BYTES: usize = 4096;
/// Calls that each process has under way.
const CALLS: usize = 8;
/// Appends are counted over this.
const BIN: Duration = Duration::from_millis(50);
/// The failure, and the end, after the start of the count.
const FAILURE: Duration = Duration::from_millis(500);
const END: Duration = Duration::from_millis(2000);
/// How long the log is filled with what is read.
const FILL: Duration = Duration::from_millis(300);
/// The unit that fails, which neither decides layouts nor grants positions; and the sequencer, which is a unit as well.
const UNIT: NodeId = NodeId(20);
const SEQUENCER: NodeId = NodeId(1);

/// What a process did in each bin, in thousands a second.
struct Series {
    appends: Vec<f64>,
    reads: Vec<f64>,
}

/// What the reading client reads.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    /// Everything.
    All,
    /// What is not read at the unit that fails.
    Elsewhere,
}

/// Lets `failing` fail and counts, with each of the seeds.
fn series(units: usize, failing: NodeId, reading: Reading) -> Vec<Series> {
    SEEDS.map(|seed| series_of(seed, units, failing, reading)).into()
}

fn series_of(seed: u64, units: usize, failing: NodeId, reading: Reading) -> Series {
    let testbed = Testbed::new(&Setup {
        units,
        client_machines: 2,
        clients: 1,
        drive: emulated,
        registers: Speed::Ssd,
        own_sequencer: false,
        segment_bytes: 1 << 20,
        timing: Timing::default(),
        seed,
    });
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    let append = move |client: Client, _| {
        let appended = client.append(entry.clone());
        async move {
            appended.await.expect("an append ends well before its deadline");
        }
    };
    testbed.measure((1, CALLS), (Duration::ZERO, FILL), append.clone());
    let (process, client) = testbed.client(0);
    let bounds = testbed.sim.block_on(process, async move { client.check().await });
    let tail = bounds.expect("a cluster without faults answers").tail.0;
    let is_read_at = |pos: &LogPos| {
        let replicas = testbed.layout.locate(*pos).map(|at| at.replicas.last().copied());
        replicas.flatten() == Some(failing)
    };
    let positions = (0..tail).map(LogPos);
    let positions: Rc<Vec<LogPos>> =
        Rc::new(positions.filter(|pos| reading == Reading::All || !is_read_at(pos)).collect());
    let read = move |client: Client, turn| {
        let place = Dice::new(seed).below(Domain::User(0), 0, turn, positions.len() as u64);
        let pos = positions[place as usize];
        async move {
            client.read(pos).await.expect("a read ends well before its deadline");
        }
    };
    let (appending, reads) = (testbed.start_at(0, CALLS, append), testbed.start_at(1, CALLS, read));
    testbed.sim.run_for(BIN * 2);
    let series = count(&testbed, failing, &appending, &reads);
    testbed.stop(&appending);
    testbed.stop(&reads);
    series
}

fn count(testbed: &Testbed, failing: NodeId, appending: &Load, reading: &Load) -> Series {
    let process = testbed.nodes[failing.0 as usize - 1];
    testbed.sim.at(testbed.sim.now() + FAILURE, move |sim| sim.end(process, Death::Vanish));
    let mut series = Series { appends: Vec::new(), reads: Vec::new() };
    let rate = |done: u64| done as f64 / BIN.as_secs_f64() / 1e3;
    let end: Time = testbed.sim.now() + END;
    while testbed.sim.now() < end {
        let before = (appending.done(), reading.done());
        testbed.sim.run_for(BIN);
        series.appends.push(rate(appending.done() - before.0));
        series.reads.push(rate(reading.done() - before.1));
    }
    series
}

fn mean(rates: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = rates.len() as f64;
    rates.sum::<f64>() / count
}

/// The means of each bin.
fn mean_of(all: &[Series]) -> Series {
    let bins = 0..all[0].appends.len();
    Series {
        appends: bins.clone().map(|bin| mean(all.iter().map(|it| it.appends[bin]))).collect(),
        reads: bins.map(|bin| mean(all.iter().map(|it| it.reads[bin]))).collect(),
    }
}

/// Measures a cluster of so many units, at least 20.
pub fn measure(units: usize) -> Figure {
    let measured = [
        series(units, UNIT, Reading::Elsewhere),
        series(units, UNIT, Reading::All),
        series(units, SEQUENCER, Reading::Elsewhere),
    ];
    let [elsewhere, all, sequencer] = measured.each_ref().map(|it| mean_of(it));
    let bins = elsewhere.appends.len();
    let start_ms = |bin: usize| bin as i64 * BIN.as_millis() as i64 - FAILURE.as_millis() as i64;
    let line = |name: &str, y: &[f64]| Line { name: name.to_string(), y: y.to_vec() };
    let chart = |title: &str, lines| Chart {
        title: title.to_string(),
        x_label: "milliseconds since the failure".to_string(),
        y_label: "thousands a second".to_string(),
        // Every mark would be too many to be read.
        x: (0..bins)
            .map(|bin| if bin % 5 == 0 { start_ms(bin).to_string() } else { String::new() })
            .collect(),
        scale: Scale::Linear,
        lines,
    };
    let charts = vec![
        chart(
            "a unit fails",
            vec![
                line("appends", &elsewhere.appends),
                line("reads elsewhere", &elsewhere.reads),
                line("reads of all", &all.reads),
            ],
        ),
        chart(
            "the sequencer's node fails",
            vec![line("appends", &sequencer.appends), line("reads elsewhere", &sequencer.reads)],
        ),
    ];
    let row = |bin: usize| {
        let values = [&elsewhere.appends, &elsewhere.reads, &all.reads, &sequencer.appends, &sequencer.reads];
        let values = values.map(|values| format!("{:.2}", values[bin]));
        format!("{},{}", start_ms(bin), values.join(","))
    };
    Figure {
        name: "outage",
        claim: "when a unit or the sequencer fails, appends stand still until the next layout, and then go on as before; reads go on all the \
                time, of what was read at the failed unit as well"
            .to_string(),
        expected: "Wei, figure 3.15: appends flat-line for the second that the client waits and are back at once after the reconfiguration; a \
                   reading client goes on at the other replica with a \"minor blip\" when it learns the new projection; \"the graph for \
                   sequencer failure looks identical\""
            .to_string(),
        setting: format!(
            "The testbed of `scaling` with {units} units, of which one is the sequencer, and registers on SATA SSDs. One process appends and one \
             reads, {CALLS} calls each. The machine of a unit loses power without a word. Where the text's client waits for 1 s, the nodes find \
             out after 350 ms of silence, and wait for nothing else: the leases of a node that was silent for so long are over. A client asks another replica \
             when the last one has not answered for 20 ms, and from then on at once; in the sealed epoch units show what is on every replica. Reads \
             are of entries that were there before: what was written in the last 100 ms may not be known to be on every replica. The small dip \
             when appends are back is that in which the next layout is learned. Bins of {} ms, means of the seeds {SEEDS:?}.",
            BIN.as_millis()
        ),
        columns: "ms since the failure,appends K/s,reads elsewhere K/s,reads of all K/s,\
                  appends K/s (sequencer),reads elsewhere K/s (sequencer)",
        rows: (0..bins).map(row).collect(),
        charts,
        checks: checks(&measured),
    }
}

fn checks([unit, all, sequencer]: &[Vec<Series>; 3]) -> Vec<(String, bool)> {
    let failed = (FAILURE.as_millis() / BIN.as_millis()) as usize;
    let mut checks = Vec::new();
    for (what, measured) in [("a unit", unit), ("the sequencer", sequencer)] {
        for (series, seed) in measured.iter().zip(SEEDS) {
            checks.push(appends_stand_still(&format!("{what}, seed {seed}"), &series.appends, failed));
            checks.push(reads_go_on(
                &format!("{what}, seed {seed}"),
                "reads elsewhere",
                &series.reads,
                failed,
            ));
        }
        let Series { appends, reads } = mean_of(measured);
        checks.push(are_back(what, "appends", &appends, failed));
        checks.push(are_back(what, "reads elsewhere", &reads, failed));
    }
    for (series, seed) in all.iter().zip(SEEDS) {
        checks.push(reads_go_on(&format!("a unit, seed {seed}"), "reads of all", &series.reads, failed));
    }
    checks
}

fn appends_stand_still(what: &str, rates: &[f64], failed: usize) -> (String, bool) {
    let least = mean(rates[..failed].iter().copied()) / 20.0;
    let still_ms = rates[failed..].iter().filter(|&&rate| rate < least).count() as u128 * BIN.as_millis();
    (
        format!(
            "{what}: appends stand still for {still_ms} ms, hardly longer than a node is waited for before it is missed"
        ),
        (300..=450).contains(&still_ms),
    )
}

fn are_back(what: &str, which: &str, rates: &[f64], failed: usize) -> (String, bool) {
    let (before, last) = rates.split_at(failed);
    let [before, after] = [before, &last[last.len() - 10..]].map(|rates| mean(rates.iter().copied()));
    (format!("{what}: {which} are back, {after:.1} K/s after {before:.1} K/s"), after >= before * 0.9)
}

/// In no bin after the failure less than half is read of what was read before: another replica is asked within a bin.
fn reads_go_on(what: &str, which: &str, rates: &[f64], failed: usize) -> (String, bool) {
    let before = mean(rates[..failed].iter().copied());
    let least = rates[failed..].iter().copied().fold(f64::INFINITY, f64::min);
    (
        format!("{what}: {which} go on, at least {least:.1} K/s in every bin after {before:.1} K/s"),
        least >= before / 2.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_stand_still_until_the_next_layout_and_reads_do_not() {
        let figure = measure(20);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
