//! What a hole in a stream costs whoever reads it: Wei, figure 5.8.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::{Dice, Domain};
use ithaca_log::client::{Client, Connection, Identity};
use ithaca_log::pos::LogPos;
use ithaca_log::wire::{Grant, Token, TokenGroup};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::stream_read::{ENTRY, UNITS, back_stream, fill, fill_back, read, stream};
use super::testbed::{Setup, Testbed};
use crate::backpointers::BackClient;
use crate::measure::median;

const SEED: u64 = 1;
/// Entries of each stream on average.
const ENTRIES: usize = 6;
/// Entries of a log at least.
const LOG_MIN: usize = 2000;
/// Streams that get a hole and are read.
const TRIALS: u32 = 15;
/// A message ends within this.
const CALL_TIME: Duration = Duration::from_secs(5);

/// Medians over the trials.
struct Point {
    streams: u32,
    /// Positions that were looked at one by one because no pointer led on, with one pointer an entry and with four.
    scanned: [f64; 2],
    /// From the call until all entries are read, in milliseconds.
    back_ms: [f64; 2],
    /// The same of a stream of the log's own with the same hole, and with none.
    ours_ms: f64,
    whole_ms: f64,
}

/// The streams of a log's entries, drawn as the text's clients draw them.
fn order(streams: u32) -> Rc<Vec<u32>> {
    let count = (streams as usize * ENTRIES).max(LOG_MIN) as u64;
    let draw = |nth| Dice::new(SEED).below(Domain::User(0), 0, nth, streams.into()) as u32;
    Rc::new((0..count).map(draw).collect())
}

/// Reads streams with a hole before their last entry: positions scanned, and milliseconds.
async fn trials_back(env: &Env, client: &Client, writer: &BackClient) -> (f64, f64) {
    let (mut scanned, mut took) = (Vec::new(), Vec::new());
    for number in 0..TRIALS {
        let hole = writer.lose(&[back_stream(number)]).await.expect("granted");
        client.fill(hole).await.expect("filled");
        writer.append(&[back_stream(number)], ENTRY).await.expect("appended");
        let began = env.now();
        let mut reader = writer.reader(back_stream(number), 1);
        reader.sync().await.expect("readable");
        while reader.read_next().await.expect("readable").is_some() {}
        took.push(env.now().since(began).as_secs_f64() * 1e3);
        scanned.push(reader.reads().scanned as f64);
    }
    (median(scanned), median(took))
}

/// Has a position granted to a stream of the log's own, which nobody writes.
async fn lose(env: &Env, client: &Client, number: u32) -> LogPos {
    let layout = client.layout().await.expect("a layout");
    let node = layout.node(layout.sequencer).expect("the sequencer is a member");
    let addr = node.address.parse().expect("a simulated node has an address");
    let who = Identity { client: client.id(), node: node.id, cluster: layout.cluster };
    let deadline = env.now() + CALL_TIME;
    let connection = Connection::open(env, addr, who, deadline).await.expect("reachable");
    let group = TokenGroup { count: 1, streams: [stream(number)].into(), condition: None };
    let token = Token { groups: vec![group] };
    let granted = connection.call::<_, Grant>(env, layout.epoch, &token, deadline).await;
    granted.expect("granted").0.first
}

/// The same of the log's own streams: milliseconds with the hole, and before it.
async fn trials(env: &Env, client: &Client) -> (f64, f64) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    for number in 0..TRIALS {
        without.push(ms(read(env, client, number).await.1));
        let hole = lose(env, client, number).await;
        client.fill(hole).await.expect("filled");
        client.append_to(&[stream(number)], Bytes::from_static(ENTRY)).await.expect("appended");
        with.push(ms(read(env, client, number).await.1));
    }
    (median(with), median(without))
}

fn point(streams: u32) -> Point {
    let order = order(streams);
    let (mut scanned, mut back_ms) = ([0.0; 2], [0.0; 2]);
    for (nth, kept) in [1, 4].into_iter().enumerate() {
        let testbed = Testbed::new(&Setup::steady(UNITS, 1, 1));
        let ((process, client), order) = (testbed.client(0), Rc::clone(&order));
        let env = testbed.sim.env(process);
        (scanned[nth], back_ms[nth]) = testbed.sim.block_on(process, async move {
            let writer = fill_back(&env, &client, kept, order).await;
            trials_back(&env, &client, &writer).await
        });
    }
    let testbed = Testbed::new(&Setup::steady(UNITS, 1, 1));
    let (process, client) = testbed.client(0);
    let env = testbed.sim.env(process);
    let (ours_ms, whole_ms) = testbed.sim.block_on(process, async move {
        fill(&client, &order).await;
        trials(&env, &client).await
    });
    Point { streams, scanned, back_ms, ours_ms, whole_ms }
}

/// Measures logs of so many streams, at least as many as there are trials.
pub fn measure(streams: &[u32]) -> Figure {
    let points: Vec<Point> = streams.iter().map(|streams| point(*streams)).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(value).collect(),
    };
    let chart = |title: &str, y_label: &str, lines| Chart {
        title: title.to_string(),
        x_label: "streams".to_string(),
        y_label: y_label.to_string(),
        x: points.iter().map(|it| it.streams.to_string()).collect(),
        scale: Scale::Log,
        lines,
    };
    let row = |it: &Point| {
        let Point { streams, scanned: [one, four], back_ms: [one_ms, four_ms], ours_ms, whole_ms } = it;
        format!("{streams},{one:.0},{four:.0},{one_ms:.2},{four_ms:.2},{ours_ms:.2},{whole_ms:.2}")
    };
    Figure {
        name: "holes",
        claim: "a hole costs a reader of a stream one question to each stripe; one backpointer that leads to a hole costs a scan of the log".to_string(),
        expected: "Wei, figure 5.8: the entries that must be sought through grow with the number of streams, \"reading each entry takes about 0.3 ms\", \
                   and the median time to read a stream with a hole \"jumps to 14.8\" seconds with 100,000 streams; \"vCorfu avoids this issue altogether\""
            .to_string(),
        setting: format!(
            "The log of `stream-read`, its entries' streams drawn at random, {ENTRIES} of each and {LOG_MIN} in all at least. {TRIALS} streams get a position that \
             is never written and is filled, and one entry after it; then a new reader reads all of the stream. Medians. With four pointers one hole is \
             jumped over as long as the second last entry is less than 65,536 positions back. Seed {SEED}."
        ),
        columns: "streams,scanned (1 pointer),scanned (4 pointers),1 pointer ms,4 pointers ms,ours ms,ours without a hole ms",
        rows: points.iter().map(row).collect(),
        charts: vec![chart(
            "reading a stream with a hole",
            "milliseconds",
            vec![
                line("ours", |it| it.ours_ms),
                line("ours, no hole", |it| it.whole_ms),
                line("1 pointer", |it| it.back_ms[0]),
                line("4 pointers", |it| it.back_ms[1]),
            ],
        )],
        checks: points.iter().flat_map(checks).collect(),
    }
}

fn checks(it: &Point) -> Vec<(String, bool)> {
    let Point { streams, scanned: [one, four], ours_ms, whole_ms, .. } = it;
    // Half of all gaps between entries of one of n streams are shorter than n ln 2.
    let expected = f64::from(*streams) * std::f64::consts::LN_2;
    vec![
        (
            format!(
                "{streams} streams: one pointer and a hole cost a scan of {one:.0} positions, about {expected:.0}"
            ),
            *one >= expected / 3.0 && *one <= expected * 3.0,
        ),
        (format!("{streams} streams: four pointers and a hole cost a scan of {four:.0}"), *four == 0.0),
        (
            format!(
                "{streams} streams: ours reads the stream with a hole in {ours_ms:.2} ms, without in {whole_ms:.2} ms, at most 2 ms more"
            ),
            *ours_ms <= whole_ms + 2.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_costs_ours_a_question_and_one_pointer_a_scan() {
        let figure = measure(&[32, 300]);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
