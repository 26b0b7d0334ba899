//! Scripts: what a unit does, line by line, in `testdata/unit.txt`.
//!
//! A line that begins with `> ` is an input; the lines after it say what the unit did. `REWRITE=1` writes them anew.

use std::fmt::Write as _;

use super::*;
use crate::wire::Refusal;
use ithaca_chain::{RunKind, Table};
use ithaca_env::sim::Random;

/// The extent that a seal asks about and that is shown, where the script names none.
const EXTENT: &str = "0..1000";

/// A unit, and what its drive would have after a restart.
struct Bench {
    unit: Unit,
    options: UnitOptions,
    /// Batches by ticket: addresses that they cover, addresses that they trim, and the state.
    batches: Vec<(RangeSet, RangeSet, Option<UnitState>)>,
    stored: Recovered,
}

impl Bench {
    fn new(options: UnitOptions) -> Self {
        let (batches, stored) = (Vec::new(), Recovered::default());
        Self { unit: Unit::new(options), options, batches, stored }
    }

    /// Carries out one line; what happened.
    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(shown) = self.look(&words) {
            return shown;
        }
        let number = |at: usize| {
            let digits = words[at].trim_matches(|letter: char| !letter.is_ascii_digit());
            digits.parse::<u64>().expect(line)
        };
        let ranges = |at: usize| parse_ranges(words[at]);
        let input = match words[0] {
            "new" => {
                let limit = |at: usize, or: usize| words.get(at).map_or(or, |_| number(at) as usize);
                let default = UnitOptions::default();
                *self = Self::new(UnitOptions {
                    ranges_max_count: limit(1, default.ranges_max_count),
                    pending_max_count: limit(2, default.pending_max_count),
                    ..default
                });
                return String::new();
            }
            "restart" => return self.restart(),
            "listed" => {
                let stripe = |word: &&str| {
                    let (word, tail) = word.split_once('t').unwrap_or((*word, ""));
                    let (extent, last) = word.split_once('n').unwrap_or((word, ""));
                    let (extent, is_first) =
                        extent.strip_suffix('+').map_or((extent, true), |it| (it, false));
                    let extent = parse_range(extent);
                    let tail = tail.parse().map_or(extent.start, Addr);
                    Listed { extent, is_first, last: last.parse().ok().map(NodeId), tail }
                };
                Input::Listed { epoch: Epoch(number(1)), stripes: words[2..].iter().map(stripe).collect() }
            }
            "marked" => Input::Marked {
                from: NodeId(number(1)),
                epoch: Epoch(number(2)),
                marks: words[3..].iter().map(|word| parse_mark(word)).collect(),
            },
            "write" => Input::Write {
                to: ReplyTo(number(1)),
                run: entries(Epoch(number(2)), Addr(number(3)), words[4]),
            },
            "fill" => Input::Fill { to: ReplyTo(number(1)), epoch: Epoch(number(2)), ranges: ranges(3) },
            "trim" => Input::Trim { to: ReplyTo(number(1)), epoch: Epoch(number(2)), ranges: ranges(3) },
            "seal" => {
                let extents = if words.len() > 3 { ranges(3) } else { vec![parse_range(EXTENT)] };
                Input::Seal { to: ReplyTo(number(1)), epoch: Epoch(number(2)), extents }
            }
            "restore" => restore(&words),
            "persisted" => {
                for (covered, released, state) in self.batches.drain(..number(1) as usize) {
                    covered.ranges().for_each(|range| _ = self.stored.covered.insert(range));
                    released.ranges().for_each(|range| _ = self.stored.released.insert(range));
                    self.stored.state = state.unwrap_or_else(|| self.stored.state.clone());
                }
                let under_way = self.batches.len() as u64;
                Input::Persisted { up_to: Ticket(self.unit.last_ticket.0 - under_way) }
            }
            "not-taken" => {
                self.batches.pop();
                Input::NotTaken { ticket: self.unit.last_ticket, refusal: Refusal::Full }
            }
            "failed" => Input::Failed,
            other => panic!("no such input: {other}"),
        };
        self.step(input)
    }

    /// What a line shows that changes nothing.
    fn look(&self, words: &[&str]) -> Option<String> {
        Some(match words[0] {
            "show" => self.show(),
            "classify" => describe(&self.unit.classify(parse_range(words[1]))) + "\n",
            "readable" => {
                let epoch = Epoch(words[1][1..].parse().expect("an epoch"));
                let committed = words.get(3) == Some(&"committed");
                show_readable(self.unit.readable(epoch, &parse_ranges(words[2]), committed))
            }
            "marks" => {
                let (epoch, marks) = self.unit.marks(&mut Addr(0), 64);
                let marks: Vec<String> = marks.iter().map(show_mark).collect();
                format!("{epoch}: {}\n", marks.join(", "))
            }
            _ => return None,
        })
    }

    fn restart(&mut self) -> String {
        self.unit = Unit::recover(self.options, self.stored.clone());
        self.batches.clear();
        self.show()
    }

    fn step(&mut self, input: Input) -> String {
        let (mut effects, mut out) = (Vec::new(), String::new());
        self.unit.step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist { ticket, runs, release, state, is_copy } => {
                    let copy = if is_copy { " copy" } else { "" };
                    let mut line = format!("persist t{}:{copy}", ticket.0);
                    for run in &runs {
                        _ = write!(line, " {:?} {:?} e{}", run.kind, run.keys(), run.version);
                        if !run.data.is_empty() {
                            _ = write!(line, " {:?}", std::str::from_utf8(&run.data).expect("letters"));
                        }
                    }
                    release.iter().for_each(|range| _ = write!(line, " release {range:?}"));
                    let state = state.map(|state| UnitState::decode(&state).expect("just encoded"));
                    if let Some(state) = &state {
                        _ = write!(line, " state {}", show_state(state));
                    }
                    let covered = runs.iter().map(Run::keys).collect();
                    self.batches.push((covered, release.into_iter().collect(), state));
                    out += &(line + "\n");
                }
                Effect::Reply { to, answer } => {
                    let answer = match answer {
                        Answer::Written { taken, .. } => format!("written{}", listed(&taken)),
                        Answer::Filled { taken } => format!("filled{}", listed(&taken)),
                        Answer::Trimmed => "trimmed".to_owned(),
                        Answer::Restored => "restored".to_owned(),
                        Answer::Sealed(sealed) => {
                            let highest: Vec<String> =
                                sealed.highest.iter().map(|&at| show_highest(at)).collect();
                            format!("sealed {}, highest {}", sealed.epoch, highest.join(", "))
                        }
                        Answer::Refused(refusal) => format!("refused: {refusal}"),
                    };
                    _ = writeln!(out, "q{}: {answer}", to.0);
                }
            }
        }
        out
    }

    fn show(&self) -> String {
        let unit = &self.unit;
        let ExtentBounds { first, watermark, end } =
            unit.bounds(Epoch(u64::MAX), parse_range(EXTENT)).expect("an epoch to come");
        format!(
            "first {first}, watermark {watermark}, end {end}, refuses up to {}, {} wait; {}\n",
            unit.floor(),
            unit.pending_count(),
            show_state(unit.state())
        )
    }
}

/// Entries from `addr` on, with commas between them.
fn entries(epoch: Epoch, addr: Addr, text: &str) -> Run {
    let payloads: Vec<&str> = text.split(',').collect();
    Run {
        first_key: addr.0,
        version: epoch.0,
        kind: RunKind::Data,
        meta: Bytes::new(),
        table: Table::of_payloads(&payloads),
        data: payloads.concat().into(),
    }
}

/// `restore qN eN [@N ENTRIES] [trimmed RANGES] [voided RANGES]`.
fn restore(words: &[&str]) -> Input {
    let of = |word: &str| match words.iter().position(|it| *it == word) {
        Some(at) => parse_ranges(words[at + 1]),
        None => Vec::new(),
    };
    let number = |at: usize| words[at][1..].parse::<u64>().expect("a number");
    let runs = words.iter().position(|it| it.starts_with('@'));
    let runs = runs.map(|at| entries(Epoch(1), Addr(number(at)), words[at + 1]));
    Input::Restore {
        to: ReplyTo(number(1)),
        epoch: Epoch(number(2)),
        runs: runs.into_iter().collect(),
        trimmed: of("trimmed"),
        voided: of("voided"),
        lost: of("lost"),
    }
}

fn parse_ranges(text: &str) -> Vec<AddrRange> {
    text.split(',').map(parse_range).collect()
}

fn parse_range(text: &str) -> AddrRange {
    let (start, end) = text.split_once("..").expect("a range");
    (start.parse::<u64>().expect("a number")..end.parse::<u64>().expect("a number")).into()
}

/// `START:TRIMMED:COMPLETE`.
fn parse_mark(text: &str) -> Mark {
    let mut numbers = text.split(':').map(|number| Addr(number.parse().expect("a number")));
    let mut next = || numbers.next().expect("three numbers");
    Mark { start: next(), trimmed: next(), complete: next() }
}

fn show_mark(mark: &Mark) -> String {
    let Mark { start, trimmed, complete } = mark;
    format!("from {start} trimmed up to {trimmed}, complete up to {complete}")
}

fn show_readable(readable: Result<Readable, Refusal>) -> String {
    match readable {
        Ok(Readable::Served) => "served\n".to_owned(),
        Ok(Readable::Complete(ranges)) => {
            let ranges: Vec<String> = ranges.iter().map(|range| format!("{:?}", range.numbers())).collect();
            format!("complete: {}\n", ranges.join(", "))
        }
        Err(refusal) => format!("refused: {refusal}\n"),
    }
}

fn show_state(state: &UnitState) -> String {
    let told = |told: &SealedExtent| {
        let extent = match told.extent == parse_range(EXTENT) {
            true => String::new(),
            false => format!(" of {:?}", told.extent.numbers()),
        };
        format!(" at {}{extent}", show_highest(told.highest))
    };
    let told: String = state.sealed_extents.iter().map(told).collect::<Vec<_>>().join(",");
    let voided: Vec<String> = state.voided.ranges().map(|range| format!("{range:?}")).collect();
    let voided = if voided.is_empty() { String::new() } else { format!(", voided {}", voided.join(" ")) };
    format!("sealed {}{told}, served {}{voided}", state.sealed, state.served)
}

fn show_highest(highest: Option<Addr>) -> String {
    highest.map_or("none".to_owned(), |addr| addr.to_string())
}

fn describe(parts: &[(AddrRange, Holding)]) -> String {
    let part = |(range, holding): &(AddrRange, Holding)| format!("{:?} {holding:?}", range.numbers());
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn listed(taken: &[(AddrRange, Holding)]) -> String {
    if taken.is_empty() { String::new() } else { format!(", but {}", describe(taken)) }
}

#[test]
fn a_unit_does_what_the_scripts_say() {
    let script = include_str!("../../testdata/unit.txt");
    let mut bench = Bench::new(UnitOptions::default());
    let mut out = String::new();
    for line in script.lines() {
        if line.is_empty() || line.starts_with('#') {
            out += &format!("{line}\n");
        } else if let Some(input) = line.strip_prefix("> ") {
            out += &format!("{line}\n{}", bench.run(input));
        }
    }
    ithaca_env::real::golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/unit.txt"), &out);
}

#[test]
fn planted_faults_of_what_is_committed_show() {
    // Above the mark another replica may hold something else; below it a trim may still be on its way.
    let check = |bug, line: &str, expected: &str| {
        let mut bench = Bench::new(UnitOptions { planted: Planted::bug(bug), ..UnitOptions::default() });
        for before in ["listed e1 0..9n2", "write q1 e1 @0 a,b,c", "persisted 1", "marked n2 e1 0:0:2"] {
            bench.run(before);
        }
        bench.run("trim q2 e1 0..1");
        bench.run("persisted 1");
        assert_eq!(bench.run(line), expected, "{bug:?}");
    };
    let (beyond, trimmed) = ("readable e1 2..3 committed", "readable e1 0..1 committed");
    check(PlantedBug::AckBeforePersist, beyond, "refused: @2 is not known to be on every replica\n");
    check(PlantedBug::CommittedUnchecked, beyond, "complete: 2..3\n");
    check(PlantedBug::AckBeforePersist, trimmed, "refused: @0 is not known to be on every replica\n");
    check(PlantedBug::TrimShownEarly, trimmed, "complete: 0..1\n");
}

#[test]
fn long_random_runs_of_requests_agree_with_a_map_of_addresses() {
    // What a model of single addresses says must be what ranges say, whatever overlaps, is turned down or restarts.
    let mut random = Random::new(3);
    for _ in 0..300 {
        let mut bench = Bench::new(UnitOptions::default());
        let (mut model, mut last): (Vec<u8>, u64) = (vec![0; 64], 0);
        for _ in 0..60 {
            let start = random.below(50);
            let end = start + 1 + random.below(8);
            let range = start as usize..end as usize;
            let epoch = bench.unit.floor().0 + 1;
            let letters = vec!["x"; range.len()].join(",");
            let (line, mark) = match random.below(6) {
                0 | 1 => (format!("write q1 e{epoch} @{start} {letters}"), 1),
                2 => (format!("fill q1 e{epoch} {start}..{end}"), 1),
                3 => (format!("trim q1 e{epoch} {start}..{end}"), 2),
                4 => (format!("seal q1 e{}", epoch - 1), 0),
                _ => ("restart".to_owned(), 0),
            };
            bench.run(&format!("listed e{epoch}"));
            let out = bench.run(&line);
            if out.contains("persist") && random.below(10) == 0 {
                bench.run("not-taken");
                continue;
            }
            if mark == 2 && end > last {
                assert!(out.contains("is unwritten"), "{line}: {out}");
                continue;
            }
            if mark > 0 {
                model[range].iter_mut().for_each(|held| *held = (*held).max(mark));
                last = last.max(end);
            }
            bench.run(&format!("persisted {}", bench.batches.len()));
            let expected: Vec<Holding> = model
                .iter()
                .map(|held| match held {
                    0 => Holding::Unwritten,
                    1 => Holding::Stored,
                    _ => Holding::Trimmed,
                })
                .collect();
            let parts = bench.unit.classify((0..64).into());
            let found = parts.iter().flat_map(|(range, holding)| range.numbers().map(|_| *holding));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{line}: {out}");
            for count_max in 0..=parts.len() {
                let mut first = Vec::new();
                let is_all = bench.unit.classify_into(0..64, &mut first, count_max);
                assert_eq!((&first[..], is_all), (&parts[..count_max], count_max == parts.len()));
            }
        }
    }
}

#[test]
fn what_is_voided_and_trimmed_since_leaves_room_for_more() {
    // Else a unit that was away often enough could not be made whole any more.
    let mut bench = Bench::new(UnitOptions::default());
    let count = crate::limits::VOIDED_MAX_COUNT as u64;
    for addr in 0..count + 3 {
        bench.run(&format!("write q1 e1 @{} x", addr * 2));
        bench.run("persisted 1");
    }
    let void = |bench: &mut Bench, epoch: u64, nth: u64| {
        let voided = bench.run(&format!("restore q2 e{epoch} voided {}..{}", nth * 2, nth * 2 + 1));
        voided.starts_with("persist") && bench.run("persisted 1") == "q2: restored\n"
    };
    assert!((0..count).all(|nth| void(&mut bench, 2, nth)));
    assert!(!void(&mut bench, 2, count), "so many are remembered");
    bench.run("trim q3 e2 0..1");
    assert!(!void(&mut bench, 2, count), "the trim is not durable");
    bench.run("persisted 1");
    assert!(void(&mut bench, 2, count));
    bench.run("trim q3 e2 2..3");
    bench.run("persisted 1");
    // What is stored names it still.
    bench.run("restart");
    assert!(void(&mut bench, 3, count + 1));
}

#[test]
fn what_is_trimmed_within_a_voided_range_leaves_a_state_that_can_be_read() {
    // Each such trim parts the range: what is stored of them has a limit, and a state past it opens no unit.
    for restarts in [false, true] {
        let mut bench = Bench::new(UnitOptions::default());
        let (end, trims) = (2200, 1030);
        bench.run(&format!("write q1 e1 @0 {}", vec!["x"; end].join(",")));
        bench.run("persisted 1");
        bench.run(&format!("restore q2 e2 voided 0..{end}"));
        let odd: Vec<String> = (0..trims).map(|nth| format!("{}..{}", 2 * nth + 1, 2 * nth + 2)).collect();
        bench.run(&format!("trim q3 e2 {}", odd.join(",")));
        assert_eq!(bench.run("persisted 2"), "q2: restored\nq3: trimmed\n");
        if restarts {
            bench.run("restart");
        }
        bench.run("listed e2");
        // Decodes what it stores.
        assert!(bench.run("seal q4 e2").starts_with("persist"));
        assert!(bench.run("persisted 1").starts_with("q4: sealed e2"));
        let held = |addr: u64| bench.unit.classify((addr..addr + 1).into())[0].1;
        assert!(
            (0..2 * trims).all(|addr| held(addr) == [Holding::Voided, Holding::Trimmed][addr as usize % 2])
        );
        assert!((2 * trims..end as u64).all(|addr| held(addr) == Holding::Voided));
        // Of what is trimmed by and by nothing is in the way of others.
        bench.run(&format!("trim q5 e3 0..{end}"));
        bench.run(&format!("write q6 e3 @3000 {}", vec!["x"; end].join(",")));
        bench.run("persisted 2");
        let more: Vec<String> = (1500..2524).map(|nth| format!("{}..{}", 2 * nth, 2 * nth + 1)).collect();
        assert!(bench.run(&format!("restore q7 e3 voided {}", more.join(","))).starts_with("persist"));
    }
}

#[test]
fn a_seal_that_has_told_of_all_that_it_remembers_tells_of_other_extents_as_well() {
    // Whoever has asked first may be mistaken about where the unit's stripes are.
    let mut bench = Bench::new(UnitOptions::default());
    bench.run("listed e1");
    bench.run("write q1 e1 @7 x");
    let extents: Vec<String> = (0..256).map(|nth| format!("{nth}..{}", nth + 1)).collect();
    bench.run(&format!("seal q2 e1 {}", extents.join(",")));
    bench.run("persisted 2");
    assert!(bench.run("seal q3 e1").starts_with("persist"));
    assert_eq!(bench.run("persisted 1"), "q3: sealed e1, highest @7\n");
    bench.run("restart");
    assert_eq!(bench.run("seal q4 e1"), "q4: sealed e1, highest @7\n");
    assert!(bench.run(&format!("seal q5 e1 {}", extents.join(","))).starts_with("persist"), "the same again");
}

#[test]
fn a_fill_of_more_holes_than_are_stored_together_is_refused_whole() {
    let mut bench = Bench::new(UnitOptions::default());
    let holes = crate::limits::PARTS_MAX_COUNT as u64 + 1;
    for addr in 0..holes {
        bench.run(&format!("write q1 e1 @{} x", addr * 2));
        bench.run("persisted 1");
    }
    let refused = bench.run(&format!("fill q2 e1 0..{}", holes * 2));
    assert_eq!(refused, "q2: refused: 4097 is over the limit of 4096\n");
    let filled = bench.run(&format!("fill q3 e1 0..{}", holes * 2 - 2));
    assert!(filled.starts_with("persist"), "{filled}");
}
