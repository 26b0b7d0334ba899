//! A frame for people: a line on the cluster, a table of its nodes, a table of their chains.

use std::fmt::Write;

use ithaca_log::layout::Layout;
use ithaca_log::wire::NodeStatus;

use super::frame::{ChainFrame, Frame, NodeFrame};
use crate::cluster::{DriveState, drives, state};
use crate::quantity::{short_bytes, short_count};

/// What stands where nothing was measured.
const NOTHING: &str = "-";

/// Between two columns.
const GAP: &str = "  ";

const NODE_HEADS: [&str; 12] = [
    "node",
    "address",
    "state",
    "up",
    "appends/s",
    "bytes in/s",
    "reads/s",
    "bytes out/s",
    "tokens/s",
    "cpu",
    "memory",
    "queue",
];

const CHAIN_HEADS: [&str; 11] = [
    "chain",
    "",
    "segments",
    "free",
    "live",
    "open",
    "closed",
    "free space",
    "caches: tail + footers",
    "cleaned",
    "damaged places",
];

/// The text of a frame: lines without a newline after the last. A table that is wider than so many columns goes on below itself.
pub fn render(frame: &Frame, columns: usize) -> String {
    let tail = frame.tail.map_or_else(|| "not known".to_owned(), |tail| tail.to_string());
    let mut text = format!(
        "cluster {}: epoch {}, tail {tail}, sequencer node {}\n\n",
        frame.layout.cluster, frame.layout.epoch.0, frame.layout.sequencer.0
    );
    let nodes = std::iter::once(NODE_HEADS.map(str::to_owned))
        .chain(frame.nodes.iter().map(|it| node_row(&frame.layout, it)));
    text.push_str(&aligned(&nodes.collect::<Vec<_>>(), 3, columns));
    for node in &frame.nodes {
        if let Err(error) = &node.answer {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "node {}: {error}", node.id.0);
        }
    }
    let chains: Vec<_> = frame.nodes.iter().flat_map(chain_rows).collect();
    if !chains.is_empty() {
        text.push('\n');
        let chains = std::iter::once(CHAIN_HEADS.map(str::to_owned)).chain(chains);
        text.push_str(&aligned(&chains.collect::<Vec<_>>(), 2, columns));
    }
    text.truncate(text.trim_end().len());
    text
}

fn node_row(layout: &Layout, node: &NodeFrame) -> [String; 12] {
    let id = node.id.0.to_string();
    let addr = node.addr.to_string();
    let Ok((status, rates)) = &node.answer else {
        let mut row = [NOTHING; 12].map(str::to_owned);
        row[..3].clone_from_slice(&[id, addr, "unreachable".to_owned()]);
        return row;
    };
    let count = |rate: Option<f64>| rate.map_or_else(|| NOTHING.to_owned(), short_count);
    let bytes = |rate: Option<f64>| rate.map_or_else(|| NOTHING.to_owned(), |rate| short_bytes(rate as u64));
    [
        id,
        addr,
        state(layout, node.id, status).to_owned(),
        span(status.uptime_ms / 1000),
        count(rates.appends),
        bytes(rates.bytes_written),
        count(rates.reads),
        bytes(rates.bytes_read),
        count(rates.tokens),
        rates.cpu_percent.map_or_else(|| NOTHING.to_owned(), |percent| format!("{percent:.0}%")),
        // Of nodes that share a process one states its memory.
        if status.rss_bytes > 0 { short_bytes(status.rss_bytes) } else { NOTHING.to_owned() },
        ChainFrame::of(status).map_or_else(|| NOTHING.to_owned(), |chain| short_bytes(chain.queued_bytes)),
    ]
}

fn chain_rows(node: &NodeFrame) -> Vec<[String; 11]> {
    let answer = node.answer.as_ref().ok();
    let rows = answer.and_then(|(status, _)| Some((status, ChainFrame::of(status)?)));
    let Some((status, chain)) = rows else { return Vec::new() };
    let mut rows = vec![chain_row(node.id.0, &chain, status)];
    rows.extend(drives(status).map(|drive| {
        let place = match &drive {
            DriveState { is_leaving: true, .. } => "leaving",
            DriveState { is_stale: true, .. } => "stale",
            DriveState { is_asleep: true, .. } => "asleep",
            DriveState { is_tail: true, .. } => "tail",
            _ => "body",
        };
        let mut row = [const { String::new() }; 11];
        row[..5].clone_from_slice(&[
            format!("  drive {}", drive.place),
            place.to_owned(),
            drive.segments.to_string(),
            drive.free.to_string(),
            drive.live.to_string(),
        ]);
        row
    }));
    rows
}

fn chain_row(node: u64, chain: &ChainFrame, status: &NodeStatus) -> [String; 11] {
    let (mut segments, mut free, mut live) = (0, 0, 0);
    for drive in drives(status) {
        segments += drive.segments;
        free += drive.free;
        live += drive.live;
    }
    [
        format!("node {node}"),
        if chain.is_cleaning { "cleaning" } else { "" }.to_owned(),
        segments.to_string(),
        free.to_string(),
        live.to_string(),
        chain.segments_open.to_string(),
        chain.segments_closed.to_string(),
        short_bytes(chain.free_bytes),
        format!("{} + {}", short_bytes(chain.tail_cache_bytes), short_bytes(chain.footer_cache_bytes)),
        format!("{}, {} moved", chain.segments_cleaned, short_bytes(chain.moved_bytes)),
        chain.damaged_places.to_string(),
    ]
}

/// Seconds in the largest unit that leaves at least two of it.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Rows with their columns below each other: the first `left` begin together, the others end together. What has no place in `width`
/// stands below, again behind the first column.
fn aligned<const N: usize>(rows: &[[String; N]], left: usize, width: usize) -> String {
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(widest).collect();
    let (mut text, mut first) = (String::new(), 1);
    while first < N {
        let mut taken = widths[0];
        let fits = |column: &usize| {
            taken += GAP.len() + widths[*column];
            *column == first || taken <= width
        };
        let part = first..first + (first..N).take_while(fits).count();
        for row in
            rows.iter().filter(|row| first == 1 || row[part.clone()].iter().any(|cell| !cell.is_empty()))
        {
            let mut line = format!("{:<1$}", row[0], widths[0]);
            for column in part.clone() {
                let (cell, width) = (&row[column], widths[column]);
                // Writing to a String cannot fail.
                let _ = match column < left {
                    true => write!(line, "{GAP}{cell:<width$}"),
                    false => write!(line, "{GAP}{cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        first = part.end;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::frame::tests::example;

    #[test]
    fn a_frame_is_two_tables_and_the_reason_why_a_node_is_missing() {
        ithaca_env::real::golden::check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/top.txt"),
            &format!("{}\n", render(&example(), usize::MAX)),
        );
    }

    #[test]
    fn a_table_that_is_wider_than_the_terminal_goes_on_below_itself() {
        // Columns that are cut off are missed by nobody who does not know of them.
        let whole = render(&example(), usize::MAX);
        for columns in [80, 60] {
            let told = render(&example(), columns);
            let lines = || told.lines().skip(2);
            assert!(lines().all(|line| line.chars().count() <= columns), "{told}");
            let heads = NODE_HEADS.iter().chain(&CHAIN_HEADS);
            heads.for_each(|head| assert!(told.contains(head), "{columns}: {head}: {told}"));
            assert!(lines().any(|line| line.starts_with("1 ") && line.ends_with("97.0M  64.0K")), "{told}");
            assert!(lines().count() > whole.lines().skip(2).count(), "{told}");
        }
    }

    #[test]
    fn a_node_without_room_is_full() {
        let mut frame = example();
        let (status, _) = frame.nodes[0].answer.as_mut().expect("it answers");
        status.counters.push(("is_full".to_owned(), 1));
        let told = render(&frame, usize::MAX);
        assert!(told.contains("10.0.0.1:7420  full "), "{told}");
        let json = crate::top::json::object(&frame).finish();
        assert!(json.contains("\"state\":\"full\""), "{json}");
    }

    #[test]
    fn a_span_has_at_least_two_of_its_unit() {
        for (seconds, shown) in [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (172_800, "2d")] {
            assert_eq!(span(seconds), shown);
        }
    }
}
