//! How long it takes to go from one layout to the next: Wei, figures 3.16 (distribution on 32 units) and 3.17 (by the number of units).
//!
//! An operator does what a node does that has seen a failure: it prepares the acceptors, seals the epoch at every node at the same time,
//! and has the next layout decided. Nothing has failed, so nobody waits for leases; "we conservatively seal all drives".

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::sim::Speed;
use ithaca_log::client::Client;
use ithaca_log::detector::Timing;
use ithaca_log::layout::Layout;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{MESSAGES_PER_S, Setup, Testbed};
use crate::operator::Operator;

const SEED: u64 = 1;
/// The cluster whose distribution is shown.
const SHOWN_UNITS: usize = 32;
/// Processes that append meanwhile, and what each has under way.
const APPENDERS: usize = 4;
const CALLS: usize = 1;
const ENTRY_BYTES: usize = 4096;
/// From one layout to the start of the next reconfiguration: clients go on meanwhile.
const REST: Duration = Duration::from_millis(20);
/// Marks of the distribution, in percent.
const MARKS: [usize; 9] = [1, 10, 25, 50, 75, 90, 95, 99, 100];

/// How long the phases took, in milliseconds.
#[derive(Clone, Copy, Default)]
struct Took {
    /// Until a majority of the acceptors had promised.
    prepare: f64,
    /// From there until every node had answered the seal.
    seal: f64,
    /// From there until the layout was decided.
    decide: f64,
    /// From the start until then.
    total: f64,
    /// From the start until every node knew it.
    learned: f64,
}

/// What every phase took, in order of time.
struct Trial {
    units: usize,
    took: Vec<Took>,
}

impl Trial {
    /// What `percent` of the reconfigurations do not exceed.
    fn at(&self, percent: usize, value: Phase) -> f64 {
        let mut values: Vec<f64> = self.took.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[(values.len() * percent).div_ceil(100).max(1) - 1]
    }
}

fn ms(from: Time, to: Time) -> f64 {
    to.since(from).as_nanos() as f64 / 1e6
}

/// Has the layout after `before` decided: the same places, the next epoch.
async fn reconfigure(operator: &Operator, before: &Layout) -> io::Result<(Layout, Took)> {
    let env = operator.env();
    let began = env.now();
    operator.prepare(before).await?;
    let prepared = env.now();
    let sealed = operator.seal_all(before).await?;
    let all_sealed = env.now();
    let tail = before.find_tail(&sealed).map_err(io::Error::other)?;
    let next = before.next_epoch(tail);
    operator.decide(before, &next).await?;
    let decided = env.now();
    operator.tell(&next).await?;
    let took = Took {
        prepare: ms(began, prepared),
        seal: ms(prepared, all_sealed),
        decide: ms(all_sealed, decided),
        total: ms(began, decided),
        learned: ms(began, env.now()),
    };
    Ok((next, took))
}

fn trial(units: usize, count: usize) -> Trial {
    let testbed = Testbed::new(&Setup {
        units,
        client_machines: APPENDERS,
        clients: 1,
        drive: || Speed::Ssd.model(),
        registers: Speed::Ssd,
        own_sequencer: false,
        segment_bytes: 1 << 20,
        timing: Timing { slow_after: Duration::from_secs(3600), ..Timing::default() },
        seed: SEED,
    });
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    let load = testbed.start((1, CALLS), move |client: Client, _| {
        let appended = client.append(entry.clone());
        async move {
            appended.await.expect("a cluster without faults appends");
        }
    });
    let (env, mut layout) = (testbed.sim.env(testbed.operator), testbed.layout.clone());
    let took = testbed.sim.block_on(testbed.operator, async move {
        let operator = Operator::connect(&env, &layout).await?;
        let mut took = Vec::new();
        for _ in 0..count {
            env.sleep(REST).await;
            let (next, this) = reconfigure(&operator, &layout).await?;
            layout = next;
            took.push(this);
        }
        Ok::<_, io::Error>(took)
    });
    let took = took.expect("a cluster without faults does as it is asked");
    testbed.stop(&load);
    Trial { units, took }
}

/// The time that a phase took.
type Phase = fn(&Took) -> f64;

/// Reconfigures a cluster of 32 units `count` times, and one of each of these numbers of units.
pub fn measure(units: &[usize], count: usize) -> Figure {
    let trials: Vec<Rc<Trial>> = units.iter().map(|&units| Rc::new(trial(units, count))).collect();
    let known = trials.iter().find(|trial| trial.units == SHOWN_UNITS).cloned();
    let shown = known.unwrap_or_else(|| Rc::new(trial(SHOWN_UNITS, count)));
    let phases: [(&str, Phase); 3] = [
        ("sealing all", |took| took.seal),
        ("until decided", |took| took.total),
        ("known to all", |took| took.learned),
    ];
    let chart = |title: String, x_label: &str, x: Vec<String>, y: &dyn Fn(Phase) -> Vec<f64>| Chart {
        title,
        x_label: x_label.to_string(),
        y_label: "milliseconds".to_string(),
        x,
        scale: Scale::Linear,
        lines: phases.iter().map(|(name, value)| Line { name: name.to_string(), y: y(*value) }).collect(),
    };
    let charts = vec![
        chart(
            format!("{SHOWN_UNITS} units: distribution"),
            "percent of the reconfigurations that took no longer",
            MARKS.iter().map(usize::to_string).collect(),
            &|value| MARKS.iter().map(|&mark| shown.at(mark, value)).collect(),
        ),
        chart(
            "median by the number of units".to_string(),
            "units",
            units.iter().map(usize::to_string).collect(),
            &|value| trials.iter().map(|trial| trial.at(50, value)).collect(),
        ),
    ];
    Figure {
        name: "reconfiguration",
        claim: "the next layout is decided within milliseconds, of which sealing is the part that grows with the units, and slowly".to_string(),
        expected: "Wei, figures 3.16 and 3.17: on 32 drives the median of sealing is 5 ms, and writing the new projection takes 25 ms more \
                   (XML on a network share; \"sub-millisecond\" if it were a log of its own, which it is here); sealing asks all units in \
                   parallel and grows with their number, the second step is insensitive to it"
            .to_string(),
        setting: format!(
            "The testbed of `scaling` with SATA SSDs (0.3 ms a flush) whose writes are not emulated; the sequencer is one of the units, and up to \
             five of them decide layouts. {APPENDERS} processes append 4 KiB, {CALLS} calls each. Everything is sealed by an operator on a \
             machine of its own, whose processor sends {MESSAGES_PER_S} messages a second. {count} times each, {} ms apart, seed {SEED}.",
            REST.as_millis()
        ),
        columns: "units,percent,prepare ms,seal ms,decide ms,total ms,known to all ms",
        rows: rows(&trials, &shown),
        charts,
        checks: checks(&trials, &shown),
    }
}

/// The distribution on 32 units, then the medians.
fn rows(trials: &[Rc<Trial>], shown: &Trial) -> Vec<String> {
    let row = |trial: &Trial, percent| {
        let values: [Phase; 5] =
            [|it| it.prepare, |it| it.seal, |it| it.decide, |it| it.total, |it| it.learned];
        let values = values.map(|value| format!("{:.3}", trial.at(percent, value))).join(",");
        format!("{},{percent},{values}", trial.units)
    };
    let distribution = MARKS.iter().map(|&percent| row(shown, percent));
    distribution.chain(trials.iter().map(|trial| row(trial, 50))).collect()
}

fn checks(trials: &[Rc<Trial>], shown: &Trial) -> Vec<(String, bool)> {
    let (seal, total) = (shown.at(50, |it| it.seal), shown.at(50, |it| it.total));
    let mut checks = vec![
        (
            format!("{SHOWN_UNITS} units: the median of sealing, {seal:.2} ms, is at most the text's 5 ms"),
            seal <= 5.0,
        ),
        (
            format!("{SHOWN_UNITS} units: the median of all, {total:.2} ms, is at most the text's 30 ms"),
            total <= 30.0,
        ),
    ];
    if let [first, .., last] = trials {
        let median = |trial: &Trial, value| trial.at(50, value);
        let (few, many) = (median(first, |it| it.seal), median(last, |it| it.seal));
        let factor = last.units as f64 / first.units as f64;
        checks.push((
            format!("sealing grows with the units, {few:.2} to {many:.2} ms, and less than they do"),
            few < many && many < few * factor,
        ));
        let (few, many) = (median(first, |it| it.decide), median(last, |it| it.decide));
        checks.push((
            format!("deciding does not grow with the units: {few:.2} and {many:.2} ms"),
            many < few * 1.5,
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_decided_in_milliseconds_and_sealing_grows_slowly() {
        let figure = measure(&[4, 32], 15);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
