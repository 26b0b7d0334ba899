//! Simulations: seeds expand to plans, plans run in a simulated world, oracles judge the run.
//!
//! A failure prints one command that repeats it, and a smaller plan that fails too. Every hundredth seed is run twice and
//! must give the same trace.

mod cluster;
mod drives;
pub mod history;
mod history_json;
mod latent;
mod log;
mod loss;
mod objects;
mod operator;
pub mod oracle;
mod planted;
mod replicas;
mod scenario;
mod shrink;
mod stream_work;
mod streams;
mod unneeded;
pub mod value;
pub mod volume;
mod workload;

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ithaca_env::sim::{Budget, Plan};

use crate::measure::{process_cpu_nanos, wall_nanos};

use cluster::ClusterScenario;
use ithaca_log::planted::Planted;
use log::LogScenario;
use objects::ObjectsScenario;
use planted::Fault;
use scenario::{Outcome, Points, Scenario, run_caught};

pub use scenario::catch_panics;
use volume::VolumeScenario;

/// Every so many seeds one is run twice.
const REPEAT_EVERY: u64 = 100;
/// Failures after which a run of many seeds gives up.
const FAILURES_MAX: usize = 5;
/// Appends a seed that must be acknowledged on average: a cluster that refuses everything passes every oracle.
const COMMITTED_FLOOR: u64 = 10;

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// One node, faults that it must survive: nothing acknowledged is lost.
    Log,
    /// One node whose only copies are harmed too: nothing wrong is served.
    LogHarm,
    /// A cluster of nodes on machines of their own, with copies: the log stays one log.
    Cluster,
    /// One volume, transactions and plain writes: every version stays what it was.
    Volume,
    /// Transactions over objects, under crashes of the node that orders them.
    Objects,
}

impl Name {
    const ALL: [Name; 5] = [Name::Log, Name::LogHarm, Name::Cluster, Name::Volume, Name::Objects];

    fn scenario(self) -> Box<dyn Scenario> {
        let log = |budget| Box::new(LogScenario { budget, planted: Fault::None });
        match self {
            Name::Log => log(Budget::Survive),
            Name::LogHarm => log(Budget::Detect),
            Name::Cluster => Box::new(ClusterScenario { planted: Planted::NONE }),
            Name::Objects => Box::new(ObjectsScenario { planted: ithaca_object::planted::Planted::NONE }),
            Name::Volume => Box::new(VolumeScenario {
                planted: ithaca_volume::Planted::default(),
                chain: ithaca_chain::Planted::default(),
            }),
        }
    }
}

/// `cargo lab sim`.
#[derive(Args)]
pub struct SimArguments {
    /// Which scenario; all of them by default.
    scenario: Option<Name>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// End after this many seconds of wall time, whatever number of seeds that was.
    #[arg(long)]
    seconds: Option<u64>,
    /// Run the plan that stands in the standard input instead of seeds.
    #[arg(long, requires = "scenario")]
    plan: bool,
    /// Print the trace of the first seed, or of the plan, and as it runs, to the standard error, what the system says.
    #[arg(long)]
    trace: bool,
    /// Run the first seed, or the plan, and write what its clients did and saw to this file, as JSON.
    #[arg(long, requires = "scenario")]
    history: Option<PathBuf>,
    /// Print the plan of the first seed and run nothing.
    #[arg(long)]
    show: bool,
}

/// Runs what is asked for. False if anything failed.
pub fn run(arguments: &SimArguments) -> io::Result<bool> {
    catch_panics();
    let names = arguments.scenario.map_or(Name::ALL.to_vec(), |name| vec![name]);
    if arguments.plan {
        let plan = io::read_to_string(io::stdin())?.parse::<Plan>().map_err(io::Error::other)?;
        return run_one(&*names[0].scenario(), &plan, arguments);
    }
    let mut passed = true;
    for &name in &names {
        let scenario = name.scenario();
        let first = Plan::expand(arguments.first, &scenario.shape());
        if arguments.show {
            print!("{first}");
        } else if arguments.trace || arguments.history.is_some() {
            passed &= run_one(&*scenario, &first, arguments)?;
        } else {
            let share = arguments.seconds.map(|seconds| seconds * 1_000_000_000 / names.len() as u64);
            passed &= run_seeds(&*scenario, arguments.first, arguments.seeds, share);
        }
    }
    Ok(passed)
}

fn run_one(scenario: &dyn Scenario, plan: &Plan, arguments: &SimArguments) -> io::Result<bool> {
    if arguments.trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .without_time()
            .with_writer(io::stderr)
            .init();
    }
    let outcome = run_caught(scenario, plan, arguments.trace);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    if let Some(path) = &arguments.history {
        ithaca_env::real::files::write(path, outcome.history.json().as_bytes())?;
    }
    let Outcome { committed, events, hash, .. } = outcome;
    println!("{}: {committed} appends acknowledged, {events} events, trace {hash:016x}", scenario.name());
    if let Some(failure) = &outcome.failure {
        println!("FAIL {failure}");
    }
    Ok(outcome.failure.is_none())
}

fn run_seeds(scenario: &dyn Scenario, first: u64, seeds: u64, limit_ns: Option<u64>) -> bool {
    let (begin, begin_cpu) = (wall_nanos(), process_cpu_nanos());
    let (mut points, mut committed, mut events, mut ran) = (Points::default(), 0, 0, 0);
    let mut failures = 0;
    let shape = scenario.shape();
    for seed in first..first + seeds {
        if limit_ns.is_some_and(|limit| wall_nanos() - begin >= limit) || failures >= FAILURES_MAX {
            break;
        }
        let plan = Plan::expand(seed, &shape);
        let mut outcome = run_caught(scenario, &plan, false);
        if seed % REPEAT_EVERY == 0 && outcome.failure.is_none() {
            let again = run_caught(scenario, &plan, false);
            if again.hash != outcome.hash {
                outcome.failure = Some(format!("two runs, two traces: {:x} {:x}", outcome.hash, again.hash));
            }
        }
        if let Some(failure) = &outcome.failure {
            failures += 1;
            report(scenario, &plan, failure);
        }
        points.add(&outcome.points);
        committed += outcome.committed;
        events += outcome.events;
        ran += 1;
    }
    let cpu_ms = (process_cpu_nanos() - begin_cpu) as f64 / 1e6;
    for (point, count) in &points.seen {
        println!("  sometimes: {point}: {count} of {ran}");
    }
    let floor = committed >= COMMITTED_FLOOR * ran;
    if !floor {
        println!("FAIL {}: only {committed} appends were acknowledged in {ran} seeds", scenario.name());
    }
    println!(
        "{}: {ran} seeds from {first}, {failures} failed, {committed} appends acknowledged, {events} events, \
         {:.2} ms of CPU a seed",
        scenario.name(),
        cpu_ms / ran.max(1) as f64
    );
    failures == 0 && floor
}

/// Runs seeds until each planted fault is found whose name has `only` in it. False if one is not found within `ceiling` seeds.
#[cfg(feature = "planted-bugs")]
pub fn run_planted(ceiling: u64, only: &str) -> io::Result<bool> {
    catch_panics();
    let mut all_found = true;
    for planted::Planting { name, fault, budget } in planted::plantings() {
        all_found &= is_found((&name, only), &LogScenario { budget, planted: fault }, ceiling);
    }
    for bug in planted::in_cluster() {
        let scenario = ClusterScenario { planted: Planted::bug(bug) };
        all_found &= is_found((&format!("cluster/{bug:?}"), only), &scenario, ceiling);
    }
    for bug in planted::in_objects() {
        let scenario = ObjectsScenario { planted: ithaca_object::planted::Planted::bug(bug) };
        all_found &= is_found((&format!("objects/{bug:?}"), only), &scenario, ceiling);
    }
    for bug in planted::in_volume() {
        let chain = ithaca_chain::Planted::default();
        let scenario = VolumeScenario { planted: ithaca_volume::Planted::bug(bug), chain };
        all_found &= is_found((&format!("volume/{bug:?}"), only), &scenario, ceiling);
    }
    for bug in planted::below_volume() {
        let (planted, chain) = (ithaca_volume::Planted::default(), ithaca_chain::Planted::bug(bug));
        let scenario = VolumeScenario { planted, chain };
        all_found &= is_found((&format!("volume/chain/{bug:?}"), only), &scenario, ceiling);
    }
    Ok(all_found)
}

#[cfg(feature = "planted-bugs")]
fn is_found((name, only): (&str, &str), scenario: &dyn Scenario, ceiling: u64) -> bool {
    if !name.contains(only) {
        return true;
    }
    let shape = scenario.shape();
    let fails = |seed: &u64| run_caught(scenario, &Plan::expand(*seed, &shape), false).failure;
    let found = (1..=ceiling).find_map(|seed| fails(&seed).map(|failure| (seed, failure)));
    match &found {
        Some((seed, failure)) => {
            println!("found {name} by seed {seed}: {}", failure.lines().next().unwrap_or(""));
        }
        None => println!("FAIL  {name} goes unnoticed for {ceiling} seeds"),
    }
    found.is_some()
}

fn report(scenario: &dyn Scenario, plan: &Plan, failure: &str) {
    println!("FAIL {} seed {}: {failure}", scenario.name(), plan.seed);
    println!("  again: cargo lab sim {} --first {} --seeds 1", scenario.name(), plan.seed);
    let smallest = shrink::shrink(scenario, plan);
    let failure = run_caught(scenario, &smallest, false).failure.unwrap_or_default();
    println!("  smaller, fails with: {failure}");
    smallest.to_string().lines().for_each(|line| println!("    {line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: Name, plan: &Plan) -> Outcome {
        name.scenario().run(plan, false)
    }

    fn check_passes(name: Name, plan: &str) {
        let plan: Plan = plan.parse().expect("a plan");
        assert_eq!(run(name, &plan).failure, None, "{plan}");
    }

    #[test]
    fn some_seeds_of_each_scenario_pass() {
        // Thousands are run by `cargo lab sim`; here a change that breaks much is to be seen at once.
        const SEEDS: u64 = 30;
        for name in Name::ALL {
            let scenario = name.scenario();
            let mut committed = 0;
            for seed in 1..=SEEDS {
                let plan = Plan::expand(seed, &scenario.shape());
                let outcome = scenario.run(&plan, false);
                assert_eq!(outcome.failure, None, "{name:?} seed {seed}");
                committed += outcome.committed;
            }
            assert!(committed >= SEEDS * COMMITTED_FLOOR, "{committed} appends in {SEEDS} seeds");
        }
    }

    #[test]
    fn a_seed_gives_the_same_trace_twice() {
        for seed in [1, 7, 42] {
            let plan = Plan::expand(seed, &Name::Log.scenario().shape());
            assert_eq!(run(Name::Log, &plan).hash, run(Name::Log, &plan).hash);
        }
    }

    #[test]
    fn a_crash_at_every_io_point_of_a_short_run_loses_nothing() {
        // The whole of a start, some appends and a restart, one crash and a second one soon after in each run.
        for point in 1..=120 {
            let plan = format!(
                "seed {point}\nset workload.operations 12\nset workload.burst_max 4\n\
                 step 1 at 0s crash-at-io node {point} 1ms\nstep 2 at 30ms crash-at-io node {} 1ms",
                1 + point % 17
            );
            check_passes(Name::Log, &plan);
        }
    }

    #[test]
    fn an_entry_that_was_read_and_trimmed_while_its_batch_was_written_again_is_not_appended_again() {
        // One position of a batch was junk, so the client wrote all of it again. Where its own entry had been trimmed
        // meanwhile, it took the position for another's and appended the entry a second time.
        let plan = "seed 770\nset chain.segments_ready 1\nset link.loss_ppm 20000\nset link.split_ppm 500000\n\
                    set topology.clients 3\nset topology.followers 1\nset topology.units 3\n\
                    set workload.burst_max 4\nset workload.entry_max_bytes 1\nset workload.forwarded 2\n\
                    set workload.operations 200";
        check_passes(Name::Log, plan);
    }

    #[test]
    fn a_search_that_ran_out_of_time_does_not_raise_where_an_entry_is_said_to_be() {
        // The sequencer had forgotten the batch; the client gave up while it searched below, and then said that its entry
        // could only stand above.
        let plan = "seed 2640\nset link.loss_ppm 20000\nset link.split_ppm 500000\nset sequencer.remembered 4\n\
                    set topology.clients 3\nset topology.followers 1\nset topology.units 3\n\
                    set workload.burst_max 1\nset workload.entry_max_bytes 1\nset workload.forwarded 1\n\
                    set workload.operations 100\nstep 2 at 316683us reset client-1 node";
        check_passes(Name::Log, plan);
    }

    #[test]
    fn an_append_that_a_later_replica_has_no_room_for_is_not_said_to_have_failed() {
        // A full drive refuses for good, and at the first replica that means that nothing was done.
        let plan = "seed 2095\nset chain.group_max_bytes 1\nset chain.segments 8\nset topology.replicas 2\n\
                    set workload.burst_max 16\nset workload.entry_max_bytes 12288\nset workload.forwarded 0\n\
                    set workload.operations 200\nset chain.segments_ready 1\nset workload.relayed ";
        for relayed in [0, 1] {
            check_passes(Name::Log, &format!("{plan}{relayed}"));
        }
    }

    #[test]
    fn an_append_whose_search_meets_a_trim_is_said_to_stand_where_the_search_began() {
        // The sequencer had forgotten the batch. What was searched held something trimmed, and the append was said to stand
        // above it all.
        let plan = "seed 3717\nset chain.segments_ready 1\nset drive.speed 3\nset link.loss_ppm 20000\n\
                    set link.reset_ppm 2000\nset sequencer.remembered 1\nset topology.clients 3\n\
                    set topology.replicas 2\nset topology.sockets 1\nset workload.burst_max 4\n\
                    set workload.entry_max_bytes 1\nset workload.forwarded 1\nset workload.operations 100\n\
                    set workload.relayed 1";
        check_passes(Name::Log, plan);
    }

    #[test]
    fn a_range_of_small_entries_in_many_streams_is_copied() {
        // What comes with the entries of a piece was more than a batch of the chain may have: it was refused for ever.
        let plan = "seed 5505965\nset topology.removed 2\nset workload.burst_max 16\nset workload.entry_max_bytes 1\n\
                    set workload.forwarded 1\nset workload.operations 400\nset workload.pause_us 1\n\
                    set workload.relayed 1\nset workload.streams 4";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_node_that_decided_alone_that_it_is_removed_tells_the_other() {
        // It ended at once, and what it had decided was known to nobody: the other could decide nothing any more.
        let plan = "seed 6002255\nset drive.jitter_percent 300\nset topology.removed 2\nset topology.replicas 1\n\
                    set topology.small 7\nset workload.burst_max 1\nset workload.entry_max_bytes 1\n\
                    set workload.forwarded 1\nset workload.operations 1\nset workload.pause_us 1\n\
                    set workload.relayed 1\nset workload.streams 1\nstep 2 at 303004us kill node-3 45925us\n\
                    step 3 at 725187us vanish node-2 2168705us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_node_that_was_added_is_not_taken_for_a_removed_one_by_who_has_not_heard_of_it() {
        // The answer to the first order was lost, and the second one was compared with what a node that was cut off knew.
        let plan = "seed 9017829\nset topology.added 2\nset topology.clients 2\nset topology.removed 2\n\
                    set workload.burst_max 16\nset workload.operations 200\nset workload.pause_us 100000\n\
                    step 8 at 613712us drive node-2 data/unit-2.chain fail-writes 2\n\
                    step 4 at 975012us partition node-1 node-2 2771573us\nstep 5 at 1806402us pause node-1 1677543us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_node_that_was_removed_ends_when_the_cluster_has_gone_on_without_those_it_had_to_tell() {
        // The one that decided next had not answered it, was removed too, and ended: it was told of the first removal for ever.
        let plan = "seed 10006521\nset link.loss_ppm 20000\nset topology.removed 2\nset topology.replicas 1\n\
                    set workload.burst_max 4\nset workload.entry_max_bytes 1\nset workload.forwarded 1\n\
                    set workload.operations 2\nset workload.pause_us 1\nset workload.relayed 1\nset workload.streams 1";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_trim_that_came_to_a_node_before_it_left_is_completed_before_what_it_copied_earlier_is_listed() {
        // It had the copy from an earlier absence, and was listed with a trim that the replica before it lacked.
        let plan = "seed 10066002\nset drive.jitter_percent 0\nset link.loss_ppm 20000\nset link.reset_ppm 2000\n\
                    set topology.clients 2\nset topology.nodes 4\nset topology.removed 1\nset topology.replicas 3\n\
                    set workload.burst_max 4\nset workload.entry_max_bytes 1\nset workload.forwarded 1\n\
                    set workload.operations 40\nset workload.pause_us 300000\nset workload.relayed 1\n\
                    set workload.streams 0\nstep 5 at 267576us vanish node-3 344us\n\
                    step 4 at 571315us drive node-2 data/unit-2.chain fail-reads 3\n\
                    step 2 at 885456us crash node-1 139940us\n\
                    step 3 at 2019619us drive node-2 data/unit-2.chain fail-writes 1\n\
                    step 1 at 2305206us crash node-2 3653us\nstep 6 at 2677656us vanish node-3 93334us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn the_ends_of_a_log_of_many_ranges_are_found_over_slow_links() {
        // Each stripe of each range was asked for its first address after the one before had answered.
        let plan = "seed 10089173\nset drive.jitter_percent 300\nset harm.latent 2\nset link.loss_ppm 20000\n\
                    set link.reset_ppm 2000\nset link.split_ppm 500000\nset topology.added 2\nset topology.clients 3\n\
                    set topology.followers 1\nset topology.nodes 5\nset topology.removed 1\nset topology.small 1\n\
                    set workload.burst_max 1\nset workload.entry_max_bytes 1\nset workload.forwarded 0\n\
                    set workload.operations 400\nset workload.pause_us 300000\nset workload.relayed 0\n\
                    set workload.streams 0\nstep 4 at 1247779us drive node-1 data/unit-1.chain stuck 245010us\n\
                    step 2 at 1399283us pause node-1 237834us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn an_order_that_a_node_comes_upon_late_is_not_carried_out_again() {
        // A node that stood still while it was asked added a node that had been added and removed meanwhile.
        let plan = "seed 11014620\nset topology.added 2\nset topology.clients 3\nset topology.removed 1\n\
                    set workload.burst_max 1\nset workload.entry_max_bytes 1\nset workload.forwarded 1\n\
                    set workload.operations 1\nset workload.pause_us 1\nset workload.relayed 1\n\
                    set workload.streams 1\nstep 5 at 73918us drive node-1 data/unit-1.chain fail-writes 3\n\
                    step 1 at 432206us pause node-2 2510704us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_checkpoint_of_streams_that_was_begun_in_an_epoch_comes_to_the_log_in_no_other() {
        // The next sequencer granted positions below where it was said to be begun, and the one after that would not have looked at them.
        let plan = "seed 12076663\nset drive.jitter_percent 300\nset link.loss_ppm 20000\nset link.split_ppm 0\n\
                    set sequencer.checkpoint 4\nset topology.added 2\nset topology.clients 3\n\
                    set topology.followers 1\nset topology.min_replicas 2\nset topology.replicas 3\n\
                    set workload.burst_max 16\nset workload.entry_max_bytes 150\nset workload.forwarded 1\n\
                    set workload.operations 200\nset workload.pause_us 3000\nset workload.relayed 1\n\
                    set workload.streams 4\nstep 4 at 348073us drive node-2 data/unit-2.chain stuck 1808198us\n\
                    step 5 at 771782us kill node-1 10426us\n\
                    step 6 at 1464276us drive node-2 data/unit-2.chain no-space 2\n\
                    step 3 at 1884711us reset node-1 node-3";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_trim_on_its_way_while_replicas_are_compared_is_no_difference() {
        // The sequencer's node trims an old checkpoint when the auditor's questions have made it store another.
        let plan = "seed 12079349\nset link.loss_ppm 20000\nset link.split_ppm 500000\n\
                    set sequencer.checkpoint 4\nset topology.added 1\nset topology.clients 3\n\
                    set topology.removed 1\nset topology.replicas 3\nset workload.burst_max 16\n\
                    set workload.entry_max_bytes 1\nset workload.forwarded 1\nset workload.operations 100\n\
                    set workload.pause_us 12500\nset workload.relayed 1\nset workload.streams 1";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_register_that_was_read_after_a_kill_survives_the_loss_of_power_that_follows() {
        // What the killed process had written was in the drive's cache only; the next one made the unit's drive by it.
        let plan = "seed 8204471\nset drive.jitter_percent 300\nset drive.speed 2\nset topology.replicas 2\n\
                    set workload.burst_max 1\nset workload.entry_max_bytes 1\nset workload.forwarded 1\n\
                    set workload.operations 1\nset workload.relayed 1\nset workload.streams 1\n\
                    step 5 at 8329us kill-at-io node 2 336127us\nstep 4 at 342778us kill-at-io node 55 960us\n\
                    step 2 at 382043us vanish node 237719us";
        check_passes(Name::Log, plan);
    }

    #[test]
    fn a_full_drive_whose_segments_hold_records_of_many_stripes_has_room_when_all_is_trimmed() {
        // What a segment holds is known as a few ranges, which span keys of others: it was taken for nearly all live, for good.
        let plan = "seed 8100790\nset topology.added 1\nset topology.clients 3\nset topology.nodes 4\n\
                    set topology.replicas 3\nset topology.small 7\nset workload.burst_max 16\n\
                    set workload.entry_max_bytes 5000\nset workload.forwarded 2\nset workload.operations 400\n\
                    set workload.pause_us 300000\nset workload.relayed 0\nset workload.streams 0\n\
                    step 7 at 392552us vanish node-2 88020us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn the_tail_is_not_asked_of_a_node_whose_sequencer_has_not_started() {
        // A client that came during a start was told that the log was empty.
        let plan = "seed 78\nset workload.burst_max 1\nset workload.entry_max_bytes 1\n\
                    set workload.operations 5\nstep 1 at 357730us crash node 58047us";
        check_passes(Name::Log, plan);
    }

    #[test]
    fn a_trim_that_came_to_the_first_replica_is_not_forgotten_by_the_others() {
        // The first replica was left out, came back as the last one, and said "trimmed" where the others had the entry.
        for plan in [
            "seed 1001138\nset link.loss_ppm 20000\nset link.split_ppm 500000\nset workload.burst_max 1\n\
             set workload.entry_max_bytes 1\nset workload.forwarded 1\nset workload.operations 40\n\
             set workload.pause_us 100000\nset workload.relayed 1\n\
             step 4 at 335923us kill-at-io node-2 48 749547us\n\
             step 5 at 620106us drive node-1 data/unit-1.chain fail-writes 3\n\
             step 2 at 1454218us kill node-1 443144us",
            "seed 1020664\nset link.loss_ppm 1000\nset link.split_ppm 500000\nset topology.added 2\n\
             set topology.followers 1\nset topology.nodes 5\nset workload.burst_max 4\n\
             set workload.entry_max_bytes 1\nset workload.forwarded 1\nset workload.operations 25\n\
             set workload.pause_us 100000\nset workload.relayed 1\n\
             step 5 at 545290us drive node-1 data/unit-1.chain fail-writes 3\n\
             step 6 at 1740015us crash-at-io node-2 16 383686us",
        ] {
            check_passes(Name::Cluster, plan);
        }
    }

    #[test]
    fn a_copy_is_listed_only_when_nobody_takes_trims_of_the_epoch_before() {
        // The only replica was asked for its trims before it was sealed, took one more of the old epoch, and was left out.
        let plan = "seed 7003343\nset link.reset_ppm 2000\nset topology.followers 1\nset workload.burst_max 1\n\
                    set workload.entry_max_bytes 1\nset workload.forwarded 1\nset workload.operations 50\n\
                    set workload.pause_us 300000\nset workload.relayed 1\nset workload.streams 0\n\
                    step 4 at 1127053us drive node-2 data/unit-2.chain fail-writes 3\n\
                    step 1 at 1464505us vanish node-3 371804us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn an_append_is_not_found_at_a_first_replica_that_the_cluster_went_on_without() {
        // Its client took the last replica's word, in another epoch, that all of it was on every replica.
        let plan = "seed 1019051\nset drive.jitter_percent 0\nset link.loss_ppm 20000\nset topology.added 2\n\
                    set topology.followers 1\nset workload.burst_max 1\nset workload.entry_max_bytes 1\n\
                    set workload.forwarded 1\nset workload.operations 50\nset workload.pause_us 1\n\
                    set workload.relayed 1\nstep 5 at 1008460us vanish node-1 248580us\n\
                    step 1 at 1657783us vanish node-3 634614us";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_lost_entry_is_repaired_from_two_copies_that_came_with_different_parts_of_its_batch() {
        // Part of the batch was overtaken at the first replica, so that the later ones were written to piece by piece; the metas
        // were compared as bytes, and said to differ.
        let plan = "seed 4007961\nset harm.latent 8\nset topology.added 2\nset topology.replicas 3\n\
                    set workload.burst_max 16\nset workload.entry_max_bytes 5000\nset workload.forwarded 1\n\
                    set workload.operations 400\nset workload.pause_us 100000\nset workload.relayed 1";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_lost_entry_whose_trim_has_come_to_the_replica_before_is_trimmed_too() {
        // The client of the trim had given up; the repair waited for a copy that nobody has any more.
        let plan = "seed 4005776\nset harm.latent 2\nset link.loss_ppm 1000\nset link.split_ppm 500000\n\
                    set topology.added 1\nset topology.clients 2\nset topology.followers 1\n\
                    set topology.removed 1\nset workload.burst_max 4\nset workload.entry_max_bytes 300\n\
                    set workload.forwarded 1\nset workload.operations 100\nset workload.pause_us 300000\n\
                    set workload.relayed 1\nstep 6 at 546994us crash node-2 31099us\n\
                    step 3 at 1892398us drive node-3 data/unit-3.chain no-space 1";
        check_passes(Name::Cluster, plan);
    }

    #[test]
    fn a_leaving_node_that_restarts_is_copied_from() {
        // Its unit served the epoch no more, and nobody began another: it never left.
        let plan = "seed 1032980\nset link.loss_ppm 20000\nset link.split_ppm 0\nset topology.added 2\n\
                    set topology.clients 3\nset topology.followers 1\nset topology.nodes 5\nset topology.removed 1\n\
                    set topology.replicas 1\nset workload.burst_max 1\nset workload.entry_max_bytes 5000\n\
                    set workload.forwarded 0\nset workload.operations 200\nset workload.pause_us 3000\n\
                    set workload.relayed 1\nstep 4 at 738334us crash node-3 59402us\n\
                    step 5 at 2119970us crash node-1 2658us\nstep 6 at 2652911us crash node-3 10us\n\
                    step 1 at 2858473us pause node-2 1785027us\nstep 7 at 2960179us crash node-2 250854us";
        check_passes(Name::Cluster, plan);
    }
}
