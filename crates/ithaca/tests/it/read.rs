//! `ithaca log read`, `tail`, `check`, `fill` and `trim`.

use std::io::{BufRead, BufReader, Read};

use crate::harness::{Dev, entry, number_field, temp_dir};

#[test]
fn a_position_that_was_never_written_is_a_no_and_stays_unwritten() {
    // Reading one position must not fill it: whoever holds its token may still write it.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    for _ in 0..2 {
        let ran = dev.run("log read 5").expect(1);
        assert!(ran.stdout.is_empty() && ran.stderr.contains("position 5 is unwritten"), "{}", ran.stderr);
    }
}

#[test]
fn json_entries_carry_position_kind_streams_and_data() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append", b"\xfb\xff\n\0").expect(0);
    let expected = "{\"pos\":0,\"kind\":\"data\",\"streams\":[],\"data_base64\":\"+/8KAA==\"}\n";
    assert_eq!(dev.run("log read 0 --json").expect(0).text(), expected);
    assert_eq!(dev.run("log read --from 0 --to 9 --json").expect(0).text(), expected);
}

#[test]
fn a_filled_position_is_junk_and_one_with_data_cannot_be_filled() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append", b"data").expect(0);
    let ran = dev.run("log fill 0").expect(1);
    assert!(ran.stderr.contains("position 0"), "{}", ran.stderr);
    assert_eq!(dev.run("log read 0").expect(0).text(), "data");
    dev.run("log fill 1").expect(0);
    dev.run("log fill 1").expect(0);
    dev.run("log read 1").expect(1);
    assert_eq!(entry(&dev.run("log read 1 --json").expect(0).text()), (1, "junk".into(), vec![]));
}

#[test]
fn an_append_that_meets_a_filled_position_takes_the_next() {
    // A position may be filled before the sequencer hands it out.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("log fill 0").expect(0);
    assert_eq!(dev.feed("log append", b"after junk").expect(0).positions(), [1]);
    // One far above is a slip of the hand: after the next start the log would go on behind it.
    for far in ["70000", "99999999", "18446744073709551615"] {
        let told = dev.run(&format!("log fill {far}")).expect(1).stderr;
        assert!(told.contains(&format!("position {far} is unwritten")), "{told}");
        // Which is no reason by itself: what is to be filled is.
        assert!(told.contains("more than 65536 positions above the log's end"), "{told}");
        dev.run(&format!("log read {far}")).expect(1);
    }
    dev.run("log fill 400").expect(0);
    assert_eq!(dev.run("log read --from 0 --lines").expect(0).text(), "after junk\n");
}

#[test]
fn trimmed_positions_are_gone_and_the_first_one_moves() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append --lines", b"0\n1\n2\n3\n").expect(0);
    dev.run("log trim 3").expect(0);
    dev.run("log read 3").expect(1);
    assert_eq!(dev.run("log check --json").expect(0).text(), "{\"tail\":4,\"first\":0}\n");
    dev.run("log trim 2 --prefix").expect(0);
    assert_eq!(dev.run("log check --json").expect(0).text(), "{\"tail\":4,\"first\":2}\n");
    dev.run("log read 1").expect(1);
    // Nobody has taken position 4 yet: without this an append would find its position given up.
    dev.run("log trim 5 --prefix").expect(1);
    assert_eq!(dev.run("log read --from 0 --lines").expect(0).text(), "2\n");
    let kinds: Vec<String> = dev
        .run("log read --from 0 --to 4 --json")
        .expect(0)
        .text()
        .lines()
        .map(|line| entry(line).1)
        .collect();
    assert_eq!(kinds, ["trimmed", "trimmed", "data", "trimmed"]);
}

#[test]
fn a_range_past_the_tail_is_cut_there() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    assert_eq!(dev.run("log read --from 0 --to 100").expect(0).stdout, b"");
    dev.feed("log append --lines", b"a\nb\n").expect(0);
    assert_eq!(dev.run("log read --from 1 --to 100").expect(0).text(), "b");
    assert_eq!(dev.run("log read --from 50 --to 100").expect(0).stdout, b"");
}

#[test]
fn tail_shows_what_is_there_and_follow_what_comes() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append --lines", b"one\ntwo\n").expect(0);
    assert_eq!(dev.run("log tail").expect(0).text(), "one\ntwo\n");
    let mut child = dev.command("log tail --follow --from 1 --json").spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || entry(&lines.next().expect("more").expect("text"));
    assert_eq!(next(), (1, "data".into(), b"two".to_vec()));
    dev.feed("log append --lines", b"three\nfour\n").expect(0);
    assert_eq!(next(), (2, "data".into(), b"three".to_vec()));
    assert_eq!(next(), (3, "data".into(), b"four".to_vec()));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    // `ithaca log read ... | head -1` must not print a broken pipe.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let line = [&[b'x'; 999][..], b"\n"].concat();
    dev.feed("log append --lines", &line.repeat(2000)).expect(0);
    let mut child = dev.command("log read --from 0 --lines").spawn().expect("it starts");
    let mut first = [0; 10];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("it prints");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), vec![]));
}

#[test]
fn a_command_that_waits_ends_when_nobody_reads_it_any_more() {
    // `ithaca log tail --follow | head -1` stayed until the next entry came, which may be never.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("stream append orders", b"one\n").expect(0);
    dev.run("map put users ann 42").expect(0);
    for line in [
        "log tail --follow --json",
        "stream tail orders --follow --json",
        "map watch users ann --json",
        "top --json --interval 1h",
    ] {
        let mut child = dev.command(line).spawn().expect("it starts");
        let mut stdout = child.stdout.take().expect("piped");
        if !line.starts_with("top") {
            stdout.read_exact(&mut [0]).expect("it prints");
        }
        drop(stdout);
        let ended = child.wait_with_output().expect("it ends");
        assert_eq!((ended.status.code(), ended.stderr), (Some(0), vec![]), "{line}");
    }
}

#[test]
fn the_tail_is_above_everything_that_was_appended() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "3"]);
    let positions = dev.feed("log append --lines", &b"line\n".repeat(1000)).expect(0).positions();
    let tail = number_field(&dev.run("log check --json").expect(0).text(), "tail");
    assert!(positions.iter().all(|&pos| pos < tail), "tail {tail}");
    assert_eq!(dev.run("log read --from 0").expect(0).stdout, b"line".repeat(1000));
}

#[test]
fn an_answer_that_is_no_says_where_it_was_given() {
    // Of several clusters nobody knows by the line which one was asked.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append --lines", b"a\nb\n").expect(0);
    dev.run("log trim 0").expect(0);
    dev.run("log fill 2").expect(0);
    for line in [
        "log read 0",
        "log read 2",
        "log read 7",
        "log fill 1",
        "log trim 9",
        "stream read none 3",
        "map get none key",
        "map del none key",
        "drive ls --node 9",
        "drive remove /no/such",
        "cluster remove 9",
    ] {
        let told = dev.run(line).expect(1).stderr;
        assert!(told.contains(&format!(" at {}: ", dev.log)), "{line}: {told}");
    }
}
