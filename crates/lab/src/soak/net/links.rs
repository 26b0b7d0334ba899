//! A network of namespaces: one for each node, with an address and a link to a bridge. This process is at the bridge, in a
//! namespace that it has entered before, and so are its clients.
//!
//! ```text
//!   this process ── bridge 10.77.0.254 ──┬── node 1: 10.77.0.1 ─ filter
//!    (clients)                           ├── node 2: 10.77.0.2 ─ filter
//!                                        └── node 3: 10.77.0.3 ─ filter
//! ```
//!
//! Links are broken by the filter of a node's namespace (nftables). Everything goes with the last process in it: this one
//! has its mounts for itself, the names of the namespaces among them.

use std::io;
use std::net::Ipv4Addr;
use std::process::Command;

use super::super::process::{complete, complete_with};
use super::fault::{Fault, Kind};

/// What all addresses have in common, but for the last byte.
const NETWORK: [u8; 3] = [10, 77, 0];
/// The last byte of the bridge's.
const BRIDGE: u8 = 254;
/// Where names of namespaces lie.
const NAMES: &str = "/run/netns";

/// The network, and what is broken in it.
pub struct Links {
    nodes: usize,
    broken: Vec<Fault>,
}

/// Which way packets go at a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Links {
    /// A network of so many nodes. This process must have a network and mounts of its own.
    pub fn new(nodes: usize) -> io::Result<Self> {
        std::fs::create_dir_all(NAMES)?;
        complete(Command::new("mount").args(["-t", "tmpfs", "ithaca", NAMES]))?;
        let bridge = address(BRIDGE.into());
        let mut here = format!("link set lo up\nlink add hub type bridge\naddr add {bridge}/24 dev hub\n");
        here.push_str("link set hub up\n");
        for node in 1..=nodes {
            here.push_str(&format!(
                "netns add n{node}\nlink add v{node} type veth peer name eth0 netns n{node}\n\
                 link set v{node} master hub\nlink set v{node} up\n"
            ));
        }
        complete_with(Command::new("ip").args(["-batch", "-"]), &here)?;
        for node in 1..=nodes {
            let there = format!("link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\n", address(node));
            complete_with(Command::new("ip").args(["-n", &name(node), "-batch", "-"]), &there)?;
        }
        Ok(Self { nodes, broken: Vec::new() })
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The command that runs another in a node's namespace, in its own place. It has this process' mounts, other than with
    /// `ip netns exec`, so that they can be unmounted.
    pub fn through(node: usize) -> Vec<String> {
        vec!["nsenter".into(), format!("--net={NAMES}/{}", name(node))]
    }

    /// Puts a fault into force. Faults of other kinds than links do nothing.
    pub fn begin(&mut self, fault: Fault) -> io::Result<()> {
        self.broken.push(fault);
        self.filter_ends(fault)
    }

    /// Heals what [`begin`](Links::begin) has broken.
    pub fn heal(&mut self, fault: Fault) -> io::Result<()> {
        self.broken.retain(|broken| *broken != fault);
        self.filter_ends(fault)
    }

    /// Heals all.
    pub fn heal_all(&mut self) -> io::Result<()> {
        self.broken.clear();
        (1..=self.nodes).try_for_each(|node| self.filter(node))
    }

    fn filter_ends(&self, fault: Fault) -> io::Result<()> {
        self.filter(fault.node)?;
        self.filter(fault.other)
    }

    /// Replaces a node's filter by what is in force, in one step.
    fn filter(&self, node: usize) -> io::Result<()> {
        assert!((1..=self.nodes).contains(&node), "node {node} of {}", self.nodes);
        let mut chains = String::new();
        for (way, chain) in [(Way::In, "input"), (Way::Out, "output")] {
            let rules: Vec<String> = self.broken.iter().filter_map(|fault| rule(*fault, node, way)).collect();
            chains.push_str(&format!(
                "chain {chain} {{ type filter hook {chain} priority 0;\n{}\n}}\n",
                rules.join("\n")
            ));
        }
        let table = format!("table inet soak\ndelete table inet soak\ntable inet soak {{\n{chains}}}\n");
        complete_with(Command::new("ip").args(["netns", "exec", &name(node), "nft", "-f", "-"]), &table)
    }
}

fn name(node: usize) -> String {
    format!("n{node}")
}

/// The address of a node.
pub fn address(node: usize) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, node as u8)
}

/// What the filter of `node` does because of `fault` to packets that go this way.
fn rule(fault: Fault, node: usize, way: Way) -> Option<String> {
    let link = if way == Way::In { "iifname eth0" } else { "oifname eth0" };
    let end = |whose: usize| {
        format!("{link} ip {} {}", if way == Way::In { "saddr" } else { "daddr" }, address(whose))
    };
    let is_here = fault.node == node;
    // Both ends of a link between two know that it is broken.
    let peer = if is_here { fault.other } else { fault.node };
    let is_end = is_here || fault.other == node;
    let drop = |what: String| Some(format!("{what} drop"));
    let reset = |what: String| Some(format!("{what} meta l4proto tcp reject with tcp reset"));
    match fault.kind {
        Kind::Isolated if is_here => drop(link.into()),
        Kind::IsolatedReset if is_here => reset(link.into()),
        Kind::Apart if is_end => drop(end(peer)),
        Kind::ApartReset if is_end => reset(end(peer)),
        Kind::Deaf if is_here && way == Way::In => drop(end(fault.other)),
        Kind::Mute if is_here && way == Way::Out => drop(link.into()),
        Kind::NoClients if is_here => drop(end(BRIDGE.into())),
        Kind::Loss if is_here => drop(format!("{link} numgen random mod 100 < {}", fault.amount)),
        Kind::Resets if is_here && way == Way::In => {
            reset(format!("{link} numgen random mod 1000 < {}", fault.amount))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_breaks_the_links_that_it_names_and_no_others() {
        let at = |kind, node, way| rule(Fault { kind, node: 1, other: 2, amount: 20 }, node, way);
        for way in [Way::In, Way::Out] {
            assert!(at(Kind::Isolated, 1, way).is_some() && at(Kind::Isolated, 2, way).is_none());
            let ends: Vec<_> = (1..=3).map(|node| at(Kind::Apart, node, way).is_some()).collect();
            assert_eq!(ends, [true, true, false]);
            assert_eq!(at(Kind::Pause, 1, way), None);
        }
        assert!(at(Kind::Apart, 2, Way::In).is_some_and(|rule| rule.contains("saddr 10.77.0.1 drop")));
        assert!(at(Kind::Deaf, 1, Way::In).is_some_and(|rule| rule.contains("saddr 10.77.0.2 drop")));
        assert_eq!(at(Kind::Deaf, 1, Way::Out), None, "it is heard");
        assert_eq!(at(Kind::Mute, 1, Way::In), None, "it hears");
    }
}
