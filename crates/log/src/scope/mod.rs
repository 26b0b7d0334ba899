//! Small scope, exhaustively: a log unit, its drive, sequencers and a few clients with short scripts, in every order in
//! which requests can arrive, batches become durable, and the unit crash or its drive fail.
//!
//! Requests and replies may be delayed for ever, so that a client's next request arrives at any time; that is the same as a
//! network in between. [`oracle`] states what must hold, as numbered in the design of the tests: one value per position
//! (15), no acknowledged append lost (16), tokens that are never given out over something written (17), linearizable reads
//! and checks (18), seals that hold across restarts (19), data for all or junk for all (21), monotonic trims (22), and
//! nothing changed by whoever acts in an old epoch (25).
//!
//! [`consensus`] and [`lease`] do the same for deciding layouts.
//!
//! Each planted fault is run through the same scenarios, and must break at least one of those.

/// A test for each planted fault: what the scenarios of a scope find must break the rule that is named.
macro_rules! planted {
    ($($test:ident: $bug:ident breaks $rule:literal,)*) => {
        $(#[test]
        fn $test() {
            let violation = found(PlantedBug::$bug);
            assert!(violation.contains($rule), "{}: {violation}", stringify!($bug));
        })*
    };
}

mod consensus;
mod disk;
mod lease;
mod oracle;
mod replicas;
mod search;
mod world;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use crate::planted::{Planted, PlantedBug};
use world::{Event, Op, World};

/// What a scenario consists of.
struct Scenario {
    name: &'static str,
    /// A script for each client.
    scripts: &'static [&'static [Op]],
    crashes: u8,
    failures: u8,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two clients append and read while the sequencer is replaced",
        scripts: &[
            &[Op::Token(1, 1), Op::Write, Op::Read(1, 0), Op::Read(2, 1)],
            &[Op::Token(1, 1), Op::Write, Op::Token(2, 1), Op::Write, Op::Check(2)],
            &[Op::Seal(1), Op::Install],
        ],
        crashes: 2,
        failures: 0,
    },
    Scenario {
        name: "clients append runs, fill, read and trim while the sequencer is replaced and the drive fails",
        scripts: &[
            &[Op::Token(1, 2), Op::Write, Op::Trim(2, 0, 1), Op::Read(2, 0)],
            &[Op::Token(1, 1), Op::Write, Op::Fill(2, 0, 3), Op::Token(2, 2), Op::Write],
            &[Op::Seal(1), Op::Install, Op::Read(2, 1), Op::Seal(1)],
        ],
        crashes: 1,
        failures: 1,
    },
    Scenario {
        name: "a hole is filled while its owner writes",
        scripts: &[
            &[Op::Token(1, 2), Op::Write, Op::Read(1, 1)],
            &[Op::Fill(1, 0, 2), Op::Read(1, 0), Op::Read(1, 1)],
            &[Op::Fill(1, 1, 2), Op::Read(1, 1)],
        ],
        crashes: 1,
        failures: 0,
    },
    Scenario {
        name: "fills and seals meet",
        scripts: &[
            &[Op::Token(1, 1), Op::Write, Op::Fill(2, 0, 1), Op::Read(2, 0)],
            &[Op::Seal(1), Op::Install, Op::Token(2, 1), Op::Write],
            &[Op::Fill(1, 0, 2)],
        ],
        crashes: 1,
        failures: 0,
    },
    Scenario {
        name: "two clients write overlapping runs, and a third trims",
        scripts: &[
            &[Op::WriteAt(1, 0, 2), Op::Read(1, 1)],
            &[Op::WriteAt(1, 1, 2), Op::Read(1, 0)],
            &[Op::Trim(1, 0, 2), Op::Read(1, 0), Op::Read(1, 1)],
        ],
        crashes: 1,
        failures: 0,
    },
    Scenario {
        name: "a hole is trimmed before it is written",
        scripts: &[&[Op::WriteAt(1, 1, 1), Op::Trim(1, 0, 1)], &[Op::WriteAt(1, 0, 1), Op::Read(1, 0)]],
        crashes: 2,
        failures: 0,
    },
    Scenario {
        name: "two coordinators seal the same epoch, one late",
        scripts: &[
            &[Op::WriteAt(1, 0, 1), Op::WriteAt(1, 1, 1)],
            &[Op::Seal(1), Op::Install, Op::Token(2, 1), Op::Write],
            &[Op::Seal(1), Op::Seal(1)],
        ],
        crashes: 1,
        failures: 0,
    },
    Scenario {
        name: "a coordinator asks the seal about another extent, late",
        scripts: &[
            &[Op::WriteAt(1, 0, 1), Op::WriteAt(1, 1, 1)],
            &[Op::Seal(1), Op::Install, Op::Token(2, 1), Op::Write],
            &[Op::SealPart(1, 0, 1), Op::SealPart(1, 1, 9), Op::SealPart(1, 0, 1)],
        ],
        crashes: 1,
        failures: 0,
    },
    Scenario {
        name: "a restarted unit is asked in its old epoch",
        scripts: &[&[Op::WriteAt(1, 0, 1), Op::WriteAt(1, 1, 1), Op::Read(1, 0)]],
        crashes: 2,
        failures: 0,
    },
    Scenario {
        name: "the drive fails",
        scripts: &[
            &[Op::WriteAt(1, 0, 1), Op::WriteAt(1, 1, 1), Op::Read(1, 0)],
            &[Op::WriteAt(1, 0, 1), Op::Seal(1), Op::Read(2, 0)],
        ],
        crashes: 1,
        failures: 1,
    },
    Scenario {
        name: "data arrives damaged",
        scripts: &[&[Op::WriteDamaged(1, 0), Op::Read(1, 0)], &[Op::WriteAt(1, 0, 1)]],
        crashes: 0,
        failures: 0,
    },
];

/// What an exploration came to.
struct Outcome {
    states: usize,
    /// Requests that were answered with something else than a refusal, in any state.
    done: usize,
    violation: Option<String>,
}

/// Goes through every state of `scenario` once, until one breaks a rule.
fn explore(scenario: &Scenario, planted: Planted) -> Outcome {
    let first = World::new(scenario.scripts, scenario.crashes, scenario.failures, planted);
    let mut outcome = Outcome { states: 1, done: 0, violation: None };
    let mut seen = BTreeSet::from([fingerprint(&first)]);
    let mut open: Vec<(World, Vec<Event>)> = vec![(first, Vec::new())];
    while let Some((world, trace)) = open.pop() {
        for event in world.possible() {
            let mut next = world.clone();
            let done = next.happen(event);
            let mut trace = trace.clone();
            trace.push(event);
            match done {
                Ok(done) => outcome.done += done,
                Err(broken) => {
                    outcome.violation = Some(format!("{}: {broken}, after {trace:?}", scenario.name));
                    return outcome;
                }
            }
            if seen.insert(fingerprint(&next)) {
                outcome.states += 1;
                open.push((next, trace));
            }
        }
    }
    outcome
}

/// A state by a hash of its description: two that differ are told apart but for a chance of 2^-80 or so over a whole run.
fn fingerprint(world: &World) -> u128 {
    struct Hash(u128);
    impl fmt::Write for Hash {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B);
            }
            Ok(())
        }
    }
    let mut hash = Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    _ = write!(hash, "{world:?}");
    hash.0
}

#[test]
fn no_order_of_events_breaks_a_rule() {
    for scenario in SCENARIOS {
        let Outcome { states, done, violation } = explore(scenario, Planted::NONE);
        assert_eq!(violation, None);
        // A unit that refuses everything is safe and worthless.
        assert!(done > 0 && states > 2, "{}: {states} states, {done} answers", scenario.name);
        println!("{}: {states} states, {done} answers", scenario.name);
    }
}

/// Finds the first scenario in which a fault breaks a rule.
fn found(bug: PlantedBug) -> String {
    SCENARIOS.iter().find_map(|scenario| explore(scenario, Planted::bug(bug)).violation).unwrap_or_default()
}

planted! {
    an_acknowledgement_before_persistence_is_found: AckBeforePersist breaks "16",
    a_seal_that_is_not_stored_is_found: SealWithoutPersist breaks "19",
    a_seal_that_forgets_what_is_under_way_is_found: SealForgetsPending breaks "19",
    a_repeated_seal_that_answers_anew_is_found: RepeatedSealMoves breaks "19",
    a_fill_that_replaces_data_is_found: FillBeatsData breaks "15",
    a_write_in_a_sealed_epoch_is_found: StaleEpochAccepted breaks "25",
    a_taken_address_that_is_not_durable_is_found: WrittenBeforeDurable breaks "durable",
    a_read_of_what_is_not_durable_is_found: ReadBeforeDurable breaks "18",
    a_run_written_over_another_is_found: WholeRunWritten breaks "15",
    a_trim_that_is_not_stored_is_found: TrimWithoutPersist breaks "22",
    a_write_into_a_trimmed_hole_is_found: TrimmedIsFree breaks "22",
    data_that_is_not_checked_is_found: ChecksumIgnored breaks "7",
    a_failure_that_is_ignored_is_found: FailureIgnored breaks "durable",
    a_unit_that_serves_its_old_epoch_is_found: ServesAfterRestart breaks "25",
    a_sequencer_that_starts_low_is_found: SequencerStartsLow breaks "17",
    a_grant_that_overlaps_another_is_found: GrantOverlaps breaks "17",
}
