//! What each event did to the log, and a table of it for each kind.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::super::ledger::Counts;
use super::super::results::Results;
use super::NetArguments;
use super::fault::Event;
use crate::measure::median;

/// What one event did.
pub struct Row {
    /// Which.
    pub event: Event,
    /// The longest time without an acknowledgement while it lasted.
    pub stall: Duration,
    /// From healing until an append was acknowledged that was begun after it.
    pub resumed: Option<Duration>,
    /// From then until every node was in use and no copy missing.
    pub whole: Option<Duration>,
    /// What became of appends meanwhile.
    pub counts: Counts,
}

impl Row {
    /// In one line.
    pub fn words(&self) -> String {
        let faults: Vec<String> = self.event.faults.iter().map(ToString::to_string).collect();
        let said =
            |span: Option<Duration>| span.map_or("never".to_string(), |span| format!("{:.0} ms", ms(span)));
        format!(
            "{} for {:.1} s: stalled {:.0} ms; healed, appends after {}, whole {} later; {} acknowledged, {} refused, {} unknown",
            faults.join(" + "),
            self.event.hold.as_secs_f64(),
            ms(self.stall),
            said(self.resumed),
            said(self.whole),
            self.counts.acked,
            self.counts.refused,
            self.counts.unknown,
        )
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// All events of a run.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds an event.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints a line for each kind, writes the results, and says how many rounds failed.
    pub fn finish(&self, arguments: &NetArguments, failed: u64) -> io::Result<()> {
        let what = format!(
            "{} clusters of {} nodes, {} copies, each node with a network and a drive of its own; events of {} to {} s; stall: longest time without an acknowledgement while the event lasts",
            arguments.rounds,
            arguments.nodes,
            arguments.replicas,
            arguments.hold_seconds.0,
            arguments.hold_seconds.1,
        );
        let columns = "event,count,stall_p50_ms,stall_max_ms,resumed_p50_ms,resumed_max_ms,whole_p50_ms,whole_max_ms,acked,refused,unknown";
        let mut results = Results::new(&what, columns);
        let mut kinds: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.rows {
            kinds.entry(row.event.name()).or_default().push(row);
        }
        println!("{columns}");
        for (name, rows) in &kinds {
            let line = line(name, rows);
            println!("{line}");
            results.row(&line);
        }
        let all = |of: fn(&Counts) -> u64| self.rows.iter().map(|row| of(&row.counts)).sum::<u64>();
        let summary = format!(
            "{{\"rounds\":{},\"failed\":{failed},\"events\":{},\"acked\":{},\"refused\":{},\"unknown\":{}}}",
            arguments.rounds,
            self.rows.len(),
            all(|counts| counts.acked),
            all(|counts| counts.refused),
            all(|counts| counts.unknown),
        );
        println!("{summary}");
        results.remark(&summary);
        results.write(&arguments.ground.results, "net")
    }
}

/// A kind's row. What never happened counts as an hour, so that it is seen.
fn line(name: &str, rows: &[&Row]) -> String {
    const NEVER: Duration = Duration::from_secs(3600);
    let pair = |of: fn(&Row) -> Duration| {
        let values = || rows.iter().map(|row| ms(of(row)));
        format!("{:.0},{:.0}", median(values()), values().fold(0.0, f64::max))
    };
    let sum = |of: fn(&Counts) -> u64| rows.iter().map(|row| of(&row.counts)).sum::<u64>();
    format!(
        "{name},{},{},{},{},{},{},{}",
        rows.len(),
        pair(|row| row.stall),
        pair(|row| row.resumed.unwrap_or(NEVER)),
        pair(|row| row.whole.unwrap_or(NEVER)),
        sum(|counts| counts.acked),
        sum(|counts| counts.refused),
        sum(|counts| counts.unknown),
    )
}
