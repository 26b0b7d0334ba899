//! Deliberate faults, each caught by the checks of the other tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ithaca_volume::{Planted, PlantedBug};

use crate::crashes::lives;
use crate::nbd::client::FUA;
use crate::nbd::transactions::outlives_its_client;
use crate::nbd::{neighbours, promises_are_kept};
use crate::regions::a_client_stays_in_its_region;
use crate::rescue;
use crate::socket_memory::all_find_their_own;
use crate::stale::clients_live;
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
fn a_rescue_that_does_not_think_of_the_cleaner_is_found() {
    let mut options = rescue::options(ithaca_chain::Cleaning::MoveToTail);
    options.settings.chain.planted = ithaca_chain::Planted::bug(ithaca_chain::PlantedBug::RescueIgnoresFreed);
    let look = |seed| rescue::harm_each(seed, &options);
    let fails = |seed: u64| catch_unwind(AssertUnwindSafe(|| look(seed))).is_err();
    assert!((5..12).any(fails), "it goes unnoticed");
}

#[test]
fn a_dead_threads_transaction_that_stays_is_found() {
    let planted = Planted::bug(PlantedBug::DeadThreadKeeps);
    assert!(!crate::file::a_dead_thread_takes_its_transaction_along(planted), "it goes unnoticed");
}

#[test]
fn a_region_whose_end_is_ignored_is_found() {
    let planted = Planted::bug(PlantedBug::RegionEndIgnored);
    assert!(!a_client_stays_in_its_region(planted));
}

#[test]
fn every_fault_of_old_versions_is_found() {
    for bug in [
        PlantedBug::SpanReachesOver,
        PlantedBug::OneUpdateTooMany,
        PlantedBug::AgeByEarlierNote,
        PlantedBug::ReadForgotten,
        PlantedBug::OwnWriteForgotten,
        PlantedBug::WalkDoesNotShrink,
    ] {
        let fails =
            |seed: &u64| catch_unwind(AssertUnwindSafe(|| clients_live(*seed, Planted::bug(bug)))).is_err();
        assert!((0..40).any(|seed| fails(&seed)), "{bug:?} goes unnoticed");
    }
}

#[test]
fn room_that_is_given_to_another_request_too_early_is_found() {
    let planted = Planted::bug(PlantedBug::SlotsNotHeld);
    assert!(!all_find_their_own(71, 64, planted));
}

#[test]
fn a_transaction_that_outlives_its_client_is_found() {
    assert!(outlives_its_client(Planted::bug(PlantedBug::DeadClientReleases)));
}

#[test]
fn every_fault_of_an_export_is_found() {
    assert!(!neighbours(Planted::bug(PlantedBug::PartOverOld)));
    assert!(!promises_are_kept(FUA, false, Planted::bug(PlantedBug::FuaAnsweredEarly)));
    assert!(!promises_are_kept(0, true, Planted::bug(PlantedBug::FlushDoesNotWait)));
}
