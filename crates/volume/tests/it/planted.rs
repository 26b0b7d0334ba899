//! Deliberate faults, each caught by the checks of the other tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ithaca_volume::{Planted, PlantedBug};

use crate::crashes::lives;
use crate::world::Life;

#[test]
fn every_fault_of_plain_writes_and_history_is_found() {
    for bug in [PlantedBug::PinForgotten, PlantedBug::FloorNotWritten, PlantedBug::FlushDoesNotWait] {
        let plant = |life: &mut Life| life.options.settings.planted = Planted::bug(bug);
        let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| lives(*seed, plant))).is_err();
        assert!((0..40).any(|seed| fails(&seed)), "{bug:?} goes unnoticed");
    }
}

#[test]
fn a_dead_threads_transaction_that_stays_is_found() {
    let planted = Planted::bug(PlantedBug::DeadThreadKeeps);
    assert!(!crate::file::a_dead_thread_takes_its_transaction_along(planted), "it goes unnoticed");
}
