//! `ithaca log append`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::harness::{Dev, ithaca, nobody, run, temp_dir};

#[test]
fn lines_of_any_bytes_come_back_in_order_at_rising_positions() {
    // Carriage returns, empty lines, bytes that are no text, and a last line without a newline are data like any other.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let input = b"one\n\n\xff\xfe\0two\r\n\n\nlast without newline";
    let positions = dev.feed("log append --lines", input).expect(0).positions();
    assert_eq!(positions.len(), 6);
    assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "{positions:?}");
    let back = dev.run(&format!("log read --from {} --lines", positions[0])).expect(0);
    assert_eq!(back.stdout, [&input[..], b"\n"].concat());
}

#[test]
fn who_goes_away_while_lines_are_left_is_not_told_that_all_are_appended() {
    // `ithaca log append --lines big | head -1` ended with 0, most of it in no log.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let mut child = dev.command("log append --lines").stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    let mut shown = BufReader::new(child.stdout.take().expect("piped"));
    input.write_all(b"one\n").expect("it reads");
    shown.read_line(&mut String::new()).expect("it prints");
    drop(shown);
    input.write_all(b"two\n").expect("it reads");
    let status = child.wait().expect("it ends");
    drop(input);
    let mut told = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut told).expect("it says why");
    assert_eq!(status.code(), Some(3), "{told}");
    assert!(told.contains("standard output was closed at line 2"), "{told}");
    assert_eq!(dev.run("log read --from 0 --lines").expect(0).stdout, b"one\ntwo\n");
}

#[test]
fn without_lines_the_whole_input_is_one_entry() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let input = b"several\nlines\n";
    let ran = dev.feed("log append -", input).expect(0);
    assert_eq!(dev.run(&format!("log read {}", ran.positions()[0])).expect(0).stdout, input);
    let ran = dev.feed("log append --json", b"").expect(0);
    assert_eq!(ran.text(), "{\"pos\":1}\n", "an empty entry is an entry");
}

#[test]
fn a_position_is_printed_while_the_input_is_still_open() {
    // A pipe that stays open must not keep back the position of a line that is durable.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let mut child = dev.command("log append --lines").stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    for expected in 0..3u64 {
        stdin.write_all(b"a line\n").expect("it reads");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it prints");
        assert_eq!(line, format!("{expected}\n"));
    }
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn many_lines_of_many_sizes_are_all_there() {
    // More than fits in flight at once, so that the reader of lines has to wait for room.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let line = |nth: usize| vec![b'a' + (nth % 26) as u8; nth * 7919 % 30_000];
    let input: Vec<u8> = (0..2000).flat_map(|nth| [line(nth), b"\n".to_vec()].concat()).collect();
    assert_eq!(dev.feed("log append --lines", &input).expect(0).positions(), (0..2000).collect::<Vec<u64>>());
    assert!(dev.run("log read --from 0 --lines").expect(0).stdout == input, "every byte");
}

#[test]
fn an_entry_over_the_limit_is_wrong_usage_and_one_at_the_limit_is_not() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let limit = 1 << 20;
    dev.feed("log append", &vec![7; limit]).expect(0);
    let told = dev.feed("log append", &vec![7; limit + 1]).expect(2).stderr;
    assert!(told.contains("1048576"), "{told}");
    assert_eq!(dev.run("log read 0").expect(0).stdout.len(), limit);
}

#[test]
fn a_line_over_the_limit_stops_there_and_is_named() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let input = [b"one\ntwo\n", &vec![7; (1 << 20) + 1][..], b"\nfour\n"].concat();
    let ran = dev.feed("log append --lines", &input).expect(3);
    assert_eq!(ran.positions(), [0, 1]);
    assert!(ran.stderr.contains("line 3"), "{}", ran.stderr);
    assert_eq!(dev.run("log read --from 0 --lines").expect(0).text(), "one\ntwo\n");
}

#[test]
fn a_file_that_is_not_there_is_wrong_usage_before_anything_is_reached() {
    let told = run(ithaca(&["log", "append", "/no/such/file"]), b"").expect(2).stderr;
    assert!(told.contains("/no/such/file"), "{told}");
}

#[test]
fn a_cluster_that_is_not_there_is_named_and_not_waited_for_longer_than_the_timeout() {
    let endpoint = nobody();
    let command = ithaca(&["log", "append", "--timeout", "300ms", "--endpoint", &endpoint]);
    let told = run(command, b"lost").expect(3).stderr;
    assert!(told.contains(&endpoint), "{told}");
}
