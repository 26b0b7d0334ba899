//! Servers whose settings name some roles only.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::cluster::{Server, cluster, remove, server_command, whole};
use crate::harness::{dev_command, ithaca, run, signal, string_field, temp_dir};

/// A settings file in `dir` that names these roles.
fn settings(dir: &Path, roles: &str) -> String {
    let path = dir.join(format!("{}.toml", roles.replace(['"', ',', ' '], "-")));
    std::fs::write(&path, format!("roles = [{roles}]\n")).expect("writable");
    path.to_str().expect("text").to_owned()
}

#[test]
fn roles_that_cannot_be_are_wrong_usage_in_one_line() {
    let dir = temp_dir();
    let refused = |arguments: &[&str], expected: &str| {
        let told = run(dev_command(dir.path(), arguments), b"").expect(2).stderr;
        assert!(told.contains(expected), "{arguments:?}: {told}");
    };
    refused(&["--roles", "layout,sequencer,unit,storage"], "'storage' for '--roles <ROLE,...>'");
    refused(&["--roles", ""], "'--roles <ROLE,...>'");
    refused(&["--roles", "layout,sequencer,unit,layout"], "--roles: layout is named twice");
    refused(
        &["--roles", "unit,http"],
        "--roles: layout + sequencer is left out, and a cluster of its own needs",
    );
    let (none, witness) = (settings(dir.path(), ""), settings(dir.path(), "\"layout\""));
    refused(&["--config", &none], "--roles: no role is named");
    let mut server = ithaca(&["server", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    server.args(["--config", &witness, "--data"]).arg(dir.path().join("data"));
    let told = run(server, b"").expect(2).stderr;
    assert!(told.contains("sequencer + unit is left out") && told.contains("--node"), "{told}");
    assert!(!dir.path().join("data").exists(), "nothing was made");
}

#[test]
fn without_http_no_port_is_bound_and_without_views_none_are_kept() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let http = taken.local_addr().expect("it is bound").to_string();
    for (roles, json) in [("layout,sequencer,unit", true), ("layout,sequencer,unit,views", false)] {
        let dir = temp_dir();
        let mut command = ithaca(&["server", "--listen", "127.0.0.1:0", "--drive-size", "64M"]);
        command.args(["--http", &http, "--roles", roles, "--data"]).arg(dir.path());
        if json {
            command.arg("--json");
        }
        let mut child = command.stderr(Stdio::inherit()).spawn().expect("it starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut ready).expect("its output is open");
        assert!(ready.contains("ready") && !ready.contains("http"), "{ready}");
        let addr = match json {
            true => string_field(&ready, "log"),
            false => ready.trim().rsplit(' ').next().expect("an endpoint").to_owned(),
        };
        run(ithaca(&["log", "append", "--endpoint", &addr]), b"a").expect(0);
        let status = run(ithaca(&["cluster", "status", "--json", "--endpoint", &addr]), b"").expect(0).text();
        let views = if json { "" } else { ",\"views\"" };
        let roles = format!("\"roles\":[\"layout\",\"sequencer\",\"unit\",\"forwarder\"{views}]");
        assert!(status.contains(&roles), "{status}");
        signal(&child, "TERM");
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}

#[test]
fn a_witness_lets_either_of_two_units_go_on_alone() {
    let dir = temp_dir();
    let witness = settings(dir.path(), "\"layout\"");
    let third = Server::start_with(dir.path(), 3, &["--config", &witness]);
    assert!(!third.ready.contains("http"), "{}", third.ready);
    let mut servers = vec![Server::start(dir.path(), 1), Server::start(dir.path(), 2), third];
    let names: Vec<String> = servers.iter().map(Server::name).collect();
    let few = format!("cluster init --replicas 3 {}", names.join(" "));
    let told = cluster(&servers, &few, b"").expect(2).stderr;
    assert!(told.contains("2 of the nodes offer the role unit, 3 copies of each entry are wanted"), "{told}");
    let alone = cluster(&servers[2..], &format!("cluster init {}", names[2]), b"").expect(2).stderr;
    assert!(alone.contains("no node offers the role sequencer"), "{alone}");
    let init = format!("cluster init --min-replicas 1 {}", names.join(" "));
    cluster(&servers, &init, b"").expect(0);
    cluster(&servers, "log append --lines", b"a\nb\n").expect(0);
    let status = whole(&servers);
    assert!(status.contains("\"roles\":[\"layout\"],"), "{status}");
    let last = status.rsplit("\"stripes\":").next().expect("what is appended now");
    for stripe in ["{\"replicas\":[1,2],", "{\"replicas\":[2,1],"] {
        assert!(last.contains(stripe), "{status}");
    }
    assert_eq!(last.matches("{\"replicas\":").count(), 2, "{status}");
    signal(&servers[0].child, "KILL");
    servers[0].end();
    cluster(&servers, "log append --lines", b"c\nd\n").expect(0);
    assert_eq!(cluster(&servers, "log read --from 0 --to 4", b"").expect(0).text(), "abcd");
    // What the layout gives a node its settings may not leave out; more changes nothing.
    let mut less = server_command(dir.path(), 1, "127.0.0.1:0");
    less.args(["--roles", "layout,unit"]);
    let told = run(less, b"").expect(2).stderr;
    assert!(told.contains("node 1 is given the role sequencer by the layout of epoch "), "{told}");
    assert!(told.contains("remove the node from the cluster, and add it again"), "{told}");
    signal(&servers[2].child, "TERM");
    assert_eq!(servers[2].end().0, Some(0));
}

#[test]
fn a_node_is_added_with_the_roles_that_it_offers() {
    let dir = temp_dir();
    let mut servers = vec![Server::start(dir.path(), 1)];
    cluster(&servers, &format!("cluster init {}", servers[0].name()), b"").expect(0);
    let second = Server::start_with(dir.path(), 2, &["--roles", "sequencer,http"]);
    let add = format!("cluster add {}", second.name());
    servers.push(second);
    cluster(&servers, &add, b"").expect(0);
    cluster(&servers, "log append --lines", b"a\nb\n").expect(0);
    let layout = cluster(&servers, "cluster layout --json", b"").expect(0).text();
    assert!(!layout.contains("\"replicas\":[2"), "{layout}");
    let status = cluster(&servers, "cluster status --json", b"").expect(0).text();
    assert!(status.contains("\"roles\":[],"), "{status}");
    remove(&servers, "2");
    assert_eq!(servers[1].end().0, Some(1));
}
