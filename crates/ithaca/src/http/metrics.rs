//! Metrics in Prometheus' text format: `ithaca_<area>_<what>_<unit>`, with `_total` where the value only grows.

use std::collections::BTreeMap;
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
    (
        "token_conflicts",
        "ithaca_sequencer_token_conflicts_total",
        "Conditional appends that were refused because what they depend on was written.",
    ),
    (
        "tokens_too_old",
        "ithaca_sequencer_tokens_too_old_total",
        "Conditional appends that were refused because it is not remembered what was written so far back.",
    ),
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
    (
        "stream_index_bytes",
        "ithaca_unit_stream_index_bytes",
        "Memory that says where entries of streams are.",
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
    (
        "view_questions_under_way",
        "ithaca_node_view_questions",
        "Questions about objects that are being answered.",
    ),
    ("streams_watched", "ithaca_sequencer_watched_streams", "Streams that followers wait for."),
    ("segments_cleaned", "ithaca_chain_cleaned_segments_total", "Segments that were cleaned."),
    ("moved_bytes", "ithaca_chain_moved_bytes_total", "Bytes of entries that cleaning wrote again."),
    ("segments_scrubbed", "ithaca_chain_scrubbed_segments_total", "Segments that were read to find harm."),
    ("repaired_places", "ithaca_chain_repaired_places_total", "Harmed places that were written again."),
    ("damaged_places", "ithaca_chain_damaged_places", "Places on the drive that are known to be damaged."),
    (
        "drives",
        "ithaca_chain_drives",
        "Drives of the chain that metrics tell of, each side of a mirrored one by itself.",
    ),
];

/// The same of each drive, for which nodes count `drive_N_<what>`: N is its number in the chain, and a label.
const COUNTED_OF_DRIVES: &[(&str, &str, &str)] = &[
    ("segments", "ithaca_chain_drive_segments", "Segments of the drive."),
    ("free", "ithaca_chain_drive_free_segments", "Free segments of the drive."),
    ("live", "ithaca_chain_drive_live_segments", "Segments of the drive that hold records."),
    ("tail", "ithaca_chain_drive_is_tail", "1 for a drive that the log is written to."),
    ("link", "ithaca_chain_drive_link", "Number of the drive's link, which sides of a mirrored drive share."),
    ("stale", "ithaca_chain_drive_is_stale", "1 while the drive lacks some of what was acknowledged."),
    ("asleep", "ithaca_chain_drive_is_asleep", "1 while the drive is left alone."),
    ("leaving", "ithaca_chain_drive_is_leaving", "1 while the drive is being removed."),
];

/// The page: every metric of every node, then what the nodes count.
pub fn render(nodes: &[NodeStatus]) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let values = nodes.iter().filter_map(|node| Some((labels(node, None), (metric.value)(node)?)));
        family(&mut text, metric.name, metric.kind, metric.help, values);
    }
    let mut counted = BTreeMap::new();
    for node in nodes {
        for (name, value) in &node.counters {
            let Counted { metric, help, drive } = Counted::of(name);
            let (_, values) = counted.entry(metric).or_insert((help, Vec::new()));
            values.push((labels(node, drive), value.to_string()));
        }
    }
    for (metric, (help, values)) in counted {
        let kind = if metric.ends_with("_total") { "counter" } else { "gauge" };
        family(&mut text, &metric, kind, help, values.into_iter());
    }
    text
}

/// What the metric of something is that a node counts.
struct Counted<'a> {
    metric: String,
    help: &'static str,
    /// The number of the drive that it is about, if it is about one.
    drive: Option<&'a str>,
}

impl<'a> Counted<'a> {
    /// One that this program does not know (the node may be newer) keeps its name, what the format does not allow in it becoming `_`.
    fn of(counted: &'a str) -> Self {
        let of_drive = counted.strip_prefix("drive_").and_then(|rest| rest.split_once('_'));
        let (table, name, drive) = match of_drive {
            Some((drive, name)) => (COUNTED_OF_DRIVES, name, Some(drive)),
            None => (COUNTED, counted, None),
        };
        if let Some((_, metric, help)) = table.iter().find(|(known, ..)| *known == name) {
            return Self { metric: (*metric).to_owned(), help, drive };
        }
        let clean = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let metric = format!("ithaca_node_{}", counted.chars().map(clean).collect::<String>());
        Self { metric, help: "Counted by the node.", drive: None }
    }
}

fn labels(node: &NodeStatus, drive: Option<&str>) -> String {
    let node = node.node.0;
    drive.map_or_else(|| format!("node=\"{node}\""), |drive| format!("node=\"{node}\",drive=\"{drive}\""))
}

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl Iterator<Item = (String, String)>,
) {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{{{labels}}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use ithaca_log::pos::{LogPos, NodeId};
    use ithaca_log::server::{LocalCluster, LocalOptions};

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
    fn what_a_cluster_counts_has_a_kind_and_a_meaning() {
        // A counter that is called a gauge gives wrong rates, and one that is only "counted" says nothing.
        let dir = tempfile::tempdir().expect("a directory");
        let text = ithaca_env::real::run(async |env| {
            let mut options = LocalOptions::new(dir.path(), ([127, 0, 0, 1], 0).into());
            options.create_bytes = 64 << 20;
            render(&LocalCluster::start(&env, options).await.expect("it starts").status())
        });
        assert!(!text.contains("Counted by the node."), "{text}");
        for line in [
            "# TYPE ithaca_sequencer_token_conflicts_total counter",
            "# TYPE ithaca_chain_drive_segments gauge",
            "ithaca_chain_drive_is_tail{node=\"1\",drive=\"1\"} 1",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} in {text}");
        }
    }

    #[test]
    fn drives_of_a_node_are_told_apart_by_a_label() {
        let counted = [("drives", 2), ("drive_1_free", 7), ("drive_2_free", 9), ("drive_2_warmth", 1)];
        let counters = counted.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let text = render(&[NodeStatus { node: NodeId(3), counters, ..NodeStatus::default() }]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("drive")).collect();
        assert_eq!(
            lines,
            [
                "# HELP ithaca_chain_drive_free_segments Free segments of the drive.",
                "# TYPE ithaca_chain_drive_free_segments gauge",
                "ithaca_chain_drive_free_segments{node=\"3\",drive=\"1\"} 7",
                "ithaca_chain_drive_free_segments{node=\"3\",drive=\"2\"} 9",
                "# HELP ithaca_chain_drives Drives of the chain that metrics tell of, each side of a mirrored one by itself.",
                "# TYPE ithaca_chain_drives gauge",
                "ithaca_chain_drives{node=\"3\"} 2",
                "# HELP ithaca_node_drive_2_warmth Counted by the node.",
                "# TYPE ithaca_node_drive_2_warmth gauge",
                "ithaca_node_drive_2_warmth{node=\"3\"} 1",
            ]
        );
    }

    #[test]
    fn a_counter_that_is_not_known_still_makes_a_valid_name() {
        assert_eq!(Counted::of("flush-p50.us").metric, "ithaca_node_flush_p50_us");
        assert_eq!(Counted::of("tokens").metric, "ithaca_sequencer_tokens_total");
    }
}
