//! `ithaca bench`: every workload completes something and prints the promised figures.

use crate::harness::{Dev, number_field, string_field, temp_dir};

fn check(workload: &str) {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let line = format!("bench {workload} --seconds 1 --size 128 --clients 2 --inflight 8 --json");
    let json = dev.run(&line).expect(0).text();
    assert_eq!(
        (string_field(&json, "name"), string_field(&json, "durability")),
        (workload.into(), "fsync".into())
    );
    for key in ["ops_per_s", "p50_us", "p99_us", "cpu_us_per_op"] {
        number_field(&json, key);
    }
    assert!(number_field(&json, "ops") > 0, "{json}");
    // Whatever a workload did, the log goes on after it.
    let pos = dev.feed("log append", b"after").expect(0).positions()[0];
    assert_eq!(dev.run(&format!("log read {pos}")).expect(0).text(), "after");
}

#[test]
fn tokens_are_measured_and_leave_no_hole_behind() {
    check("token");
}

#[test]
fn appends_are_measured() {
    check("append");
}

#[test]
fn appends_to_streams_are_measured() {
    check("stream");
}

#[test]
fn appends_are_measured_whoever_carries_them_to_their_copies() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "2", "--replicas", "2"]);
    for carrier in ["sequencer", "units", "client"] {
        let line = format!(
            "bench append --seconds 1 --size 128 --clients 2 --inflight 8 --carrier {carrier} --json"
        );
        let json = dev.run(&line).expect(0).text();
        assert!(number_field(&json, "ops") > 0, "{carrier}: {json}");
    }
}

#[test]
fn reads_are_measured() {
    check("read");
}

#[test]
fn appends_and_reads_are_measured_together() {
    check("mixed");
}

#[test]
fn a_replay_of_the_log_is_measured() {
    check("replay");
}
