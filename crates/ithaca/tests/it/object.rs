//! `ithaca map` and `ithaca tx`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::harness::{Dev, number_field, run, string_field, temp_dir};

#[test]
fn a_map_keeps_what_is_put_and_says_where() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    let first = number_field(&dev.run("map put users ann 41 --json").expect(0).text(), "log_pos");
    let second = number_field(&dev.run("map put users ann 42 --json").expect(0).text(), "log_pos");
    assert!(first < second);
    dev.run("map put users bob 7").expect(0);
    let got = dev.run("map get users ann --json").expect(0).text();
    assert_eq!(got, format!("{{\"key\":\"ann\",\"value\":\"42\",\"log_pos\":{second}}}\n"));
    assert_eq!(dev.run("map get users ann").expect(0).text(), "42\n");
    assert_eq!(dev.run("map ls users").expect(0).text(), "ann\t42\nbob\t7\n");
    assert_eq!(dev.run("map size users --json").expect(0).text(), "{\"size\":2}\n");
    assert_eq!(dev.run(&format!("map get users ann --as-of {first}")).expect(0).text(), "41\n");
    assert_eq!(dev.run("map get users ann --remote --json").expect(0).text(), got, "a node says the same");
    assert_eq!(dev.run(&format!("map get users ann --remote --as-of {first}")).expect(0).text(), "41\n");
    assert_eq!(dev.run("map size users --remote").expect(0).text(), "2\n");
    dev.run("map get users carl --remote").expect(1);
    dev.run("map del users ann").expect(0);
    let told = dev.run("map get users ann").expect(1).stderr;
    assert!(told.contains("\"users\"") && told.contains("\"ann\""), "{told}");
    dev.run("map del users ann").expect(1);
    assert_eq!(dev.run(&format!("map get users ann --as-of {second}")).expect(0).text(), "42\n");
    dev.run("map get users ann --as-of 100000").expect(1);
    let text = dev.feed("tx -", b"push log started\nput users carl 1\n").expect(0).text();
    assert!(text.contains("committed"), "{text}");
    assert_eq!(dev.run("stream ls").expect(0).text(), "log\nusers\n", "what was written to has a name");
}

#[test]
fn a_key_is_changed_only_if_it_is_as_was_said() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let taken = dev.run("map put locks backup one --if-absent --json").expect(0).text();
    let taken = number_field(&taken, "log_pos");
    let told = dev.run("map put locks backup two --if-absent").expect(1).stderr;
    assert!(told.contains("\"backup\"") && told.contains(&format!("position {taken}")), "{told}");
    dev.run(&format!("map put locks backup two --if-at {}", taken + 1)).expect(1);
    dev.run(&format!("map put locks other two --if-at {taken}")).expect(1);
    assert_eq!(dev.run("map ls locks").expect(0).text(), "backup\tone\n", "nothing was changed");
    let again = dev.run(&format!("map put locks backup three --if-at {taken} --json")).expect(0).text();
    let again = number_field(&again, "log_pos");
    assert_eq!(dev.run("map get locks backup").expect(0).text(), "three\n");
    dev.run(&format!("map del locks backup --if-at {taken}")).expect(1);
    dev.run(&format!("map del locks backup --if-at {again}")).expect(0);
    dev.run(&format!("map del locks backup --if-at {again}")).expect(1);
    assert_eq!(dev.run("map size locks").expect(0).text(), "0\n");
    dev.run("map put locks backup one --if-absent --if-at 1").expect(2);
    dev.feed("tx -", b"push things one\n").expect(0);
    dev.run("map put things a b --if-absent").expect(2);
}

#[test]
fn a_map_of_a_program_is_read_whatever_its_types_are_and_not_written_with_others() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    // Of numbers to bytes.
    dev.run("bench map --shared --clients 1 --inflight 8 --size 16 --seconds 1").expect(0);
    let all = dev.run("map ls bench --json").expect(0).text();
    let (first, key) = (all.lines().next().expect("a key"), number_field(&all, "key"));
    assert!(first.contains("\"value\":{\"base64\":\""), "{first}");
    assert_eq!(dev.run(&format!("map get bench {key} --json")).expect(0).text(), format!("{first}\n"));
    assert_eq!(
        dev.run(&format!("map get bench {key} --remote --json")).expect(0).text(),
        format!("{first}\n")
    );
    let size = dev.run("map size bench").expect(0).text();
    assert_eq!(size, format!("{}\n", all.lines().count()));
    for change in ["map put bench x y", "map put bench x y --if-absent", "map del bench x"] {
        let told = dev.run(change).expect(2).stderr;
        assert!(told.contains("`bench` is no map: ") && told.contains("of another type"), "{told}");
    }
    let told = dev.feed("tx -", b"put bench x y\n").expect(2).stderr;
    assert!(told.contains("`bench` is no map: "), "{told}");
    dev.run("map checkpoint bench").expect(0);
    assert_eq!(dev.run("map size bench").expect(0).text(), size, "nothing has stopped it");
    dev.run("map clear bench").expect(0);
    assert_eq!(dev.run("map size bench").expect(0).text(), "0\n");
}

#[test]
fn a_map_says_which_span_of_its_past_is_kept() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put users ann 41").expect(0);
    assert_eq!(dev.run("map history users").expect(0).text(), "all\n");
    assert_eq!(dev.run("map history users 24h --json").expect(0).text(), "{\"history_ms\":86400000}\n");
    assert_eq!(dev.run("map history users").expect(0).text(), "86400s\n");
    assert_eq!(dev.run("map history users all --json").expect(0).text(), "{\"history_ms\":null}\n");
    let told = dev.run("map history users 24x").expect(2).stderr;
    assert!(told.contains("24x"), "{told}");
    dev.run("map history users 500us").expect(2);
    dev.feed("tx -", b"push things one\n").expect(0);
    dev.run("map history things 24h").expect(2);
}

#[test]
fn a_map_that_was_cleared_is_empty_and_can_be_seen_as_it_was() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put users ann 41").expect(0);
    let full = number_field(&dev.run("map put users bob 7 --json").expect(0).text(), "log_pos");
    let cleared = number_field(&dev.run("map clear users --json").expect(0).text(), "log_pos");
    assert!(full < cleared);
    assert_eq!(dev.run("map ls users").expect(0).text(), "");
    assert_eq!(dev.run("map size users --remote").expect(0).text(), "0\n", "a node says the same");
    assert_eq!(dev.run(&format!("map ls users --as-of {full}")).expect(0).text(), "ann\t41\nbob\t7\n");
    dev.feed("tx -", b"push things one\n").expect(0);
    let told = dev.run("map clear things").expect(2).stderr;
    assert!(told.contains("`things` is no map"), "{told}");
}

#[test]
fn a_key_is_watched_and_each_of_its_values_is_told() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let first = number_field(&dev.run("map put users ann 41 --json").expect(0).text(), "log_pos");
    let mut watching = dev.command("map watch users ann --count 4");
    let mut watching = watching.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut told = BufReader::new(watching.stdout.take().expect("a pipe"));
    let mut line = || {
        let mut line = String::new();
        told.read_line(&mut line).expect("it goes on");
        line
    };
    assert_eq!(line(), format!("{first}\t41\n"), "what is there");
    dev.run("map put users bob 7").expect(0);
    let second = number_field(&dev.run("map put users ann 42 --json").expect(0).text(), "log_pos");
    assert_eq!(line(), format!("{second}\t42\n"));
    let third = number_field(&dev.run("map del users ann --json").expect(0).text(), "log_pos");
    assert_eq!(line(), format!("{third}\n"), "it is gone");
    let fourth = number_field(&dev.run("map put users ann 43 --json").expect(0).text(), "log_pos");
    assert_eq!(line(), format!("{fourth}\t43\n"));
    assert!(watching.wait().expect("it ends").success());
    let again = dev.run(&format!("map watch users ann --since {first} --count 2 --json")).expect(0).text();
    let expected = format!(
        "{{\"key\":\"ann\",\"value\":\"42\",\"log_pos\":{second}}}\n{{\"key\":\"ann\",\"value\":null,\"log_pos\":{third}}}\n"
    );
    assert_eq!(again, expected, "the past is told in the same way");
}

#[test]
fn a_map_is_what_it_was_after_its_past_was_forgotten() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let old = number_field(&dev.run("map put users ann 41 --json").expect(0).text(), "log_pos");
    let text = dev.run("map forget users --json").expect(0).text();
    assert_eq!(number_field(&text, "earliest"), 0, "without a checkpoint nothing is: {text}");
    dev.run("map put users ann 42").expect(0);
    let upto = number_field(&dev.run("map checkpoint users --json").expect(0).text(), "upto");
    let text = dev.run("map forget users --older 1h --json").expect(0).text();
    assert_eq!(number_field(&text, "earliest"), 0, "it was not made an hour ago: {text}");
    dev.run("map forget users --older 1h --before 3").expect(2);
    assert_eq!(number_field(&dev.run("map forget users --json").expect(0).text(), "earliest"), upto);
    assert_eq!(dev.run("map ls users").expect(0).text(), "ann\t42\n");
    let told = dev.run(&format!("map get users ann --as-of {old}")).expect(1).stderr;
    assert!(told.contains(&format!("{upto} is the earliest")), "{told}");
    dev.run("map put users bob 7").expect(0);
    assert_eq!(dev.run("map ls users").expect(0).text(), "ann\t42\nbob\t7\n");
}

#[test]
fn a_map_that_has_lost_a_change_is_refused_until_what_is_left_of_it_is_taken() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let put = |key: &str| {
        number_field(&dev.run(&format!("map put users {key} 1 --json")).expect(0).text(), "log_pos")
    };
    put("ann");
    let lost = put("bob");
    let last = put("cleo");
    dev.run(&format!("log trim {lost}")).expect(0);
    for verb in ["ls users", "checkpoint users", "put users dan 1", "get users ann --remote"] {
        let told = dev.run(&format!("map {verb}")).expect(1).stderr;
        assert!(told.contains("`users` lacks what was trimmed"), "{told}");
    }
    let upto = number_field(&dev.run("map checkpoint users --what-is-left --json").expect(0).text(), "upto");
    assert!(upto > last, "{upto}");
    let told = dev.feed("log append --stream users", b"no record").expect(2).stderr;
    assert!(told.contains("\"users\" is an object's"), "{told}");
    assert_eq!(dev.run("map ls users").expect(0).text(), "ann\t1\ncleo\t1\n");
    assert_eq!(dev.run("map size users --remote").expect(0).text(), "2\n");
    put("bob");
    assert_eq!(dev.run("map size users").expect(0).text(), "3\n");
}

#[test]
fn a_position_that_a_map_cannot_be_shown_as_of_is_refused_with_those_that_it_can() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put others ann 40").expect(0);
    let put = number_field(&dev.run("map put users ann 41 --json").expect(0).text(), "log_pos");
    // The map's name comes after it.
    let (last, next) = (put + 1, put + 2);
    dev.run(&format!("map get users ann --as-of {put}")).expect(0);
    for verb in ["get users ann", "get users ann --remote", "ls users"] {
        let told = dev.run(&format!("map {verb} --as-of {next}")).expect(1).stderr;
        assert!(told.contains(&format!("as of position {next}: the log's last is {last}")), "{told}");
    }
    let told = dev.feed("tx -", format!("as-of {next}\nget users ann\n").as_bytes()).expect(1).stderr;
    assert!(told.contains(&format!("as of position {next}: the log's last is {last}")), "{told}");
    // What no position can be is told alike.
    let (max, expected) = (u64::MAX, format!("no position is {}", u64::MAX));
    let told = dev.run(&format!("map get users ann --as-of {max}")).expect(2).stderr;
    let of_tx = dev.feed("tx -", format!("as-of {max}\nget users ann\n").as_bytes()).expect(2).stderr;
    assert!(told.contains(&expected) && of_tx.contains(&expected), "{told} {of_tx}");
    let upto = number_field(&dev.run("map checkpoint users --json").expect(0).text(), "upto");
    dev.run("map forget users").expect(0);
    let (first, gone) = (upto - 1, upto - 2);
    dev.run(&format!("map get users ann --as-of {first}")).expect(0);
    for more in ["", " --remote"] {
        let told = dev.run(&format!("map get users ann --as-of {gone}{more}")).expect(1).stderr;
        assert!(told.contains(&format!("as of position {gone} is forgotten")), "{told}");
        assert!(told.contains(&format!("--as-of {first} and later")), "{told}");
    }
}

#[test]
fn a_map_is_there_after_a_restart() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put users ann 41").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let dev = Dev::start(dir.path(), &[]);
    assert_eq!(dev.run("map get users ann").expect(0).text(), "41\n");
    dev.run("map put users ann 42").expect(0);
    assert_eq!(dev.run("map get users ann").expect(0).text(), "42\n");
}

#[test]
fn a_script_is_one_transaction_and_shows_what_it_saw_when_it_is_committed() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let script = "put accounts ann 10\nget accounts ann\nadd transfers 1\ncount transfers\npush log \"ann has 10\"\n\
                  size accounts\nget accounts bob\n";
    let text = dev.feed("tx - --json", script.as_bytes()).expect(0).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r#"{"op":"get","object":"accounts","key":"ann","value":"10"}"#);
    assert_eq!(lines[1], r#"{"op":"count","object":"transfers","value":1}"#);
    assert_eq!(lines[2], r#"{"op":"size","object":"accounts","size":1}"#);
    assert_eq!(lines[3], r#"{"op":"get","object":"accounts","key":"bob","value":null}"#);
    let pos = number_field(lines[4], "log_pos");
    assert!(lines[4].starts_with("{\"committed\":true,"), "{text}");
    let got = dev.run("map get accounts ann --json").expect(0).text();
    assert_eq!(number_field(&got, "log_pos"), pos, "all of it stands at one position");
    assert_eq!(dev.feed("tx -", b"pop log\n").expect(0).text().lines().next(), Some("ann has 10"));
}

#[test]
fn a_script_that_read_what_was_changed_since_aborts_and_says_which_key() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let old = number_field(&dev.run("map put accounts ann 10 --json").expect(0).text(), "log_pos");
    let new = number_field(&dev.run("map put accounts ann 11 --json").expect(0).text(), "log_pos");
    let script = format!("as-of {old}\nget accounts ann\nput accounts ann 12\n");
    let ran = dev.feed("tx -", script.as_bytes()).expect(1);
    assert!(ran.stderr.contains("\"ann\"") && ran.stderr.contains("`accounts`"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("position {new}")), "{}", ran.stderr);
    assert_eq!(ran.text(), "", "what it saw is not shown");
    assert_eq!(dev.run("map get accounts ann").expect(0).text(), "11\n");
    // Another key is no conflict, and neither is a write of what was not read.
    let script = format!("as-of {old}\nget accounts bob\nput accounts cy 12\n");
    dev.feed("tx -", script.as_bytes()).expect(0);
    let script = format!("as-of {old}\nget accounts ann\n");
    assert!(dev.feed("tx -", script.as_bytes()).expect(0).text().starts_with("10\n"), "a look at the past");
}

#[test]
fn a_conflict_while_a_script_runs_aborts_it_and_a_retry_commits_it() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put accounts ann 10").expect(0);
    let script = dir.path().join("script");
    std::fs::write(&script, "get accounts ann\npause 3s\nput accounts bob 1\n").expect("written");
    let start = |more: &str| {
        let mut command = dev.command(&format!("tx {more}"));
        command.arg(&script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let (once, again) = (start(""), start("--retries 3"));
    // Until both have begun: they read the key at the snapshot that they begin with, whenever that is; so it is changed again
    // and again while they run.
    let changed = |nth: u32| dev.run(&format!("map put accounts ann {nth}")).expect(0);
    let (mut once, mut nth) = (once, 0);
    while once.try_wait().expect("a child").is_none() {
        changed(nth);
        nth += 1;
    }
    let once = once.wait_with_output().expect("it ends");
    assert_eq!(once.status.code(), Some(1), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!(again.wait_with_output().expect("it ends").status.code(), Some(0));
    assert_eq!(dev.run("map get accounts bob").expect(0).text(), "1\n");
}

#[test]
fn an_expectation_that_is_not_met_aborts() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("tx -", b"expect locks door\nput locks door ann\n").expect(0);
    let ran = dev.feed("tx -", b"expect locks door\nput locks door bob\n").expect(1);
    assert!(ran.stderr.contains("\"door\"") && ran.stderr.contains("ann"), "{}", ran.stderr);
    assert_eq!(dev.run("map get locks door").expect(0).text(), "ann\n");
}

#[test]
fn an_addition_that_a_counter_has_no_room_for_aborts_and_changes_nothing() {
    // It came out at the other end of the range, without a word.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let max = i64::MAX.to_string();
    dev.feed("tx -", format!("add full {max}\nadd low -5000000000000000000\n").as_bytes()).expect(0);
    for (script, counter, stands_at) in [
        ("put kept k v\nadd full 1\n", "full", max.as_str()),
        ("add low -5000000000000000000\n", "low", "-5000000000000000000"),
        ("add new 9223372036854775807\nadd new 1\n", "new", max.as_str()),
    ] {
        for isolation in ["strict", "snapshot"] {
            let ran = dev.feed(&format!("tx - --isolation {isolation}"), script.as_bytes()).expect(1);
            let told = format!("aborted: \"{counter}\" is {stands_at}, and ");
            assert!(ran.stderr.contains(&told), "{script}: {}", ran.stderr);
        }
    }
    dev.run("map get kept k").expect(1);
    dev.feed("tx -", b"add full -1\nadd full 1\nadd low 1\n").expect(0);
    let stand = dev.feed("tx -", b"count full\ncount low\ncount new\n").expect(0).text();
    assert_eq!(stand.lines().take(3).collect::<Vec<_>>(), [max.as_str(), "-4999999999999999999", "0"]);
    let told = dev.feed("tx -", b"add full 9223372036854775808\n").expect(2).stderr;
    assert!(told.contains("line 1") && told.contains("is no whole number"), "{told}");
}

#[test]
fn a_script_that_cannot_be_read_is_wrong_usage_before_anything_is_reached() {
    let mut command = crate::harness::ithaca(&["tx", "/no/such/script"]);
    command.args(["--endpoint", "127.0.0.1:0"]);
    let told = run(command, b"").expect(2).stderr;
    assert!(told.contains("/no/such/script"), "{told}");
    let told = run(crate::harness::ithaca(&["tx", "-"]), b"get a b\nfly a\n").expect(2).stderr;
    assert!(told.contains("line 2"), "{told}");
    // It was read until there was no memory.
    let told = run(crate::harness::ithaca(&["tx", "/dev/zero"]), b"").expect(2).stderr;
    assert!(told.contains("tx /dev/zero: a file of more than 4194304 bytes"), "{told}");
    let told = run(crate::harness::ithaca(&["tx", "-"]), &vec![b'\n'; (4 << 20) + 1]).expect(2).stderr;
    assert!(told.contains("a script of more than 4194304 bytes"), "{told}");
    let many: String = (0..17).map(|number| format!("put map-{number} k v\n")).collect();
    let told = run(crate::harness::ithaca(&["tx", "-"]), many.as_bytes()).expect(2).stderr;
    assert!(told.contains("a transaction that changes more than 16 objects"), "{told}");
}

#[test]
fn lists_show_what_would_do_something_to_a_terminal_as_an_escape() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("tx -", b"put words \"one\ttwo\" \"\x1b[31mred\"\n").expect(0);
    assert_eq!(dev.run("map ls words").expect(0).text(), "one\\ttwo\t\\u{1b}[31mred\n");
    assert_eq!(dev.run("map ls words --json").expect(0).text().lines().count(), 1);
}

#[test]
fn a_map_whose_name_belongs_to_a_list_is_told_apart() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("tx -", b"push things one\n").expect(0);
    let told = dev.run("map get things one").expect(2).stderr;
    assert!(told.contains("`things` is no map: the entry at position 0 calls `append`"), "{told}");
}

#[test]
fn what_would_stop_an_object_for_good_is_refused() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.run("map put acc ann 10").expect(0);
    dev.feed("tx -", b"push things one\n").expect(0);
    dev.feed("stream append raw", b"x").expect(0);
    for (script, told) in [
        ("add acc 1\n", "`acc` is no counter: the entry at position 0 calls `put`"),
        ("put acc bob 1\npush acc two\n", "`acc` is no list: the entry at position 0 calls `put`"),
        ("put things k v\n", "`things` is no map: the entry at position 2 calls `append`"),
        ("put raw k v\n", "`raw` is no map: the entry at position 5 is no record of an object"),
    ] {
        let ran = dev.feed("tx -", script.as_bytes()).expect(2);
        assert!(ran.stderr.contains(told), "{script}: {}", ran.stderr);
    }
    for line in ["map put things k v", "map del things k", "map put raw k v"] {
        let told = dev.run(line).expect(2).stderr;
        assert!(told.contains("is no map"), "{line}: {told}");
    }
    for line in [
        "get raw k",
        "ls raw",
        "size raw",
        "watch raw k --since 0",
        "checkpoint raw",
        "get things k",
        "size things --remote",
    ] {
        let told = dev.run(&format!("map {line}")).expect(2).stderr;
        assert!(told.contains("is no map: the entry at position"), "{line}: {told}");
    }
    for script in ["get raw k\n", "size things\n", "count acc\n", "expect things k v\n"] {
        let told = dev.feed("tx -", script.as_bytes()).expect(2).stderr;
        assert!(told.contains("the entry at position"), "{script}: {told}");
    }
    let told = dev.feed("stream append acc", b"x").expect(2).stderr;
    assert!(told.contains("\"acc\" is an object's: a record of it stands at position 0"), "{told}");
    let told = dev.run("stream trim acc 1").expect(2).stderr;
    assert!(told.contains("\"acc\" is an object's: a record of it stands at position 0"), "{told}");
    assert_eq!(dev.run("map get acc ann").expect(0).text(), "10\n");
    assert_eq!(dev.feed("tx -", b"pop things\n").expect(0).text().lines().next(), Some("one"));
    assert_eq!(dev.run("stream read raw 0").expect(0).text(), "x");
    dev.run("stream trim raw 1").expect(0);
    dev.run("stream trim acc 1 --force").expect(0);
    let told = dev.run("map get acc ann").expect(1).stderr;
    assert!(told.contains("trimmed"), "{told}");
}

#[test]
fn an_object_of_which_every_call_is_forgotten_is_still_taken_for_no_other() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    for line in ["put acc ann 10", "checkpoint acc", "forget acc"] {
        dev.run(&format!("map {line}")).expect(0);
    }
    assert_eq!(dev.run("stream read acc").expect(0).text(), "", "no call is left");
    for script in ["push acc two\n", "add acc 1\n", "pop acc\n", "count acc\n"] {
        let told = dev.feed("tx -", script.as_bytes()).expect(2).stderr;
        assert!(told.contains("is of a checkpoint of another type"), "{script}: {told}");
    }
    let told = dev.feed("stream append acc", b"x").expect(2).stderr;
    assert!(told.contains("\"acc\" is an object's: a record of checkpoints"), "{told}");
    dev.run("stream trim acc 1").expect(2);
    assert_eq!(dev.run("map get acc ann").expect(0).text(), "10\n");
    dev.run("map put acc bob 5").expect(0);
    assert_eq!(dev.run("map ls acc").expect(0).text(), "ann\t10\nbob\t5\n");
}

#[test]
fn maps_and_transactions_are_measured() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    for line in ["map", "tx", "map --shared", "tx --shared"] {
        let line = format!("bench {line} --seconds 1 --size 64 --clients 2 --inflight 4 --json");
        let json = dev.run(&line).expect(0).text();
        assert!(number_field(&json, "ops") > 0 && string_field(&json, "durability") == "fsync", "{json}");
    }
}
