//! Everything that is shown at one time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use ithaca_log::client::Sight;
use ithaca_log::layout::Layout;
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::wire::{NodeStatus, Roles};

use super::rates::Rates;
use crate::cluster::counted;

/// A cluster at one time.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The newest layout that is known.
    pub layout: Rc<Layout>,
    /// The next position, if the sequencer says.
    pub tail: Option<LogPos>,
    /// The nodes of the layout, in the order of their ids.
    pub nodes: Vec<NodeFrame>,
}

/// A node at one time.
#[derive(Clone, Debug)]
pub struct NodeFrame {
    /// The node.
    pub id: NodeId,
    /// Where it serves.
    pub addr: SocketAddr,
    /// What it says and does, or why it could not be reached.
    pub answer: Result<(NodeStatus, Rates), String>,
}

/// What the chain under a unit says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainFrame {
    /// Segments that are being filled.
    pub segments_open: u64,
    /// Segments with a footer.
    pub segments_closed: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Memory that holds recent writes, in bytes.
    pub tail_cache_bytes: u64,
    /// Memory that holds parts of footers, in bytes.
    pub footer_cache_bytes: u64,
    /// Places on the drives that are known to be damaged.
    pub damaged_places: u64,
    /// Whether a segment is being cleaned.
    pub is_cleaning: bool,
    /// Segments that were cleaned since the node started.
    pub segments_cleaned: u64,
    /// Bytes of entries that this wrote again.
    pub moved_bytes: u64,
}

impl ChainFrame {
    /// The chain of a node, if it has one.
    pub fn of(status: &NodeStatus) -> Option<Self> {
        let count = |name: &str| counted(status, name).unwrap_or(0);
        status.roles.has(Roles::UNIT).then(|| Self {
            segments_open: count("segments_open"),
            segments_closed: count("segments_closed"),
            free_bytes: count("free_bytes"),
            queued_bytes: count("queued_bytes"),
            tail_cache_bytes: count("tail_cache_bytes"),
            footer_cache_bytes: count("footer_cache_bytes"),
            damaged_places: count("damaged_places"),
            is_cleaning: count("is_cleaning") != 0,
            segments_cleaned: count("segments_cleaned"),
            moved_bytes: count("moved_bytes"),
        })
    }
}

/// The last status of each node, which rates are measured from.
#[derive(Debug, Default)]
pub struct History {
    last: BTreeMap<NodeId, NodeStatus>,
}

impl History {
    /// The frame of what was just seen. A node that was silent for a while has its rates over all of that time.
    pub fn frame(&mut self, sight: Sight) -> Frame {
        let nodes: Vec<NodeFrame> = sight
            .nodes
            .into_iter()
            .map(|(id, addr, answer)| {
                let with_rates = |status: NodeStatus| {
                    let before = self.last.insert(id, status.clone());
                    let rates = before.map(|before| Rates::between(&before, &status));
                    (status, rates.unwrap_or_default())
                };
                NodeFrame { id, addr, answer: answer.map(with_rates).map_err(|error| error.to_string()) }
            })
            .collect();
        self.last.retain(|id, _| nodes.iter().any(|node| node.id == *id));
        let sequencer = nodes.iter().find(|node| node.id == sight.layout.sequencer);
        let tail = sequencer.and_then(|node| node.answer.as_ref().ok()?.0.tail);
        Frame { layout: sight.layout, tail, nodes }
    }
}

#[cfg(test)]
pub mod tests {
    use ithaca_log::client::ClientError;
    use ithaca_log::layout::Node;
    use ithaca_log::pos::{ClusterId, Incarnation};

    use super::*;

    /// A node with a unit of two drives that has done `done` of everything.
    fn status(uptime_ms: u64, done: u64) -> NodeStatus {
        let counters = [
            ("tokens", done),
            ("entries_written", done),
            ("bytes_written", done * 512),
            ("entries_read", done / 2),
            ("bytes_read", done * 256),
            ("segments_closed", 41),
            ("segments_open", 1),
            ("free_bytes", 22 << 20),
            ("queued_bytes", 64 << 10),
            ("tail_cache_bytes", 16 << 20),
            ("footer_cache_bytes", 1 << 20),
            ("damaged_places", 2),
            ("is_cleaning", 1),
            ("segments_cleaned", 7),
            ("moved_bytes", 3 << 20),
            ("drives", 2),
            ("drive_1_segments", 32),
            ("drive_1_free", 0),
            ("drive_1_live", 32),
            ("drive_1_tail", 0),
            ("drive_2_segments", 32),
            ("drive_2_free", 22),
            ("drive_2_live", 10),
            ("drive_2_tail", 1),
        ];
        NodeStatus {
            node: NodeId(1),
            incarnation: Incarnation(9),
            roles: Roles::SEQUENCER.with(Roles::UNIT),
            cpu_us: done * 10,
            rss_bytes: 97 << 20,
            uptime_ms,
            tail: Some(LogPos(done)),
            counters: counters.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            ..NodeStatus::default()
        }
    }

    fn sight(first: NodeStatus) -> Sight {
        let node = |id: u64| {
            Node::new(
                NodeId(id),
                Roles::UNIT.with(Roles::SEQUENCER).with(Roles::LAYOUT),
                format!("10.0.0.{id}:7420"),
            )
        };
        let layout = Layout::single(ClusterId(0xab), node(1));
        let addr = |id: u8| SocketAddr::from(([10, 0, 0, id], 7420));
        let silent = ClientError::NoEndpoint;
        let nodes = vec![(NodeId(1), addr(1), Ok(first)), (NodeId(2), addr(2), Err(silent))];
        Sight { layout: Rc::new(layout), nodes }
    }

    /// Two seconds of a cluster whose second node does not answer.
    pub fn example() -> Frame {
        let mut history = History::default();
        history.frame(sight(status(100_000, 1_000_000)));
        history.frame(sight(status(102_000, 1_090_000)))
    }

    #[test]
    fn the_first_look_has_no_rates_and_the_second_has() {
        let mut history = History::default();
        let rates = |frame: &Frame| frame.nodes[0].answer.as_ref().expect("it answers").1;
        assert_eq!(rates(&history.frame(sight(status(100_000, 1_000)))), Rates::default());
        let second = history.frame(sight(status(101_000, 3_000)));
        assert_eq!((rates(&second).appends, second.tail), (Some(2000.0), Some(LogPos(3_000))));
    }
}
