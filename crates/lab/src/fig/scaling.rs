//! Appends and random reads a second as units are added: Wei, figure 3.14, up to twice the units of the text.

use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Dice, Domain};
use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{LINK_BYTES_PER_S, MESSAGES_PER_S, Setup, Testbed, emulated};

const SEED: u64 = 1;
const ENTRY_BYTES: usize = 4096;
/// Client machines, each with one process: as many processes as in the text.
const MACHINES: usize = 44;
/// Clients of a process that have one append under way each, and so take a token for each.
const CLIENTS: usize = 12;
/// Calls that a process has under way of one client, whose appends share tokens and writes.
const CALLS: usize = 24;
/// Before each measurement of appends.
const WARM: Duration = Duration::from_millis(40);
/// Before that of reads. The first at each unit look up in footers where entries lie, which takes as many requests to the
/// drive again until those are in memory. After 120 ms all of it is over.
const READ_WARM: Duration = Duration::from_millis(150);

/// What a number of units gives, a second.
struct Point {
    units: usize,
    appends: f64,
    shared: f64,
    reads: f64,
}

async fn append(client: Client, entry: Bytes) {
    client.append(entry).await.expect("a cluster without faults appends");
}

fn point(units: usize, span: Duration) -> Point {
    let testbed =
        Testbed::new(&Setup { drive: emulated, seed: SEED, ..Setup::steady(units, MACHINES, CLIENTS) });
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    let appending = |clients_and_tasks| {
        let entry = entry.clone();
        testbed.measure(clients_and_tasks, (WARM, span), move |client, _| append(client, entry.clone()))
    };
    let (appends, shared) = (appending((CLIENTS, 1)), appending((1, CALLS)));
    let (process, client) = testbed.client(0);
    let bounds = testbed.sim.block_on(process, async move { client.check().await });
    let tail = bounds.expect("a cluster without faults answers").tail.0;
    let reads = testbed.measure((1, CALLS), (READ_WARM, span), move |client, turn| async move {
        let pos = LogPos(Dice::new(SEED).below(Domain::User(0), 0, turn, tail));
        let read = client.read(pos).await.expect("everything below the tail was appended");
        assert_eq!(read.data.len(), ENTRY_BYTES, "what was appended");
    });
    let [appends, shared, reads] = [appends, shared, reads].map(|done| done as f64 / span.as_secs_f64());
    Point { units, appends, shared, reads }
}

/// Measures each load for `span` of virtual time.
pub fn measure(units: &[usize], span: Duration) -> Figure {
    let points: Vec<Point> = units.iter().map(|&units| point(units, span)).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(|point| value(point) / 1e3).collect(),
    };
    let chart = |title: &str, lines| Chart {
        title: title.to_string(),
        x_label: "units (two to a server)".to_string(),
        y_label: "thousands a second".to_string(),
        x: units.iter().map(usize::to_string).collect(),
        scale: Scale::Linear,
        lines,
    };
    Figure {
        name: "scaling",
        claim: "appends and reads grow with the units, reads without end, appends up to the tokens that the sequencer can grant; \
                clients whose calls share tokens move that end away"
            .to_string(),
        expected: "Wei, figure 3.14: both scale up proportionally with the drives, to 500K reads/s and 180K appends/s on 32 drives; 180K is \
                   the sequencer's limit, which is flat from there on"
            .to_string(),
        setting: setting(span),
        columns: "units,appends with a token each/s,appends that share tokens/s,reads/s",
        rows: points
            .iter()
            .map(|it| format!("{},{:.0},{:.0},{:.0}", it.units, it.appends, it.shared, it.reads))
            .collect(),
        charts: vec![
            chart(
                "appends of 4 KiB",
                vec![line("a token each", |point| point.appends), line("tokens shared", |point| point.shared)],
            ),
            chart("random reads of 4 KiB", vec![line("reads", |point| point.reads)]),
        ],
        checks: checks(&points),
    }
}

fn setting(span: Duration) -> String {
    format!(
        "Calibrated with Wei 3.5: servers with two units each on one link of {} MB/s, two replicas in different racks, drives of 20,000 reads \
         of 4 KiB a second with emulated writes, and {MESSAGES_PER_S} messages a second for every process, which is what the text's sequencer \
         does. {MACHINES} processes of clients (each on a machine of its own, the text's in pairs, so that 64 units can be read), which take tokens and \
         write to the replicas themselves: {CLIENTS} clients in each with one append under way, or one with {CALLS}, whose queued appends take \
         their tokens together. The sequencer has a machine of its own. Reads are counted from {} ms on, when units have in memory where entries lie; before that four \
         of them give less. {} ms each, seed {SEED}.",
        LINK_BYTES_PER_S / 1_000_000,
        READ_WARM.as_millis(),
        span.as_millis()
    )
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let limit = MESSAGES_PER_S as f64;
    let mut checks = Vec::new();
    let Some(first) = points.first() else { return checks };
    for point in points {
        let factor = point.units as f64 / first.units as f64;
        let mut grows = |what: &str, value: f64, base: f64, most: f64| {
            let expected = (base * factor).min(most);
            let says = format!("{} units: {value:.0} {what}, within 15 % of {expected:.0}", point.units);
            checks.push((says, (value / expected - 1.0).abs() <= 0.15));
        };
        grows("appends/s with a token each", point.appends, first.appends, limit);
        grows("appends/s that share tokens", point.shared, first.shared, f64::INFINITY);
        grows("reads/s", point.reads, first.reads, f64::INFINITY);
    }
    if let Some(at) = points.iter().find(|point| point.units == 32) {
        let is_near = |found: f64, text: f64| (found / text - 1.0).abs() <= 0.15;
        checks.push(("32 units give the 180K appends/s of the text".to_string(), is_near(at.appends, 180e3)));
        checks.push(("32 units give the 500K reads/s of the text".to_string(), is_near(at.reads, 500e3)));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_and_reads_grow_with_the_units() {
        // The fewest units have the longest queues: where those wait for what is asked for twice, more units seem to give more
        // than in proportion.
        let figure = measure(&[4, 8, 16], Duration::from_millis(60));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
