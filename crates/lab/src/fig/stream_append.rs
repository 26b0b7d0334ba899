//! What it costs an append to belong to streams: Wei, figure 5.6.

use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Dice, Domain};
use ithaca_log::client::Client;
use ithaca_log::pos::StreamId;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::stream_read::{ENTRY, stream};
use super::testbed::{MESSAGES_PER_S, Setup, Testbed};
use crate::backpointers::header::HEADER_BYTES;

const SEED: u64 = 1;
/// Client machines with a process each.
const MACHINES: usize = 44;
/// Clients of a process that have one append under way each, and so take a token for each, as the text's do.
const CLIENTS: usize = 12;
/// Calls that a process has under way of one client, whose appends share tokens and writes.
const CALLS: usize = 24;
/// Streams that appends are drawn for.
const STREAMS: u64 = 32;
/// Streams of one entry.
const EACH: [usize; 3] = [1, 4, 16];
/// Before each measurement.
const WARM: Duration = Duration::from_millis(20);
/// What appends to one stream are to reach of those without, if each takes a token; and what the text's did.
const ASKED: f64 = 0.9;
const TEXT: f64 = 0.6;

/// How appends take their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    Each,
    Shared,
}

/// Appends a second.
struct Point {
    tokens: Tokens,
    units: usize,
    /// To no stream.
    plain: f64,
    /// To no stream, with a header of backpointers in the payload.
    pointers: f64,
    /// To so many streams as `EACH` says.
    streams: [f64; 3],
}

async fn append(client: Client, streams: Vec<StreamId>, entry: Bytes) {
    client.append_to(&streams, entry).await.expect("a cluster without faults appends");
}

/// So many streams, drawn for the `turn`th append.
fn drawn(turn: u64, count: usize) -> Vec<StreamId> {
    let first = Dice::new(SEED).below(Domain::User(0), 0, turn, STREAMS);
    (first..first + count as u64).map(|number| stream((number % STREAMS) as u32)).collect()
}

fn points(units: usize, span: Duration) -> [Point; 2] {
    let testbed = Testbed::new(&Setup::steady(units, MACHINES, CLIENTS));
    [Tokens::Each, Tokens::Shared].map(|tokens| {
        let clients_and_tasks = if tokens == Tokens::Each { (CLIENTS, 1) } else { (1, CALLS) };
        let rate = |count: usize, entry: Bytes| {
            let work = move |client, turn| append(client, drawn(turn, count), entry.clone());
            testbed.measure(clients_and_tasks, (WARM, span), work) as f64 / span.as_secs_f64()
        };
        let entry = Bytes::from_static(ENTRY);
        let with_header = Bytes::from(vec![7; 1 + HEADER_BYTES + ENTRY.len()]);
        let (plain, pointers) = (rate(0, entry.clone()), rate(0, with_header));
        let streams = EACH.map(|count| rate(count, entry.clone()));
        Point { tokens, units, plain, pointers, streams }
    })
}

/// Measures each load for `span` of virtual time.
pub fn measure(units: &[usize], span: Duration) -> Figure {
    let points: Vec<[Point; 2]> = units.iter().map(|units| points(*units, span)).collect();
    let charts = ["appends of 32 bytes, a token each", "tokens and writes shared"];
    let charts = charts.iter().enumerate().map(|(nth, title)| chart(title, units, &points, nth));
    let row = |it: &Point| {
        let rates = [it.plain, it.pointers].into_iter().chain(it.streams);
        let rates: Vec<String> = rates.map(|rate| format!("{rate:.0}")).collect();
        format!("{:?},{},{}", it.tokens, it.units, rates.join(","))
    };
    Figure {
        name: "stream-append",
        claim: "an entry of a stream is one record like any other: belonging to streams costs an append the bytes of its places".to_string(),
        expected: "Wei, figure 5.6: \"writing a commit bit imposes about a 40% penalty on writes, compared to a backpointer based protocol\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit. Entries of {} bytes, two replicas, to streams drawn of {STREAMS}; {MACHINES} processes, with {CLIENTS} clients each that take a \
             token for each append, as in the text, or with one client that has {CALLS} appends under way, which share tokens and writes. Processors send \
             {MESSAGES_PER_S} messages a second. Backpointers: the same entry with a header of {} bytes in its payload. The places of an entry take 32 bytes a \
             stream, which tell where appends share messages: there bytes are what limits and not messages. {} ms each, seed {SEED}.",
            ENTRY.len(),
            1 + HEADER_BYTES,
            span.as_millis()
        ),
        columns: "tokens,units,no stream /s,backpointers /s,1 stream /s,4 streams /s,16 streams /s",
        rows: points.iter().flatten().map(row).collect(),
        charts: charts.collect(),
        checks: points.iter().flatten().map(check).collect(),
    }
}

/// The appends that take their tokens in one of the two ways.
fn chart(title: &str, units: &[usize], points: &[[Point; 2]], nth: usize) -> Chart {
    let line = |name: &str, value: &dyn Fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(|both| value(&both[nth]) / 1e3).collect(),
    };
    let mut lines = vec![line("no stream", &|it| it.plain), line("backpointers", &|it| it.pointers)];
    let each = EACH.iter().enumerate();
    lines.extend(each.map(|(nth, count)| line(&format!("{count} streams"), &|it| it.streams[nth])));
    Chart {
        title: title.to_string(),
        x_label: "units".to_string(),
        y_label: "thousands a second".to_string(),
        x: units.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines,
    }
}

fn check(it: &Point) -> (String, bool) {
    let [one, four, sixteen] = it.streams.map(|rate| rate / it.pointers);
    // Where tokens are shared the text says nothing, and places cost bytes: no more is asked than what its appends reached.
    let (how, asked) = match it.tokens {
        Tokens::Each => ("a token each", ASKED),
        Tokens::Shared => ("tokens and writes shared", TEXT),
    };
    let text = format!(
        "{} units, {how}: appends to one stream reach {one:.2} of those with backpointers, asked {asked}, the text's {TEXT}; to 4 {four:.2}, to 16 {sixteen:.2}",
        it.units
    );
    (text, one >= asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_to_a_stream_costs_what_any_append_does() {
        let figure = measure(&[4], Duration::from_millis(20));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
