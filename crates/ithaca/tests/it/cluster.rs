//! `ithaca server --node` and `ithaca cluster`: clusters of several processes, and who belongs to them.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{
    Dev, Ran, dev_command, get, ithaca, nobody, run, run_refused, signal, string_field, temp_dir,
};

/// A server that runs until it is dropped.
pub struct Server {
    pub child: Child,
    id: u64,
    pub addr: String,
    /// What it said when it served.
    pub ready: String,
}

impl Server {
    /// Starts the node `id` with its data in `dir`, on a free port, and waits until it serves.
    pub fn start(dir: &Path, id: u64) -> Self {
        Self::start_with(dir, id, &[])
    }

    /// The same with these arguments.
    pub fn start_with(dir: &Path, id: u64, more: &[&str]) -> Self {
        Self::of(server_command(dir, id, "127.0.0.1:0").args(more), id)
    }

    /// The same where another one has listened.
    fn start_at(dir: &Path, id: u64, addr: &str) -> Self {
        Self::of(&mut server_command_at(&dir.join(id.to_string()), id, addr, "127.0.0.1:0"), id)
    }

    fn of(command: &mut Command, id: u64) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut ready).expect("its output is open");
        Self { child, id, addr: string_field(&ready, "log"), ready }
    }

    /// Where its pages are.
    fn http(&self) -> String {
        string_field(&self.ready, "http")
    }

    /// `ID=HOST:PORT`.
    pub fn name(&self) -> String {
        format!("{}={}", self.id, self.addr)
    }

    /// Waits until it ends by itself: its exit code, and what it said on stderr.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().expect("it ends").code();
        let mut told = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
        (code, told)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server whose pages are at `http`.
pub fn server_command(dir: &Path, id: u64, http: &str) -> Command {
    server_command_at(&dir.join(id.to_string()), id, "127.0.0.1:0", http)
}

/// The same with its data in `data`, and where it listens.
fn server_command_at(data: &Path, id: u64, listen: &str, http: &str) -> Command {
    let id = id.to_string();
    let mut command = ithaca(&["server", "--json", "--drive-size", "64M", "--node", &id]);
    command.args(["--listen", listen, "--http", http, "--log-level", "off"]);
    command.arg("--data").arg(data);
    command.stderr(Stdio::piped());
    command
}

/// Runs a command against these servers.
pub fn cluster(servers: &[Server], line: &str, input: &[u8]) -> Ran {
    let endpoint: Vec<&str> = servers.iter().map(|server| server.addr.as_str()).collect();
    let mut command = ithaca(&["--endpoint", &endpoint.join(",")]);
    command.env("ITHACA_TIMEOUT", "30s").args(line.split_whitespace());
    run(command, input)
}

/// Has a node leave, again where that may be otherwise: another one may be out for a moment, see [`whole`].
pub fn remove(servers: &[Server], node: &str) -> Ran {
    loop {
        let ran = cluster(servers, &format!("cluster remove {node}"), b"");
        if !ran.stderr.contains("that may be otherwise") {
            return ran.expect(0);
        }
        ran.expect(3);
    }
}

/// Waits until all members are in use and no copy of an entry is missing, as it may be for a moment when a busy machine has
/// not run one of them: what `cluster status --json` says then.
pub fn whole(servers: &[Server]) -> String {
    loop {
        let status = cluster(servers, "cluster status --json", b"").expect(0).text();
        let up = status.matches("\"state\":\"up\"").count();
        if up == servers.len() && status.contains("\"copies_missing\":0") {
            return status;
        }
    }
}

/// Starts nodes 1 to `count` and makes one cluster of them.
fn formed(dir: &Path, count: u64, more: &str) -> Vec<Server> {
    let servers: Vec<Server> = (1..=count).map(|id| Server::start(dir, id)).collect();
    let names: Vec<String> = servers.iter().map(Server::name).collect();
    cluster(&servers, &format!("cluster init {more} {}", names.join(" ")), b"").expect(0);
    servers
}

#[test]
fn a_node_is_added_and_another_one_is_removed_with_all_entries_kept() {
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "");
    cluster(&servers, "log append --lines", b"a\nb\nc\nd\n").expect(0);
    let fourth = Server::start(dir.path(), 4);
    let add = format!("cluster add {}", fourth.name());
    servers.push(fourth);
    for _ in 0..2 {
        let told = cluster(&servers, &format!("{add} --json"), b"").expect(0).text();
        assert!(told.contains("\"node\":4") && told.contains("\"state\":\"up\""), "{told}");
    }
    whole(&servers);
    cluster(&servers, "log append --lines", b"e\nf\ng\nh\n").expect(0);
    let layout = cluster(&servers, "cluster layout --json", b"").expect(0).text();
    assert!(layout.contains("{\"replicas\":[3,4],"), "it takes part in what is appended: {layout}");
    let told = remove(&servers, "1 --json").text();
    assert!(told.contains("\"state\":\"removed\""), "{told}");
    let told = cluster(&servers, "cluster remove 1", b"").expect(1).stderr;
    assert!(told.contains("node 1 is none of the cluster"), "{told}");
    let (code, told) = servers[0].end();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("node 1 was removed from cluster") && told.lines().count() == 1, "{told}");
    let told = run(server_command(dir.path(), 1, "127.0.0.1:0"), b"").expect(1).stderr;
    assert!(told.contains("node 1 was removed from cluster"), "{told}");
    cluster(&servers, "log append --lines", b"i\n").expect(0);
    assert_eq!(cluster(&servers, "log read --from 0 --to 9", b"").expect(0).text(), "abcdefghi");
    let status = cluster(&servers, "cluster status --json", b"").expect(0).text();
    assert!(!status.contains("\"id\":1,") && status.contains("\"copies_missing\":0"), "{status}");
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_with_one_line_that_says_why() {
    let dir = temp_dir();
    let servers = formed(dir.path(), 2, "");
    let refused = |line: &str, code: i32, expected: &str| {
        let told = cluster(&servers, line, b"").expect(code).stderr;
        assert!(told.contains(expected), "{line}: {told}");
    };
    let healthy = format!("cluster replace {} --timeout 1s", servers[1].name());
    refused(&healthy, 3, "node 2 is in use: the cluster has not missed it in 1s");
    refused(&healthy, 3, &format!("cluster replace {} at ", servers[1].name()));
    refused("cluster remove 2", 2, "without node 2 the nodes left are 1, for 2 copies of each entry");
    refused(&format!("cluster add 2={}", nobody()), 2, "node 2 is a member already and listens at");
    refused(&format!("cluster add 7={}", servers[0].addr), 2, "is the address of node 1");
    let silent = nobody();
    refused(&format!("cluster add 7={silent} --timeout 1s"), 3, &format!("node 7 at {silent}"));
    let other_dir = temp_dir();
    let others = formed(other_dir.path(), 1, "");
    let taken = format!("cluster add 1={}", others[0].addr);
    refused(&taken, 2, "node 1 is a member already and listens at");
    let third = Server::start(other_dir.path(), 3);
    cluster(&others, &format!("cluster add {}", third.name()), b"").expect(0);
    refused(&format!("cluster add {}", third.name()), 2, "belongs to cluster");
    refused(&format!("cluster add 5={}", third.addr), 2, "refused: this is node 3");
    refused("cluster remove 9", 1, "node 9 is none of the cluster");
}

#[test]
fn a_node_that_cannot_be_removed_as_long_as_another_one_is_out_is_no_wrong_usage() {
    // Scripts give up what is wrong usage, and try this again.
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "");
    signal(&servers[1].child, "KILL");
    servers[1].end();
    let layout = || cluster(&servers, "cluster layout --json", b"").expect(0).text();
    while !layout().contains("\"in_use\":false") {}
    let ask = || cluster(&servers, "cluster remove 3", b"").expect(3).stderr;
    let mut told = ask();
    while told.contains("without node 3 the nodes left are 0") {
        // The first node is out for a moment too, see `whole`.
        told = ask();
    }
    let expected = "without node 3 the nodes left are 1, for 2 copies of each entry; that may be otherwise";
    assert!(told.contains(expected), "{told}");
    servers[1] = Server::start_at(dir.path(), 2, &servers[1].addr);
    whole(&servers);
    remove(&servers, "3");
}

#[test]
fn a_replacement_that_is_asked_for_again_is_found_to_be_done() {
    // It waited for all of its time for the node to be missed, and failed.
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "");
    cluster(&servers, "log append", b"a").expect(0);
    signal(&servers[2].child, "KILL");
    servers[2].end();
    std::fs::remove_dir_all(dir.path().join("3")).expect("it is there");
    servers[2] = Server::start_at(dir.path(), 3, &servers[2].addr);
    let replace = format!("cluster replace {}", servers[2].name());
    let told = cluster(&servers, &replace, b"").expect(0).text();
    assert!(told.contains("knows the cluster; it is used as soon as the others hear it"), "{told}");
    whole(&servers);
    let told = cluster(&servers, &replace, b"").expect(0).text();
    assert!(told.contains(&format!("node 3 at {} is in use, in epoch ", servers[2].addr)), "{told}");
}

#[test]
fn a_node_of_several_servers_is_refused_what_is_of_a_whole_cluster() {
    // It started with one unit, and with as many copies as its cluster keeps, and said nothing.
    let dir = temp_dir();
    let settings = dir.path().join("two.toml");
    std::fs::write(&settings, "replicas = 2\n").expect("writable");
    for (arguments, variable) in [
        (&["--units", "2"][..], "ITHACA_OTHER"),
        (&["--replicas", "2"], "ITHACA_OTHER"),
        (&[], "ITHACA_REPLICAS"),
        (&["--config", settings.to_str().expect("text")], "ITHACA_OTHER"),
    ] {
        let mut command = server_command(dir.path(), 1, "127.0.0.1:0");
        command.args(arguments).env(variable, "2");
        let told = run_refused(command).expect(2).stderr;
        let is_told = told.contains("--units 2 is of") || told.contains("--replicas 2 is of");
        assert!(is_told && told.contains("--node"), "{arguments:?} {variable}: {told}");
        assert!(!dir.path().join("1").exists(), "nothing was made");
    }
}

#[test]
fn a_directory_of_one_of_several_servers_is_not_taken_for_a_whole_cluster() {
    // It said that it was ready, and nothing could be appended: others decide with it.
    let dir = temp_dir();
    let witness = |id| Server::start_with(dir.path(), id, &["--roles", "layout,http"]);
    let mut servers = vec![Server::start(dir.path(), 1), witness(2), witness(3)];
    let names: Vec<String> = servers.iter().map(Server::name).collect();
    cluster(&servers, &format!("cluster init --replicas 1 {}", names.join(" ")), b"").expect(0);
    cluster(&servers, "log append", b"a").expect(0);
    signal(&servers[0].child, "KILL");
    servers[0].end();
    let told = run_refused(dev_command(&dir.path().join("1"), &[])).expect(2).stderr;
    assert!(told.contains("a cluster of servers (1 2 3): start it as that node"), "{told}");
    servers[0] = Server::start_at(dir.path(), 1, &servers[0].addr);
    whole(&servers);
    assert_eq!(cluster(&servers, "log read 0", b"").expect(0).text(), "a");
    // Of a cluster of one server it is all that there is.
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 1, "");
    cluster(&servers, "log append", b"b").expect(0);
    signal(&servers[0].child, "KILL");
    servers[0].end();
    assert_eq!(Dev::start(&dir.path().join("1"), &[]).run("log read 0").expect(0).text(), "b");
}

#[test]
fn a_directory_of_a_whole_cluster_that_was_started_as_one_of_its_nodes_is_that_of_a_whole_cluster_still() {
    // All decide in the layout after that, as of several servers; but everything is in this directory.
    let dir = temp_dir();
    let data = dir.path().join("data");
    let whole = ["--units", "3", "--replicas", "3"];
    let dev = Dev::start(&data, &whole);
    dev.feed("log append", b"a").expect(0);
    let addr = dev.log.clone();
    assert_eq!(dev.stop().0, Some(0));
    let mut server = [Server::of(&mut server_command_at(&data, 1, &addr, "127.0.0.1:0"), 1)];
    cluster(&server, "cluster set --min-replicas 1", b"").expect(0);
    signal(&server[0].child, "KILL");
    server[0].end();
    for _ in 0..2 {
        let dev = Dev::start(&data, &whole);
        assert_eq!(dev.run("log read 0").expect(0).text(), "a");
        assert_eq!(dev.stop().0, Some(0));
    }
}

#[test]
fn a_server_that_belongs_to_no_cluster_yet_says_so_long_before_the_time_is_over() {
    let dir = temp_dir();
    let servers = [Server::start(dir.path(), 1), Server::start(dir.path(), 2)];
    for line in ["log append", "log check", "cluster status", "cluster layout"] {
        let told = cluster(&servers, line, b"x").expect(3).stderr;
        assert!(
            told.contains(&format!("{}: this server belongs to no cluster yet", servers[0].addr)),
            "{told}"
        );
        assert!(!told.contains("timed out"), "{told}");
    }
}

#[test]
fn a_server_is_ready_when_it_is_in_use_in_a_cluster_and_alive_before() {
    // Clients that a balancer sent to it were told that it belongs to no cluster yet.
    let dir = temp_dir();
    let servers = [Server::start(dir.path(), 1), Server::start(dir.path(), 2)];
    for server in &servers {
        assert!(get(&server.http(), "/readyz").starts_with("HTTP/1.1 503 "));
        assert!(get(&server.http(), "/livez").starts_with("HTTP/1.1 200 "));
    }
    let init = format!("cluster init {} {}", servers[0].name(), servers[1].name());
    cluster(&servers, &init, b"").expect(0);
    for server in &servers {
        while !get(&server.http(), "/readyz").starts_with("HTTP/1.1 200 ") {}
    }
}

#[test]
fn a_server_names_what_to_do_next_by_whether_it_belongs_to_a_cluster() {
    // One that was started again said that it had to be made a member.
    let dir = temp_dir();
    let said = |id: &str| {
        let mut command = ithaca(&["server", "--drive-size", "64M", "--node", id, "--log-level", "off"]);
        command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(dir.path().join(id));
        let mut child = command.spawn().expect("it starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("it prints");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        ready
    };
    let ready = said("2");
    assert!(ready.contains("next: ithaca cluster init or add 2=127.0.0.1:"), "{ready}");
    let told = run(ithaca(&["cluster", "init", "2=0.0.0.0:0"]), b"").expect(2).stderr;
    assert!(told.contains("others reach nobody at that address"), "{told}");
    drop(formed(dir.path(), 1, "--replicas 1"));
    let ready = said("1");
    assert!(ready.contains("next: ithaca cluster status --endpoint 127.0.0.1:"), "{ready}");
}

#[test]
fn a_server_that_is_starting_is_alive_and_not_ready() {
    // Its pages were bound and nobody answered, so that whoever looks after it took it for hung.
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "");
    remove(&servers, "3");
    assert_eq!(servers[2].end().0, Some(1));
    // Its next start tells the others that it was removed, and goes on with that while they are away.
    drop(servers);
    let http = nobody();
    let child = server_command(dir.path(), 3, &http).spawn().expect("the program starts");
    let _server = Server { child, id: 3, addr: String::new(), ready: String::new() };
    while TcpStream::connect(&http).is_err() {}
    assert!(get(&http, "/livez").starts_with("HTTP/1.1 200 "));
    assert!(get(&http, "/readyz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn with_too_few_nodes_an_append_says_so_until_the_operator_asks_for_fewer_copies() {
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "--replicas 3");
    cluster(&servers, "log append", b"a").expect(0);
    signal(&servers[1].child, "KILL");
    servers[1].end();
    let told = cluster(&servers, "log append --timeout 5s", b"b").expect(3).stderr;
    assert!(told.contains("2 of 3 copies can be kept: node 2 is not in use"), "{told}");
    assert_eq!(cluster(&servers, "log read 0", b"").expect(0).text(), "a");
    cluster(&servers, "cluster set --min-replicas 4", b"").expect(2);
    cluster(&servers, "cluster set --min-replicas 2", b"").expect(0);
    cluster(&servers, "log append", b"b").expect(0);
    let history = cluster(&servers, "cluster layout --history --json", b"").expect(0).text();
    let (now, then) = (history.lines().next(), history.lines().last());
    assert!(now.is_some_and(|line| line.contains("\"min_replicas\":2")), "{history}");
    assert!(then.is_some_and(|line| line.contains("\"epoch\":1,")), "{history}");
    // With a second one gone, the one that hands out positions, nobody decides anything any more; the third is shown by itself.
    let status = cluster(&servers, "cluster status --json", b"").expect(3).text();
    let (second, left) = if status.contains("\"sequencer\":1,") { (0, 3) } else { (2, 1) };
    signal(&servers[second].child, "KILL");
    servers[second].end();
    let ran = cluster(&servers, "cluster status --timeout 1s --json", b"").expect(3);
    let (status, told) = (ran.text(), ran.stderr);
    assert!(told.starts_with("ithaca: cluster status") && told.contains("timed out after 1s"), "{told}");
    assert!(status.contains("\"tail\":null") && status.contains("\"appendable\":false"), "{status}");
    assert_eq!(status.matches("\"state\":\"up\"").count(), 1, "{status}");
    assert_eq!(status.matches("\"state\":\"unreachable\",\"error\":").count(), 2, "{status}");
    let ran = cluster(&servers, "cluster layout --timeout 1s", b"").expect(3);
    let (layout, told) = (ran.text(), ran.stderr);
    assert!(told.starts_with("ithaca: cluster layout") && told.contains("timed out after 1s"), "{told}");
    assert!(layout.contains("node 2 at") && layout.contains(&format!("node {left} at")), "{layout}");
}

#[test]
fn one_node_that_is_left_of_three_goes_on_when_the_operator_gives_the_others_up() {
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "--replicas 3");
    cluster(&servers, "log append --lines", b"a\nb\nc\nd\n").expect(0);
    cluster(&servers, "map put colours sky blue", b"").expect(0);
    let told = cluster(&servers, "cluster give-up 3", b"").expect(2).stderr;
    assert!(told.contains("node 3 at") && told.contains("is there"), "{told}");
    for server in &mut servers[1..] {
        signal(&server.child, "KILL");
        server.end();
    }
    cluster(&servers, "cluster give-up 9", b"").expect(1);
    let told = cluster(&servers, "cluster give-up 2", b"").expect(3).stderr;
    assert!(told.contains("node 3 at") && told.contains("name it too"), "{told}");
    let told = cluster(&servers, "cluster give-up 2 3 --json", b"").expect(0).text();
    assert!(told.contains("\"lost\":0"), "{told}");
    assert_eq!(cluster(&servers, "log read --from 0 --to 4", b"").expect(0).text(), "abcd");
    assert_eq!(cluster(&servers, "map get colours sky", b"").expect(0).text(), "blue\n");
    cluster(&servers, "cluster set --min-replicas 1", b"").expect(0);
    cluster(&servers, "map put colours sea green", b"").expect(0);
    assert_eq!(cluster(&servers, "map get colours sea", b"").expect(0).text(), "green\n");
    let again = cluster(&servers, "cluster give-up 2,3", b"").expect(0).text();
    assert!(again.contains("the cluster is of the nodes 1 already"), "{again}");
    let history = cluster(&servers, "cluster layout --history --json", b"").expect(0).text();
    assert!(history.contains("\"epoch\":1,") || history.lines().count() > 1, "{history}");
    // One that comes back learns of it.
    servers[1] = Server::start(dir.path(), 2);
    let (code, told) = servers[1].end();
    assert!(code == Some(1) && told.contains("node 2 was removed from cluster"), "{code:?} {told}");
}

#[test]
fn a_directory_that_is_started_as_another_node_is_said_to_be_whose_it_is() {
    // It was said to be of a node that was removed, and of no use any more: whoever believes that deletes what node 2 has.
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 2, "");
    cluster(&servers, "log append", b"a").expect(0);
    signal(&servers[1].child, "KILL");
    servers[1].end();
    for id in [1, 7] {
        let command = server_command_at(&dir.path().join("2"), id, "127.0.0.1:0", "127.0.0.1:0");
        let told = run(command, b"").expect(2).stderr;
        assert!(told.contains(&format!("is that of node 2, not of node {id}")), "{told}");
    }
}

#[test]
fn a_node_that_was_removed_while_it_was_down_is_told_when_it_comes_back() {
    let dir = temp_dir();
    let mut servers = formed(dir.path(), 3, "");
    cluster(&servers, "log append --lines", b"a\nb\nc\nd\n").expect(0);
    signal(&servers[2].child, "KILL");
    servers[2].end();
    remove(&servers, "3");
    servers[2] = Server::start(dir.path(), 3);
    let (code, told) = servers[2].end();
    assert!(code == Some(1) && told.contains("node 3 was removed from cluster"), "{code:?} {told}");
    cluster(&servers, "log append", b"e").expect(0);
}
