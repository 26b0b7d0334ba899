//! Copies, exhaustively: three units that keep two copies of each position, clients that append (by themselves or relayed),
//! fill and read, one of whom has the cluster go on without a unit; in every order in which requests arrive, batches become
//! durable, and a unit crashes.
//!
//! Units, sequencers and layouts are the real ones. What clients and relays do is written down here once more, as
//! docs/protocol/append.md and fill.md state it, so that every order of it can be gone through. [`world`] says what must hold:
//! one value per position (15), no acknowledged append lost (16), reads that see what was known before (18), chain order (20),
//! data for all or junk for all (21).

mod world;

use super::search::{Outcome, search};
use crate::planted::{Planted, PlantedBug};
use world::{Op, World};

/// What a scenario consists of.
struct Scenario {
    name: &'static str,
    /// A script for each client.
    scripts: &'static [&'static [Op]],
    crashes: u8,
}

/// Positions 0, 1 and 2 lie on units 1 and 2, 2 and 3, 3 and 1.
const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two clients append while the cluster goes on without the last unit of a position",
        scripts: &[
            &[Op::Append(1), Op::Read(1, 0)],
            &[Op::Append(1), Op::Read(2, 1)],
            &[Op::Seal(1, 1), Op::Seal(1, 2), Op::GoOnWithout(3)],
        ],
        crashes: 1,
    },
    Scenario {
        name: "two relayed appends while the cluster goes on without the first unit of a position",
        scripts: &[
            &[Op::Relayed(1), Op::Read(1, 0)],
            &[Op::Relayed(1), Op::Read(2, 0)],
            &[Op::Seal(1, 2), Op::Seal(1, 3), Op::GoOnWithout(1)],
        ],
        crashes: 1,
    },
    Scenario {
        name: "a relayed append is filled by a reader",
        scripts: &[&[Op::Relayed(1), Op::Read(1, 0)], &[Op::Fill(1, 0), Op::Read(1, 0)]],
        crashes: 2,
    },
    Scenario {
        name: "an append is filled by two readers",
        scripts: &[&[Op::Append(1), Op::Read(1, 0)], &[Op::Fill(1, 0)], &[Op::Fill(1, 0), Op::Read(1, 0)]],
        crashes: 2,
    },
    Scenario {
        name: "an append is half written when the cluster goes on, and is filled after",
        scripts: &[
            &[Op::Append(1), Op::Append(2)],
            &[Op::Seal(1, 1), Op::Seal(1, 3), Op::GoOnWithout(2), Op::Fill(2, 0), Op::Read(2, 0)],
        ],
        crashes: 2,
    },
    Scenario {
        name: "a relayed append is half written when the cluster goes on, and both append after",
        scripts: &[
            &[Op::Relayed(1), Op::Relayed(2), Op::Read(2, 0)],
            &[Op::Seal(1, 2), Op::Seal(1, 3), Op::GoOnWithout(1), Op::Append(2)],
        ],
        crashes: 1,
    },
    Scenario {
        name: "a position that was half written is filled in the epoch before and in the next",
        scripts: &[
            &[Op::Relayed(1)],
            &[Op::Append(1)],
            &[Op::Seal(1, 2), Op::Seal(1, 3), Op::GoOnWithout(1), Op::Fill(2, 0)],
            &[Op::Fill(1, 0)],
        ],
        crashes: 0,
    },
    Scenario {
        name: "appends of both kinds and a fill while the cluster goes on without the unit that both share",
        scripts: &[
            &[Op::Relayed(1), Op::Read(1, 0), Op::Append(2)],
            &[Op::Append(1), Op::Read(1, 1), Op::Fill(2, 1), Op::Read(2, 1)],
            &[Op::Seal(1, 1), Op::Seal(1, 3), Op::GoOnWithout(2), Op::Read(2, 0)],
        ],
        crashes: 1,
    },
];

fn explore(scenario: &Scenario, planted: Planted) -> Outcome {
    search(World::new(scenario.scripts, scenario.crashes, planted))
}

#[test]
fn no_order_of_events_breaks_a_rule_of_copies() {
    for scenario in SCENARIOS {
        let Outcome { states, violation } = explore(scenario, Planted::NONE);
        assert_eq!(violation, None, "{}", scenario.name);
        println!("{}: {states} states", scenario.name);
    }
}

/// A cluster that refuses everything is safe and worthless: in every scenario there is an order in which each script is done
/// as it was meant.
#[test]
fn every_scenario_can_be_done_wholly() {
    for scenario in SCENARIOS {
        let wholly = World::that_must_not_be_done(scenario.scripts);
        assert!(
            search(wholly).violation.is_some_and(|told| told.starts_with("all is done")),
            "{}",
            scenario.name
        );
    }
}

/// Finds the first scenario in which a fault breaks a rule.
fn found(bug: PlantedBug) -> String {
    SCENARIOS.iter().find_map(|scenario| explore(scenario, Planted::bug(bug)).violation).unwrap_or_default()
}

planted! {
    a_write_that_is_done_with_one_copy_is_found: AckAfterFirstReplica breaks "rule 16",
    a_relay_that_stops_short_is_found: RelayStopsShort breaks "rule 16",
    a_relay_before_durability_is_found: RelayBeforeDurable breaks "rule 20",
    a_fill_that_does_not_copy_is_found: FillSkipsCopy breaks "rule 21",
    a_fill_that_begins_at_the_end_is_found: FilledFromLast breaks "rule 2",
    a_seal_that_forgets_what_is_under_way_is_found: SealForgetsPending breaks "rule 16",
    a_unit_that_accepts_a_sealed_epoch_is_found: StaleEpochAccepted breaks "rule 16",
    a_unit_that_tells_of_itself_in_an_old_epoch_is_found: BoundsAnyEpoch breaks "rule 15",
    an_acknowledgement_before_persistence_is_found: AckBeforePersist breaks "rule 1",
}
