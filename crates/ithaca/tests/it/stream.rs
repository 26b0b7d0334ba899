//! `ithaca stream`, and `ithaca log append --stream`.

use crate::harness::{Dev, temp_dir};

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
    assert_eq!(check, "{\"stream\":\"orders\",\"tail\":4,\"log_pos\":7}\n");
    assert_eq!(
        dev.run("stream check nobody --json").expect(0).text(),
        "{\"stream\":\"nobody\",\"tail\":0}\n"
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
    assert!(told.contains("named twice"), "{told}");
}
