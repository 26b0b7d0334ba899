//! `ithaca cluster status`: the layout, and what each of its nodes says of itself.

use std::fmt::Write;
use std::pin::pin;
use std::rc::Rc;

use ithaca_env::task::{Ended, race};
use ithaca_env::{Env, real};
use ithaca_log::client::{NodeAnswer, Sight, standing};
use ithaca_log::layout::{Layout, OPEN_END, RangeMap};
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::wire::{Durability, NodeStatus, Roles};

use crate::cli::Global;
use crate::client::{observe, with_client_in};
use crate::failure::Failure;
use crate::json::{Object, array, quoted};
use crate::output::Output;

/// Drives of a node that are shown: as many as its counters can tell of.
const DRIVES_MAX: u64 = ithaca_log::limits::COUNTERS_MAX_COUNT as u64;

/// Everything that is shown.
struct Status {
    layout: Rc<Layout>,
    tail: Option<LogPos>,
    nodes: Vec<NodeAnswer>,
}

/// Prints the status; fails if the cluster or a node of it does not answer, after what is known was printed.
pub fn status(global: &Global, out: &mut Output) -> Result<(), Failure> {
    let (status, failed) = real::run(async |env| ask(&env, global).await)?;
    out.either(|| status.human(), || status.json())?;
    out.flush()?;
    let silent = status.nodes.iter().find_map(|(_, _, answer)| answer.as_ref().err());
    match failed.or_else(|| silent.map(|error| Failure::from(error.clone()).context("cluster status"))) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// What is known, and why that is not all. Errors: why nothing is.
async fn ask(env: &Env, global: &Global) -> Result<(Status, Option<Failure>), Failure> {
    let asking = with_client_in(env, global, "cluster status", async |_, client| {
        let (tail, nodes) = (client.check().await?.tail, client.status().await?);
        // Last, since a layout that is over is found out by the answers of the others.
        Ok(Status { layout: client.layout().await?, tail: Some(tail), nodes })
    });
    Ok(match or_seen(env, global, asking).await? {
        Ok(status) => (status, None),
        Err((Sight { layout, nodes }, failure)) => (Status { layout, tail: None, nodes }, Some(failure)),
    })
}

/// What comes of `asking`; if it fails, who is there all the same, and why it failed: too few of those who decide may be there, or nobody who hands
/// out positions. Errors: that, if nobody is there.
pub async fn or_seen<T>(
    env: &Env,
    global: &Global,
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<Result<T, (Sight, Failure)>, Failure> {
    // It is looked for at the same time, since the first may take all of it.
    let (mut asking, mut seeing) = (pin!(asking), pin!(seen(env, global)));
    let (asked, seen) = match race(asking.as_mut(), seeing.as_mut()).await {
        Ended::First(Ok(told)) => return Ok(Ok(told)),
        Ended::First(Err(failure)) => (Err(failure), seeing.await),
        Ended::Second(seen) => (asking.await, seen),
    };
    match (asked, seen) {
        (Ok(told), _) => Ok(Ok(told)),
        (Err(failure), Ok(sight)) => Ok(Err((sight, failure))),
        (Err(failure), Err(_)) => Err(failure),
    }
}

/// What the nodes say of themselves, whoever of them is there.
async fn seen(env: &Env, global: &Global) -> Result<Sight, Failure> {
    Ok(observe(env, global).await?.look().await)
}

impl Status {
    /// What is refused because too few nodes have room, in words: everything by the sequencer, where it is told; else by the units themselves
    /// what finds no place in what they have left.
    fn refused_full(&self) -> Option<&'static str> {
        let answers: Vec<&NodeStatus> =
            self.nodes.iter().filter_map(|(_, _, answer)| answer.as_ref().ok()).collect();
        if answers.iter().any(|node| counted(node, "appends_refused_full") == Some(1)) {
            return Some("nothing is appended");
        }
        let count = |is_full| answers.iter().filter(|node| counted(node, "is_full") == Some(is_full)).count();
        let too_few = answers.len() == self.nodes.len() && count(0) < usize::from(self.layout.replicas);
        // A cluster may have fewer nodes than copies, all of which have room.
        let is_full = too_few && count(1) > 0;
        is_full.then_some("entries are refused, the large ones first")
    }

    /// Whether entries of every size can be appended.
    fn is_appendable(&self) -> bool {
        self.tail.is_some() && self.layout.shortage().is_none() && self.refused_full().is_none()
    }

    fn json(&self) -> Object {
        let nodes = self.nodes.iter().map(|(id, addr, answer)| {
            let object = Object::new().number("id", id.0).string("addr", &addr.to_string());
            match answer {
                Ok(node) => object
                    .string("state", state(&self.layout, *id, node))
                    .raw("roles", &array(node.roles.names().map(quoted)))
                    .string("durability", durability(node.durability))
                    .number("cpu_us", node.cpu_us)
                    .number("rss_bytes", node.rss_bytes)
                    .number("uptime_ms", node.uptime_ms)
                    .number("lost_entries", counted(node, "lost_entries_found").unwrap_or(0))
                    .number("lost_entries_repaired", counted(node, "lost_entries_repaired").unwrap_or(0))
                    .number("lost_entries_left", counted(node, "lost_entries_left").unwrap_or(0))
                    .raw("drives", &array(drives(node).map(drive_json))),
                Err(error) => object.string("state", "unreachable").string("error", &error.to_string()),
            }
            .finish()
        });
        Object::new()
            .number("epoch", self.layout.epoch.0)
            .number("sequencer", self.layout.sequencer.0)
            .optional("tail", self.tail.map(|tail| tail.0))
            .raw("ranges", &array(self.layout.ranges.iter().map(range_json)))
            .raw("nodes", &array(nodes))
            .number("min_replicas", u64::from(self.layout.min_replicas))
            .boolean("appendable", self.is_appendable())
            .number("copies_missing", self.layout.missing().len() as u64)
            .string("cluster", &self.layout.cluster.to_string())
    }

    fn human(&self) -> String {
        let mut text = format!(
            "epoch {}: node {} hands out positions; the next is {}",
            self.layout.epoch.0,
            self.layout.sequencer.0,
            self.tail.map_or_else(|| "not known".to_owned(), |tail| tail.to_string()),
        );
        // Writing to a String cannot fail.
        if let Some((kept, needed)) = self.layout.shortage() {
            let _ = write!(text, "\nnothing is appended: {kept} of {needed} copies can be kept");
        }
        if let Some(refused) = self.refused_full() {
            let copies = self.layout.replicas;
            let _ = write!(text, "\n{refused}: fewer than {copies} nodes have room; trim what is not needed");
        }
        for range in &self.layout.ranges {
            let _ = write!(text, "\n{}", range_line(range));
        }
        for (id, addr, answer) in &self.nodes {
            let _ = match answer {
                Ok(node) => write!(
                    text,
                    "\nnode {} at {addr}: {}, up {} s, {}, durability {}, {} MiB of memory{}{}",
                    id.0,
                    state(&self.layout, *id, node),
                    node.uptime_ms / 1000,
                    roles(node),
                    durability(node.durability),
                    node.rss_bytes >> 20,
                    lost_line(node),
                    drives(node).map(|drive| drive_line(&drive)).collect::<String>(),
                ),
                Err(error) => write!(text, "\nnode {} at {addr}: unreachable: {error}", id.0),
            };
        }
        text
    }
}

/// What a node is doing, in a word.
pub fn state(layout: &Layout, id: NodeId, node: &NodeStatus) -> &'static str {
    match standing(layout, id) {
        "up" if counted(node, "is_full") == Some(1) => "full",
        word => word,
    }
}

/// What a node is for; of one that has nothing to do at present, what it offers.
fn roles(node: &NodeStatus) -> String {
    match node.roles {
        Roles(0) => format!("{}, in waiting", node.offers),
        roles => roles.to_string(),
    }
}

/// What a node's drives have lost, if anything, and what became of it.
fn lost_line(node: &NodeStatus) -> String {
    let count = |name| counted(node, name).unwrap_or(0);
    match (count("lost_entries_found"), count("lost_entries_repaired"), count("lost_entries_left")) {
        (0, _, _) => String::new(),
        (found, repaired, left) => {
            format!(
                "\n  {found} entries were lost, {repaired} copied from other nodes, {left} could not be yet"
            )
        }
    }
}

/// What a unit says of one of its drives.
pub struct DriveState {
    /// Where in the chain it is, from 1.
    pub place: u64,
    /// Segments it has.
    pub segments: u64,
    /// Segments that are free.
    pub free: u64,
    /// Segments that hold records.
    pub live: u64,
    /// Whether the log is being written to it.
    pub is_tail: bool,
    /// Drives with the same number are sides of one mirrored link.
    pub link: u64,
    /// It has not everything: nothing is read from it.
    pub is_stale: bool,
    /// It is left alone: another side of its link serves all reads.
    pub is_asleep: bool,
    /// It is being removed.
    pub is_leaving: bool,
}

/// What a node counts under this name; `None` if it does not.
pub fn counted(node: &NodeStatus, name: &str) -> Option<u64> {
    let found = node.counters.iter().find(|(counter, _)| counter == name);
    found.map(|(_, value)| *value)
}

/// The drives of a node's unit, in the order of its chain.
pub fn drives(node: &NodeStatus) -> impl Iterator<Item = DriveState> {
    (1..=counted(node, "drives").unwrap_or(0).min(DRIVES_MAX)).map(move |place| {
        let value = |what| counted(node, &format!("drive_{place}_{what}")).unwrap_or(0);
        DriveState {
            place,
            segments: value("segments"),
            free: value("free"),
            live: value("live"),
            is_tail: value("tail") != 0,
            link: value("link"),
            is_stale: value("stale") != 0,
            is_asleep: value("asleep") != 0,
            is_leaving: value("leaving") != 0,
        }
    })
}

/// A drive for programs.
pub fn drive_json(drive: DriveState) -> String {
    Object::new()
        .number("drive", drive.place)
        .number("segments", drive.segments)
        .number("free", drive.free)
        .number("live", drive.live)
        .boolean("tail", drive.is_tail)
        .number("link", drive.link)
        .boolean("stale", drive.is_stale)
        .boolean("asleep", drive.is_asleep)
        .boolean("leaving", drive.is_leaving)
        .finish()
}

fn drive_line(drive: &DriveState) -> String {
    let tail = if drive.is_tail { ", the log is written here" } else { "" };
    let stale = if drive.is_stale { ", stale: missing or being rebuilt" } else { "" };
    let asleep = if drive.is_asleep { ", asleep" } else { "" };
    let leaving = if drive.is_leaving { ", leaving: what is needed of it is being moved" } else { "" };
    let DriveState { place, link, segments, free, live, .. } = drive;
    format!(
        "\n  drive {place}: link {link}, {segments} segments, {live} live, {free} free{tail}{stale}{asleep}{leaving}"
    )
}

/// A range for people.
pub fn range_line(range: &RangeMap) -> String {
    let sets: Vec<String> = range.stripes.iter().map(|stripe| names(&stripe.replicas)).collect();
    let end = if range.end == OPEN_END { "on".to_owned() } else { format!("to {}", range.end) };
    format!("positions from {} {end}: on nodes {}", range.start, sets.join(" / "))
}

/// A range for programs.
pub fn range_json(range: &RangeMap) -> String {
    let stripes = range.stripes.iter().map(|stripe| {
        let replicas = array(stripe.replicas.iter().map(|node| node.0.to_string()));
        Object::new().raw("replicas", &replicas).number("base", stripe.base.0).finish()
    });
    let end = if range.end == OPEN_END { "null".to_owned() } else { range.end.to_string() };
    Object::new().number("start", range.start.0).raw("end", &end).raw("stripes", &array(stripes)).finish()
}

fn names(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    names.join(" > ")
}

fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => "fsync",
        Durability::Memory => "memory",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ithaca_env::sim::Sim;

    use super::*;
    use crate::client::tests::given;
    use crate::failure::Exit;

    #[test]
    fn a_node_without_a_role_says_what_it_offers() {
        let waiting = NodeStatus { offers: Roles::SEQUENCER, ..NodeStatus::default() };
        assert_eq!(roles(&waiting), "sequencer, in waiting");
        assert_eq!(roles(&NodeStatus { roles: Roles::UNIT, ..waiting }), "unit");
    }

    #[test]
    fn an_endpoint_that_is_silent_takes_the_time_that_was_given_once() {
        // Whoever had given it five seconds waited for ten.
        let sim = Sim::new(1);
        let process = sim.process("operator", [10, 0, 0, 1].into());
        let env = sim.env(process);
        sim.block_on(process, async move {
            let silent = env.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
            let global = given(&silent.local_addr().to_string());
            let began = env.now();
            let told = ask(&env, &global).await.err();
            assert!(matches!(told, Some(Failure::Told { exit: Exit::Unreachable, .. })), "{told:?}");
            assert!(env.now().since(began) <= global.timeout, "{:?}", env.now().since(began));
            assert_eq!(global.timeout, Duration::from_secs(1));
        });
    }
}
