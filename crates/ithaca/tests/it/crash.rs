//! SIGKILL at any moment under load: whatever was acknowledged is there, and nothing differs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use crate::harness::{Dev, entry, temp_dir};

const KILLS: u64 = 10;

/// Line `nth` of the input that follows kill `kill`: of differing lengths, none like another.
fn line(kill: u64, nth: u64) -> String {
    format!("{kill} {nth} {}", "x".repeat((nth * 37 % 700) as usize))
}

/// Feeds lines until the child ends, and returns the positions that it printed.
fn append_until_killed(dev: &mut Dev, kill: u64) -> Vec<u64> {
    let mut child: Child =
        dev.command("log append --lines --timeout 1s").stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let feeder = std::thread::spawn(move || {
        let mut nth = 0;
        while stdin.write_all(format!("{}\n", line(kill, nth)).as_bytes()).is_ok() {
            nth += 1;
        }
    });
    let mut positions = Vec::new();
    for printed in BufReader::new(child.stdout.take().expect("piped")).lines() {
        positions.push(printed.expect("text").parse().expect("a position"));
        // Each time at another point of the load; what was on its way is printed or not.
        if positions.len() as u64 == 50 + kill * 791 % 3000 {
            dev.child.kill().expect("it runs");
        }
    }
    let ended = child.wait_with_output().expect("it ends");
    feeder.join().expect("no panic");
    assert_eq!(ended.status.code(), Some(3), "{}", String::from_utf8_lossy(&ended.stderr));
    positions
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_cluster_is_killed_under_load() {
    let dir = temp_dir();
    let mut acknowledged: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for kill in 0..KILLS {
        let mut dev = Dev::start(dir.path(), &["--units", "2"]);
        for (nth, pos) in append_until_killed(&mut dev, kill).into_iter().enumerate() {
            let before = acknowledged.insert(pos, line(kill, nth as u64).into_bytes());
            assert_eq!(before, None, "position {pos} was acknowledged twice");
        }
    }
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    let text = dev.run("log read --from 0 --json").expect(0).text();
    let found: BTreeMap<u64, (String, Vec<u8>)> =
        text.lines().map(entry).map(|(pos, kind, data)| (pos, (kind, data))).collect();
    for (pos, data) in &acknowledged {
        assert_eq!(found.get(pos), Some(&("data".to_owned(), data.clone())), "position {pos}");
    }
    let promised: BTreeSet<&Vec<u8>> = acknowledged.values().collect();
    // What was not acknowledged may be there, but never changed and never twice.
    let unacknowledged =
        found.iter().filter(|(pos, (kind, _))| kind == "data" && !acknowledged.contains_key(pos));
    for (pos, (_, data)) in unacknowledged {
        let text = String::from_utf8(data.clone()).expect("our lines are text");
        let mut parts = text.split(' ').map(|part| part.parse::<u64>().unwrap_or(0));
        let (kill, nth) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        assert_eq!(line(kill, nth), text, "position {pos}");
        assert!(!promised.contains(data), "position {pos} repeats {text}");
    }
}
