//! Metrics in Prometheus' text format: `ithaca_<area>_<what>_<unit>`, with `_total` where the value only grows.

use std::fmt::Write;

use ithaca_log::wire::{Durability, NodeStatus};

/// The type that scrapers expect.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One metric of a node; `None` where the node has none.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&NodeStatus) -> Option<String>,
}

const METRICS: &[Metric] = &[
    Metric {
        name: "ithaca_node_cpu_seconds_total",
        kind: "counter",
        help: "Processor time, user and system, of the node's process.",
        value: |node| Some(format!("{}.{:06}", node.cpu_us / 1_000_000, node.cpu_us % 1_000_000)),
    },
    Metric {
        name: "ithaca_node_resident_memory_bytes",
        kind: "gauge",
        help: "Resident memory of the node's process.",
        value: |node| Some(node.rss_bytes.to_string()),
    },
    Metric {
        name: "ithaca_node_uptime_seconds",
        kind: "gauge",
        help: "Time since the node started.",
        value: |node| Some(format!("{}.{:03}", node.uptime_ms / 1000, node.uptime_ms % 1000)),
    },
    Metric {
        name: "ithaca_node_fsync",
        kind: "gauge",
        help: "1 if an acknowledged write is on stable storage, 0 if it is in memory only.",
        value: |node| Some(u8::from(node.durability == Durability::Fsync).to_string()),
    },
    Metric {
        name: "ithaca_sequencer_tail_position",
        kind: "gauge",
        help: "The next position that the sequencer hands out.",
        value: |node| node.tail.map(|pos| pos.0.to_string()),
    },
    Metric {
        name: "ithaca_unit_watermark_address",
        kind: "gauge",
        help: "Every address of the unit below it is resolved and durable.",
        value: |node| node.watermark.map(|addr| addr.0.to_string()),
    },
];

/// What nodes count: their name for it, the metric's, and its meaning.
const COUNTED: &[(&str, &str, &str)] = &[
    ("connections", "ithaca_node_connections_total", "Connections that were accepted."),
    ("tokens", "ithaca_sequencer_tokens_total", "Positions that were handed out."),
    ("appends", "ithaca_forwarder_appends_total", "Batches of appends that came whole."),
    ("writes", "ithaca_unit_writes_total", "Runs that were to be written, each of one or more entries."),
    ("entries_written", "ithaca_unit_entries_written_total", "Entries that were to be written."),
    ("bytes_written", "ithaca_unit_written_bytes_total", "Bytes of entries that were to be written."),
    ("reads", "ithaca_unit_reads_total", "Read requests."),
    (
        "entries_read",
        "ithaca_unit_entries_read_total",
        "Entries that readers and followers were sent, junk included.",
    ),
    ("bytes_read", "ithaca_unit_read_bytes_total", "Bytes of entries that readers and followers were sent."),
    ("fills", "ithaca_unit_fills_total", "Requests to make junk of holes."),
    ("trims", "ithaca_unit_trims_total", "Requests to trim."),
    ("cold_read_bytes", "ithaca_unit_cold_read_bytes", "Memory that reads hold which need the drive."),
    (
        "cold_reads_waiting",
        "ithaca_unit_cold_reads_waiting",
        "Reads that need the drive and wait for memory.",
    ),
    ("groups", "ithaca_chain_groups_total", "Atomic writes to the drive."),
    ("group_bytes", "ithaca_chain_group_bytes_total", "Bytes of those, headers and padding included."),
    ("data_bytes", "ithaca_chain_data_bytes_total", "Bytes of entries in those."),
    ("footer_bytes", "ithaca_chain_footer_bytes_total", "Bytes of footers of closed segments."),
    ("segments_closed", "ithaca_chain_closed_segments", "Segments with a footer."),
    ("segments_ready", "ithaca_chain_ready_segments", "Free segments that were written over before."),
    ("segments_open", "ithaca_chain_open_segments", "Segments that are being filled."),
    ("records", "ithaca_chain_records", "Records in all segments, released or not."),
    ("free_bytes", "ithaca_chain_free_bytes", "Bytes that can still be written, the reserve included."),
    ("queued_bytes", "ithaca_chain_queued_bytes", "Bytes that wait to be written."),
    ("tail_cache_bytes", "ithaca_chain_tail_cache_bytes", "Memory that holds recent writes."),
    ("footer_cache_bytes", "ithaca_chain_footer_cache_bytes", "Memory that holds parts of footers."),
    (
        "tail_reads_memory",
        "ithaca_chain_tail_reads_memory_total",
        "Runs on the tail drive, read from memory.",
    ),
    (
        "tail_reads_cache",
        "ithaca_chain_tail_reads_cache_total",
        "Runs on the tail drive, read from the cache drive.",
    ),
    ("tail_reads_missed", "ithaca_chain_tail_reads_missed_total", "Runs that were read from the tail drive."),
    ("body_reads_memory", "ithaca_chain_body_reads_memory_total", "Runs on other drives, read from memory."),
    (
        "body_reads_cache",
        "ithaca_chain_body_reads_cache_total",
        "Runs on other drives, read from the cache drive.",
    ),
    ("body_reads_missed", "ithaca_chain_body_reads_missed_total", "Runs that were read from other drives."),
    ("is_cleaning", "ithaca_chain_cleaning", "1 while a segment is being cleaned."),
    ("lost_entries_found", "ithaca_node_lost_entries_total", "Entries that the node's drives had lost."),
    (
        "lost_entries_repaired",
        "ithaca_node_repaired_entries_total",
        "Lost entries that were copied from another replica.",
    ),
    (
        "lost_entries_left",
        "ithaca_node_lost_entries",
        "Lost entries that could not be copied from another replica yet.",
    ),
    ("is_full", "ithaca_chain_is_full", "1 while the unit has no room for entries."),
    (
        "appends_refused_full",
        "ithaca_sequencer_is_full",
        "1 while appends are refused because too few units have room.",
    ),
    ("streams_watched", "ithaca_sequencer_watched_streams", "Streams that followers wait for."),
    ("segments_cleaned", "ithaca_chain_cleaned_segments_total", "Segments that were cleaned."),
    ("moved_bytes", "ithaca_chain_moved_bytes_total", "Bytes of entries that cleaning wrote again."),
    ("segments_scrubbed", "ithaca_chain_scrubbed_segments_total", "Segments that were read to find harm."),
    ("repaired_places", "ithaca_chain_repaired_places_total", "Harmed places that were written again."),
    ("damaged_places", "ithaca_chain_damaged_places", "Places on the drive that are known to be damaged."),
];

/// The page: every metric of every node, then what the nodes count.
pub fn render(nodes: &[NodeStatus]) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let values = nodes.iter().filter_map(|node| Some((node.node.0, (metric.value)(node)?)));
        family(&mut text, metric.name, metric.kind, metric.help, values);
    }
    let mut names: Vec<&str> =
        nodes.iter().flat_map(|node| &node.counters).map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let values = nodes.iter().flat_map(|node| {
            let own = node.counters.iter().filter(|(counted, _)| counted == name);
            own.map(|(_, value)| (node.node.0, value.to_string()))
        });
        let (metric, help) = metric_of(name);
        let kind = if metric.ends_with("_total") { "counter" } else { "gauge" };
        family(&mut text, &metric, kind, help, values);
    }
    text
}

/// The metric of what a node counts. One that this program does not know (the node may be newer) keeps its name, what the
/// format does not allow in it becoming `_`.
fn metric_of(counted: &str) -> (String, &'static str) {
    if let Some((_, metric, help)) = COUNTED.iter().find(|(name, ..)| *name == counted) {
        return ((*metric).to_owned(), help);
    }
    let clean = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    (format!("ithaca_node_{}", counted.chars().map(clean).collect::<String>()), "Counted by the node.")
}

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl Iterator<Item = (u64, String)>,
) {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (node, value) in values {
        let _ = writeln!(text, "{name}{{node=\"{node}\"}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use ithaca_log::pos::{LogPos, NodeId};

    use super::*;

    #[test]
    fn a_metric_is_named_once_and_has_a_line_for_each_node_that_has_it() {
        let node = |id, tail: Option<u64>| NodeStatus {
            node: NodeId(id),
            tail: tail.map(LogPos),
            counters: vec![("entries_written".into(), id * 10)],
            ..NodeStatus::default()
        };
        let text = render(&[node(1, Some(42)), node(2, None)]);
        let lines: Vec<&str> =
            text.lines().filter(|line| line.contains("tail") || line.contains("entries")).collect();
        assert_eq!(
            lines,
            [
                "# HELP ithaca_sequencer_tail_position The next position that the sequencer hands out.",
                "# TYPE ithaca_sequencer_tail_position gauge",
                "ithaca_sequencer_tail_position{node=\"1\"} 42",
                "# HELP ithaca_unit_entries_written_total Entries that were to be written.",
                "# TYPE ithaca_unit_entries_written_total counter",
                "ithaca_unit_entries_written_total{node=\"1\"} 10",
                "ithaca_unit_entries_written_total{node=\"2\"} 20",
            ]
        );
    }

    #[test]
    fn a_counter_that_is_not_known_still_makes_a_valid_name() {
        assert_eq!(metric_of("flush-p50.us").0, "ithaca_node_flush_p50_us");
        assert_eq!(metric_of("tokens").0, "ithaca_sequencer_tokens_total");
    }
}
