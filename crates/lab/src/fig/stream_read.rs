//! Reading a whole stream: in bulk by the log's own streams, or along backpointers. Wei, figure 5.7.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::task::gather;
use ithaca_log::client::{AppendTo, Client};
use ithaca_log::pos::{LogPos, StreamId};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Setup, Testbed};
use crate::backpointers::BackClient;
use crate::backpointers::header::BackStream;
use crate::backpointers::sequencer::Sequencer;

/// Two chains of two replicas.
pub const UNITS: usize = 4;
/// "32B entries".
pub const ENTRY: &[u8] = &[7; 32];
/// Appends under way while a log is filled.
const WINDOW: usize = 256;
/// Positions that are read together where the text reads one.
const TOGETHER: usize = 64;

/// How many times faster ours is to be than a walk along one pointer an entry; and from so many entries of a stream on.
const ASKED: f64 = 1.5;
const ASKED_LONG: f64 = 10.0;
const LONG: u32 = 100;
/// A stream that has fewer than one in so many positions of the log is read along its pointers by ours as well, because units
/// would have to look at what lies between (docs/protocol/stream-reads.md). So it is only not to be slower.
const RARE: u32 = 1024;
const ASKED_RARE: f64 = 1.0;

/// A log that is read: streams take turns, entry by entry.
#[derive(Clone, Copy)]
pub struct Case {
    pub streams: u32,
    pub entries: u32,
}

impl Case {
    /// Whether its streams are rare in the log.
    fn is_rare(self) -> bool {
        (self.entries - 1) * self.streams + 1 >= self.entries * RARE
    }
}

/// The logs of the figure.
pub const CASES: [Case; 5] = [
    Case { streams: 32, entries: 100 },
    Case { streams: 32, entries: 1000 },
    Case { streams: 1000, entries: 10 },
    Case { streams: 1000, entries: 50 },
    Case { streams: 10_000, entries: 5 },
];

/// How long the first stream takes to be read, in milliseconds.
struct Point {
    case: Case,
    /// From the stripes, in bulk: the first time, when units look at the heads of records, and once more.
    first: f64,
    bulk: f64,
    /// Along one pointer an entry, one read after the other, as the text measured it.
    one: f64,
    /// Along four.
    four: f64,
    /// Along four, and what the list says is read together.
    together: f64,
    /// A sequencer that takes over reads the whole log to know where streams end.
    takeover: f64,
}

/// The stream with this number, with backpointers.
pub fn back_stream(number: u32) -> BackStream {
    BackStream::new(number).expect("numbers of figures have 31 bits")
}

/// The stream with this number, of the log's own.
pub fn stream(number: u32) -> StreamId {
    StreamId::of_name(&format!("stream {number}"))
}

/// A log of streams with so many backpointers, filled in this order; its sequencer.
pub async fn fill_back(env: &Env, client: &Client, kept: usize, order: Rc<Vec<u32>>) -> BackClient {
    let sequencer = Sequencer::new(kept);
    let made = async || {
        let made = BackClient::new(env, client.clone(), Rc::clone(&sequencer)).await;
        made.expect("a cluster without faults has a layout")
    };
    let writer = Rc::new(made().await);
    let next = Rc::new(std::cell::Cell::new(0));
    let tasks = (0..WINDOW).map(|_| {
        let (writer, next, order) = (Rc::clone(&writer), Rc::clone(&next), Rc::clone(&order));
        async move {
            while let Some(&number) = order.get(next.replace(next.get() + 1)) {
                writer.append(&[back_stream(number)], ENTRY).await.expect("a cluster without faults appends");
            }
        }
    });
    gather(tasks.collect(), |()| false).await;
    made().await
}

/// The same of the log's own streams.
pub async fn fill(client: &Client, order: &[u32]) {
    let entry = Bytes::from_static(ENTRY);
    let mut under_way: VecDeque<AppendTo> = VecDeque::new();
    for &number in order {
        if under_way.len() == WINDOW
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await.expect("a cluster without faults appends");
        }
        under_way.push_back(client.append_to(&[stream(number)], entry.clone()));
    }
    for append in under_way {
        append.await.expect("a cluster without faults appends");
    }
}

/// Reads all of a stream along pointers: how many entries, and how long it took.
pub async fn read_back(env: &Env, client: &BackClient, number: u32, together: usize) -> (u32, Duration) {
    let began = env.now();
    let mut reader = client.reader(back_stream(number), together);
    reader.sync().await.expect("a cluster without faults is read");
    let mut count = 0;
    while reader.read_next().await.expect("a cluster without faults is read").is_some() {
        count += 1;
    }
    (count, env.now().since(began))
}

/// The same of a stream of the log's own.
pub async fn read(env: &Env, client: &Client, number: u32) -> (u32, Duration) {
    let began = env.now();
    let mut reader = client.stream_reader(stream(number), LogPos(0));
    reader.sync().await.expect("a cluster without faults is read");
    let mut count = 0;
    while reader.read_next().await.expect("a cluster without faults is read").is_some() {
        count += 1;
    }
    (count, env.now().since(began))
}

/// Milliseconds for all of the first stream, which must have that many entries.
fn ms((count, took): (u32, Duration), case: Case) -> f64 {
    assert_eq!(count, case.entries, "the whole stream is read");
    took.as_secs_f64() * 1e3
}

fn point(case: Case) -> Point {
    let order: Rc<Vec<u32>> = Rc::new((0..case.entries).flat_map(|_| 0..case.streams).collect());
    let in_world = |kept: usize| {
        let testbed = Testbed::new(&Setup::steady(UNITS, 1, 1));
        let ((process, client), order) = (testbed.client(0), Rc::clone(&order));
        let env = testbed.sim.env(process);
        testbed.sim.block_on(process, async move {
            let filled = fill_back(&env, &client, kept, order).await;
            let alone = ms(read_back(&env, &filled, 0, 1).await, case);
            let together = ms(read_back(&env, &filled, 0, TOGETHER).await, case);
            let began = env.now();
            Sequencer::recovered(&client, kept).await.expect("a cluster without faults is read");
            (alone, together, env.now().since(began).as_secs_f64() * 1e3)
        })
    };
    let ((one, ..), (four, together, takeover)) = (in_world(1), in_world(4));
    let testbed = Testbed::new(&Setup::steady(UNITS, 1, 1));
    let (process, client) = testbed.client(0);
    let env = testbed.sim.env(process);
    let (first, bulk) = testbed.sim.block_on(process, async move {
        fill(&client, &order).await;
        let first = ms(read(&env, &client, 0).await, case);
        (first, ms(read(&env, &client, 0).await, case))
    });
    Point { case, first, bulk, one, four, together, takeover }
}

/// Measures these logs.
pub fn measure(cases: &[Case]) -> Figure {
    let points: Vec<Point> = cases.iter().map(|case| point(*case)).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(value).collect(),
    };
    let row = |it: &Point| {
        let times =
            [it.first, it.bulk, it.one, it.four, it.together, it.takeover].map(|ms| format!("{ms:.2}"));
        format!("{},{},{}", it.case.streams, it.case.entries, times.join(","))
    };
    Figure {
        name: "stream-read",
        claim: "a stream is read in bulk, where backpointers take a round trip an entry; only one that has less than one in 1,024 of the log's positions \
                is read along pointers by ours too, and no slower"
            .to_string(),
        expected: "Wei, figure 5.7: \"as the number of streams and entries increase, vCorfu greatly outperforms backpointers thanks to the ability to \
                   perform a single bulk read\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units: two chains of two replicas, as in the text. Entries of 32 bytes; streams take turns, entry by \
             entry; one client reads all of the first stream, from asking the sequencer on. Backpointers: one an entry and one read after the other, as \
             the text measured them; four an entry; four, with {TOGETHER} positions read together as soon as the list is made, which the text does not do. A sequencer that takes over reads all of the log; ours reads down to a checkpoint (`bench takeover`). \
             The first time ours is read, units look at the heads of records that they have forgotten. \
             The text's 100,000 streams are 10,000 here."
        ),
        columns: "streams,entries of each,ours the first time ms,ours ms,1 pointer ms,4 pointers ms,4 pointers and reads together ms,\
                  a sequencer that takes over ms",
        rows: points.iter().map(row).collect(),
        charts: vec![Chart {
            title: "reading a whole stream".to_string(),
            x_label: "streams x entries of each".to_string(),
            y_label: "milliseconds".to_string(),
            x: points.iter().map(|it| format!("{}x{}", it.case.streams, it.case.entries)).collect(),
            scale: Scale::Log,
            lines: vec![
                line("ours", |it| it.bulk),
                line("1 pointer", |it| it.one),
                line("4 pointers", |it| it.four),
                line("4, together", |it| it.together),
            ],
        }],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let check = |it: &Point| {
        let Case { streams, entries } = it.case;
        // The longer the stream, the more one bulk read is worth.
        let asked = if it.case.is_rare() {
            ASKED_RARE
        } else if entries >= LONG {
            ASKED_LONG
        } else {
            ASKED
        };
        let text = format!(
            "{streams} streams of {entries}: {:.2} ms, {:.1} times faster than along one pointer, asked {asked:.1}; {:.1} times than along \
             four with reads together; {:.2} ms the first time",
            it.bulk,
            it.one / it.bulk,
            it.together / it.bulk,
            it.first
        );
        (text, it.one / it.bulk >= asked)
    };
    points.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bulk_read_is_faster_than_a_walk() {
        let rare = Case { streams: 1500, entries: 4 };
        assert!(rare.is_rare(), "else nothing is read along pointers");
        let figure = measure(&[Case { streams: 32, entries: 100 }, Case { streams: 200, entries: 10 }, rare]);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
