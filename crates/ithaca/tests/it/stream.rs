//! `ithaca stream`, and `ithaca log append --stream`.

use std::io::{BufRead, BufReader};

use crate::harness::{Dev, run, temp_dir};

#[test]
fn entries_of_a_stream_are_numbered_by_themselves_and_listed_by_name() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append --lines", b"plain\nplain\n").expect(0);
    assert_eq!(dev.feed("stream append orders --lines", b"one\ntwo\n").expect(0).text(), "0\n1\n");
    let both = dev.feed("log append --stream orders --stream users --json", b"both").expect(0).text();
    // Two plain entries, the name of a stream, two entries of it, another name.
    assert_eq!(both, "{\"pos\":6}\n");
    let third = dev.feed("stream append orders --json", b"three").expect(0).text();
    assert_eq!(third, "{\"stream\":\"orders\",\"pos\":3,\"log_pos\":7}\n");
    let check = dev.run("stream check orders --json").expect(0).text();
    assert_eq!(check, "{\"stream\":\"orders\",\"tail\":4,\"first\":0,\"log_pos\":7}\n");
    assert_eq!(
        dev.run("stream check nobody --json").expect(0).text(),
        "{\"stream\":\"nobody\",\"tail\":0,\"first\":0,\"log_pos\":null}\n"
    );
    assert_eq!(dev.run("stream ls").expect(0).text(), "orders\nusers\n");
    assert_eq!(
        dev.run("stream ls --json").expect(0).text(),
        "{\"stream\":\"orders\"}\n{\"stream\":\"users\"}\n"
    );
}

#[test]
fn a_stream_goes_on_where_it_was_after_a_restart() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("stream append orders --lines", b"one\ntwo\n").expect(0);
    drop(dev);
    let dev = Dev::start(dir.path(), &[]);
    assert_eq!(dev.feed("stream append orders --lines", b"three\nfour\n").expect(0).text(), "2\n3\n");
    assert_eq!(dev.run("stream ls").expect(0).text(), "orders\n");
}

#[test]
fn a_name_that_cannot_be_and_a_stream_twice_are_wrong_usage() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let long = "x".repeat(256);
    let told = dev.feed(&format!("stream append {long}"), b"").expect(2).stderr;
    assert!(told.contains("256 bytes"), "{told}");
    let told = dev.feed("log append --stream a --stream a", b"").expect(2).stderr;
    assert!(told.contains("stream a is named twice"), "{told}");
    let many: String = (0..17).map(|nth| format!(" --stream s{nth}")).collect();
    let told = dev.feed(&format!("log append{many}"), b"").expect(2).stderr;
    assert!(told.contains("17 streams are named, an entry belongs to 16 at most"), "{told}");
    assert_eq!(dev.run("stream ls").expect(0).text(), "", "none was named");
    let told = dev.run("stream trim nobody 1").expect(1).stderr;
    assert!(told.contains("nobody ends at 0, below 1"), "{told}");
}

#[test]
fn a_stream_is_read_by_its_own_positions_and_nothing_of_others_is_shown() {
    let dir = temp_dir();
    let mut dev = Dev::start(dir.path(), &["--units", "2"]);
    dev.feed("stream append orders --lines", b"one\ntwo\n").expect(0);
    dev.feed("log append --lines", b"plain\nplain\n").expect(0);
    dev.feed("log append --stream orders --stream users", b"both").expect(0);
    dev.feed("stream append users --lines", b"a\nb\n").expect(0);
    // Before a restart and after it: what units know of streams is made again.
    for _ in 0..2 {
        assert_eq!(dev.run("stream read orders --lines").expect(0).text(), "one\ntwo\nboth\n");
        assert_eq!(dev.run("stream read users --from 1 --to 2").expect(0).text(), "a");
        assert_eq!(dev.run("stream read orders 1").expect(0).text(), "two");
        assert_eq!(dev.run("stream tail users --from 1").expect(0).text(), "a\nb\n");
        assert_eq!(
            dev.run("stream read users 0 --json").expect(0).text(),
            "{\"stream\":\"users\",\"pos\":0,\"log_pos\":6,\"kind\":\"data\",\"data_base64\":\"Ym90aA==\"}\n"
        );
        let ran = dev.run("stream read orders 3").expect(1);
        assert!(ran.stderr.contains("orders has no entry at position 3"), "{}", ran.stderr);
        assert_eq!(dev.run("stream read nobody").expect(0).text(), "");
        dev.stop();
        dev = Dev::start(dir.path(), &["--units", "2"]);
    }
}

#[test]
fn what_one_stream_gave_up_stays_in_the_other() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("stream append orders --lines", b"one\ntwo\n").expect(0);
    dev.feed("log append --stream orders --stream users", b"both").expect(0);
    dev.feed("stream append orders", b"last").expect(0);
    dev.run("stream trim orders 3").expect(0);
    assert_eq!(dev.run("stream read orders --lines").expect(0).text(), "last\n");
    assert_eq!(dev.run("stream read users --lines").expect(0).text(), "both\n");
    let ran = dev.run("stream read orders 2").expect(1);
    assert!(ran.stderr.contains("position 2 of orders is trimmed"), "{}", ran.stderr);
    let check = dev.run("stream check orders --json").expect(0).text();
    assert!(check.contains("\"tail\":4,\"first\":3"), "{check}");
    let ran = dev.run("stream trim orders 9").expect(1);
    assert!(ran.stderr.contains("orders ends at 4, below 9"), "{}", ran.stderr);
    let gone = dev.command("stream tail orders --timeout 100ms");
    drop(dev);
    let told = run(gone, b"").expect(3).stderr;
    assert!(told.starts_with("ithaca: stream tail orders at 127.0.0.1:"), "{told}");
    let dev = Dev::start(dir.path(), &[]);
    assert_eq!(dev.run("stream read orders --lines").expect(0).text(), "last\n");
    dev.run("stream trim users 1").expect(0);
    assert_eq!(dev.run("stream read users").expect(0).text(), "");
}

#[test]
fn a_follower_of_a_stream_prints_what_comes() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("stream append orders --lines", b"one\ntwo\n").expect(0);
    let mut follower = dev.command("stream tail orders --follow --from 1");
    let mut follower = follower.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "two");
    dev.feed("log append", b"plain").expect(0);
    dev.feed("stream append orders", b"three").expect(0);
    assert_eq!(next(), "three");
    follower.kill().expect("it runs");
    follower.wait().expect("it ends");
}
