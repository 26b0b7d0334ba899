//! `ithaca top` where nobody looks at a terminal: one table, one object, a stream of objects.

use std::io::{BufRead, BufReader};

use crate::harness::{Dev, number_field, signal, temp_dir};

#[test]
fn one_object_has_every_node_with_its_rates_and_its_drives() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    dev.feed("log append --lines", b"1\n2\n3\n").expect(0);
    let shown = dev.run("top --once --json --interval 100ms").expect(0).text();
    assert_eq!(shown.lines().count(), 1, "{shown}");
    assert_eq!((number_field(&shown, "tail"), number_field(&shown, "sequencer")), (3, 1), "{shown}");
    for (part, count) in [
        (r#""state":"up""#, 2),
        // Nothing is appended meanwhile: a rate that is known and 0.
        (r#""appends_per_s":0.0"#, 2),
        (r#""reads_per_s":0.0"#, 2),
        // One node of a process states its processor time.
        (r#""cpu_percent":null"#, 1),
        (r#""drives":[{"drive":1,"#, 2),
        (r#""tail":true"#, 2),
        (r#""damaged_places":0"#, 2),
    ] {
        assert_eq!(shown.matches(part).count(), count, "{part} in {shown}");
    }
}

#[test]
fn without_a_terminal_one_table_is_printed_without_a_control_character() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let shown = dev.run("top --interval 100ms").expect(0).text();
    assert!(shown.contains(", tail 0, sequencer node 1\n") && shown.contains("\nnode 1 "), "{shown}");
    assert!(shown.chars().all(|letter| letter == '\n' || !letter.is_control()), "{shown:?}");
}

#[test]
fn a_cluster_that_goes_away_is_shown_as_unreachable_until_a_signal_ends_the_view() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let mut top = dev.command("top --json --interval 100ms").spawn().expect("the program starts");
    let mut lines = BufReader::new(top.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("it goes on").expect("text");
    assert!(next().contains(r#""state":"up""#) && next().contains(r#""state":"up""#));
    let gone = dev.command("top --once");
    drop(dev);
    while !next().contains(r#""state":"unreachable","error":""#) {}
    signal(&top, "INT");
    let rest = lines.map(|line| line.expect("text")).last();
    assert!(rest.is_none_or(|line| line.ends_with('}')), "no line is cut");
    assert_eq!(top.wait().expect("it ends").code(), Some(0));
    let told = crate::harness::run(gone, b"").expect(3).stderr;
    assert!(told.starts_with("ithaca: top at 127.0.0.1:") && told.contains("refused"), "{told}");
}

#[test]
fn a_cluster_that_was_started_again_is_shown_in_its_new_epoch_at_its_new_addresses() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    dev.feed("log append --lines", b"1\n2\n3\n").expect(0);
    let mut top = dev.command("top --json --interval 100ms").spawn().expect("the program starts");
    let mut lines = BufReader::new(top.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("it goes on").expect("text");
    assert_eq!(number_field(&next(), "epoch"), 1);
    let listen = dev.log.clone();
    drop(dev);
    let _dev = Dev::start(dir.path(), &["--units", "2", "--listen", &listen]);
    loop {
        let line = next();
        // What counts from zero again has no rate, least of all one below zero.
        assert!(!line.contains(":-"), "{line}");
        if number_field(&line, "epoch") == 2 && line.matches(r#""state":"up""#).count() == 2 {
            break;
        }
    }
    signal(&top, "TERM");
    assert_eq!(top.wait().expect("it ends").code(), Some(0));
}
