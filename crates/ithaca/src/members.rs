//! `ithaca cluster init`, `add`, `remove`, `set`, `replace`, `layout`: who belongs to a cluster of servers.

use ithaca_env::real;
use ithaca_env::task::gather;
use ithaca_log::client::{
    CallError, FormError, Forming, GiveUpError, GivingUp, MembersError, Sight, form, give_up as give_up_nodes,
};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::planted::Planted;
use ithaca_log::pos::NodeId;
use ithaca_log::wire::Refusal;

use crate::cli::{Endpoint, Global, InitArgs};
use crate::client::{address_of, told_at, with_client, with_client_in};
use crate::cluster::{or_seen, range_json};
use crate::failure::Failure;
use crate::json::{Object, array};
use crate::output::Output;

impl From<FormError> for Failure {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Layout(_)
            | FormError::NotOffered { .. }
            | FormError::TooFewUnits { .. }
            | FormError::Formed { .. }
            | FormError::Node { error: CallError::Refused(Refusal::WrongNode { .. }), .. } => {
                Self::usage(error.to_string())
            }
            FormError::BadLayout { .. } | FormError::Node { .. } => Self::unreachable(error.to_string()),
        }
    }
}

impl From<MembersError> for Failure {
    fn from(error: MembersError) -> Self {
        let line = error.to_string();
        match error {
            MembersError::NoMember { .. } => Self::no(line),
            MembersError::Change(_) | MembersError::Removed { .. } => Self::usage(line),
            MembersError::NotNow(_)
            | MembersError::Joining { .. }
            | MembersError::Leaving { .. }
            | MembersError::Lost { .. }
            | MembersError::InUse { .. } => Self::unreachable(line),
            MembersError::Cluster(error) => error.into(),
            MembersError::Node(error) => error.into(),
        }
    }
}

impl From<GiveUpError> for Failure {
    fn from(error: GiveUpError) -> Self {
        let line = error.to_string();
        match error {
            GiveUpError::NoMember { .. } => Self::no(line),
            GiveUpError::There { .. }
            | GiveUpError::Heard { .. }
            | GiveUpError::Empty { .. }
            | GiveUpError::NotNeeded
            | GiveUpError::NobodyLeft
            | GiveUpError::Layout(_) => Self::usage(line),
            GiveUpError::Unknown(error) => error.into(),
            GiveUpError::Node(error @ FormError::Node { .. }) => Self::from(error)
                .and("nodes that are not named must be there: name it too if it is gone for good"),
            GiveUpError::Node(error) => error.into(),
            GiveUpError::Busy { .. } => Self::unreachable(line),
        }
    }
}

/// Makes one cluster of servers that belong to none.
pub fn init(global: &Global, arguments: &InitArgs, out: &mut Output) -> Result<(), Failure> {
    let count = arguments.nodes.len() as u16;
    let replicas = arguments.replicas.unwrap_or(2.min(count));
    let formed: Result<_, Failure> = real::run(async |env| {
        let mut nodes = Vec::new();
        for (node, at) in &arguments.nodes {
            nodes.push((*node, address_of(&env, at, global.timeout).await?));
        }
        let min_replicas = arguments.min_replicas.unwrap_or(replicas);
        let forming = Forming { nodes, replicas, min_replicas, timeout: global.timeout };
        Ok((form(&env, &forming).await?, forming))
    });
    let (layout, forming) = formed.map_err(|failure| failure.context("cluster init"))?;
    let nodes = layout.nodes.iter().map(|node| node.id.0.to_string());
    out.either(
        || {
            let names: Vec<String> = forming.nodes.iter().map(|(_, addr)| addr.to_string()).collect();
            format!(
                "cluster {} of {count} nodes, {replicas} copies of each entry; next: echo hello | ithaca log append --endpoint {}",
                layout.cluster,
                names.join(",")
            )
        },
        || {
            Object::new()
                .string("cluster", &layout.cluster.to_string())
                .number("epoch", layout.epoch.0)
                .raw("nodes", &array(nodes))
                .number("replicas", u64::from(replicas))
        },
    )?;
    out.flush()
}

/// Makes a server a member of the cluster.
pub fn add(global: &Global, (node, at): &(NodeId, Endpoint), out: &mut Output) -> Result<(), Failure> {
    let verb = format!("cluster add {}={at}", node.0);
    let (addr, layout) = with_client(global, &verb, async |env, client| {
        let addr = address_of(&env, at, global.timeout).await?;
        Ok((addr, client.add_node(*node, addr).await?))
    })?;
    out.either(
        || format!("node {} at {addr} is in use, in epoch {}", node.0, layout.epoch.0),
        || Object::new().number("node", node.0).number("epoch", layout.epoch.0).string("state", "up"),
    )?;
    out.flush()
}

/// Has a node leave the cluster for good.
pub fn remove(global: &Global, node: NodeId, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("cluster remove {}", node.0);
    let layout = with_client(global, &verb, async |_, client| {
        let layout = client.layout().await?;
        if layout.node(node).is_none() {
            return Err(MembersError::NoMember { node, cluster: layout.cluster }.into());
        }
        Ok(client.remove_node(node).await?)
    })?;
    out.either(
        || format!("node {} is no member of cluster {}, in epoch {}", node.0, layout.cluster, layout.epoch.0),
        || Object::new().number("node", node.0).number("epoch", layout.epoch.0).string("state", "removed"),
    )?;
    out.flush()
}

/// Goes on without nodes that are gone for good.
pub fn give_up(global: &Global, nodes: &[u64], out: &mut Output) -> Result<(), Failure> {
    let names = nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    let done: Result<_, Failure> = real::run(async |env| {
        let asked = global.endpoint.iter().map(|endpoint| address_of(&env, endpoint, global.timeout));
        let found: Vec<_> = gather(asked.collect(), |_| false).await.into_iter().flatten().collect();
        let mut endpoints = Vec::new();
        let mut unknown = None;
        for found in found {
            match found {
                Ok(addr) => endpoints.push(addr),
                Err(failure) => unknown = Some(failure),
            }
        }
        if let Some(failure) = unknown.filter(|_| endpoints.is_empty()) {
            return Err(failure);
        }
        let gone = nodes.iter().copied().map(NodeId).collect();
        Ok(give_up_nodes(
            &env,
            &GivingUp { endpoints, gone, timeout: global.timeout, planted: Planted::NONE },
        )
        .await?)
    });
    let done = done.map_err(|failure| told_at(global, &format!("cluster give-up {names}"), failure))?;
    let (epoch, tail) = (done.layout.epoch.0, done.layout.tail().0);
    let lost = done.lost.unwrap_or_default();
    let left: Vec<String> = done.layout.nodes.iter().map(|node| node.id.0.to_string()).collect();
    let left = left.join(" ");
    out.either(
        || match done.lost {
            Some(_) => format!(
                "in epoch {epoch} the cluster is of the nodes {left}; {lost} positions are lost, and the log goes on at {tail}"
            ),
            None => format!("in epoch {epoch} the cluster is of the nodes {left} already"),
        },
        || Object::new().number("epoch", epoch).number("tail", tail).number("lost", lost),
    )?;
    out.flush()
}

/// Says how many copies an append needs.
pub fn set(global: &Global, count: u16, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("cluster set --min-replicas {count}");
    let layout = with_client(global, &verb, async |_, client| Ok(client.set_min_replicas(count).await?))?;
    out.either(
        || format!("an append needs {count} copies, from epoch {} on", layout.epoch.0),
        || Object::new().number("min_replicas", count.into()).number("epoch", layout.epoch.0),
    )?;
    out.flush()
}

/// Has a server with an empty data directory take the place of a node that has lost its own.
pub fn replace(global: &Global, (node, at): &(NodeId, Endpoint), out: &mut Output) -> Result<(), Failure> {
    let verb = format!("cluster replace {}={at}", node.0);
    let (addr, layout) = with_client(global, &verb, async |env, client| {
        let addr = address_of(&env, at, global.timeout).await?;
        Ok((addr, client.replace_node(*node, addr).await?))
    })?;
    let is_used = layout.in_use().any(|used| used == *node);
    out.either(
        || match is_used {
            true => format!("node {} at {addr} is in use, in epoch {}", node.0, layout.epoch.0),
            false => {
                format!(
                    "node {} at {addr} knows the cluster; it is used as soon as the others hear it",
                    node.0
                )
            }
        },
        || Object::new().number("node", node.0).number("epoch", layout.epoch.0),
    )?;
    out.flush()
}

/// Shows the newest layout, and with `history` those before it.
pub fn layout(global: &Global, history: bool, out: &mut Output) -> Result<(), Failure> {
    let told = real::run(async |env| {
        let asking = with_client_in(&env, global, "cluster layout", async |_, client| {
            Ok(if history { client.layouts().await? } else { vec![client.layout().await?] })
        });
        or_seen(&env, global, asking).await
    })?;
    let (layouts, failed) = match told {
        Ok(layouts) => (layouts, Ok(())),
        Err((Sight { layout, .. }, failure)) => (vec![layout], Err(failure)),
    };
    for layout in layouts {
        out.either(|| human(&layout), || json(&layout))?;
    }
    out.flush()?;
    failed
}

fn json(layout: &Layout) -> Object {
    let nodes = layout.nodes.iter().map(|node| {
        Object::new()
            .number("id", node.id.0)
            .string("addr", &node.address)
            .boolean("in_use", node.state.is_used())
            .boolean("full", node.state == NodeState::Full)
            .finish()
    });
    let tails = layout.tails.iter();
    let tails = tails.map(|it| Object::new().number("epoch", it.epoch.0).number("tail", it.tail.0).finish());
    Object::new()
        .string("cluster", &layout.cluster.to_string())
        .number("epoch", layout.epoch.0)
        .number("sequencer", layout.sequencer.0)
        .number("replicas", u64::from(layout.replicas))
        .number("min_replicas", u64::from(layout.min_replicas))
        .raw("nodes", &array(nodes))
        .raw("ranges", &array(layout.ranges.iter().map(range_json)))
        .raw("tails", &array(tails))
}

fn human(layout: &Layout) -> String {
    let mut lines = vec![format!(
        "cluster {}, epoch {}: node {} hands out positions, {} copies of each entry, at least {}",
        layout.cluster, layout.epoch.0, layout.sequencer.0, layout.replicas, layout.min_replicas
    )];
    lines.extend(layout.nodes.iter().map(|node| {
        let state = match node.state {
            NodeState::InUse => "",
            NodeState::Full => ", full",
            NodeState::Out => ", out",
            NodeState::Leaving => ", leaving",
        };
        format!("node {} at {}{state}", node.id.0, node.address)
    }));
    lines.extend(layout.ranges.iter().map(crate::cluster::range_line));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use ithaca_log::layout::{Change, Node};
    use ithaca_log::pos::{ClusterId, LogPos};
    use ithaca_log::wire::Roles;

    use super::*;

    #[test]
    fn a_node_that_leaves_is_not_shown_as_one_that_is_out() {
        // It serves what it holds until others have that: whoever stops it, because it is out, has a copy less.
        let roles = |id| if id < 4 { Roles::OFFERED } else { Roles::UNIT };
        let node = |id| Node::new(NodeId(id), roles(id), format!("10.0.0.{id}:7420"));
        let layout = Layout::first(ClusterId(1), (1..=4).map(node).collect(), 2, 2);
        let nodes_out = Change { lost: vec![NodeId(4)], removed: vec![NodeId(3)], ..Change::default() };
        let layout = layout.and_then(|layout| layout.change(LogPos(8), &nodes_out)).expect("a layout");
        let told = human(&layout);
        for line in
            ["node 2 at 10.0.0.2:7420", "node 3 at 10.0.0.3:7420, leaving", "node 4 at 10.0.0.4:7420, out"]
        {
            assert!(told.lines().any(|told| told == line), "{told}");
        }
    }
}
