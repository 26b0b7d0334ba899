//! Crash states of a volume, very many of them: see [`crash_states`](crate::sim::volume::crash_states). Nothing real is
//! killed; the drive is a simulated one.

use std::io;
use std::time::Instant;

use clap::Args;
use ithaca_volume::Planted;

use super::results::Results;
use super::seed_of_now;
use crate::sim::catch_panics;
use crate::sim::volume::crash_states::{Explored, explore};

/// `cargo lab soak volume-crashes`.
#[derive(Args)]
pub struct VolumeCrashesArguments {
    /// How many states.
    #[arg(long, default_value_t = 100_000)]
    states: u64,
    /// The seed of the first workload; the next has the next one [default: a random one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Where results go.
    #[arg(long, default_value = "results")]
    results: std::path::PathBuf,
}

/// Returns how many states were right, and how many were not.
pub fn run(arguments: &VolumeCrashesArguments) -> io::Result<(u64, u64)> {
    catch_panics();
    let seed = arguments.seed.unwrap_or_else(seed_of_now);
    println!("soak volume-crashes: seed {seed}, {} states", arguments.states);
    let began = Instant::now();
    let explored = explore(seed, arguments.states, Planted::default());
    let seconds = began.elapsed().as_secs_f64();
    let Explored { states, workloads, moments, in_doubt_max, torn, lost, unasked, interrupted, .. } =
        explored;
    let Explored { cleaned, discarded, .. } = explored;
    println!(
        "{{\"soak\":\"volume-crashes\",\"seed\":{seed},\"states\":{states},\"workloads\":{workloads},\"moments\":{moments},\
         \"in_doubt_max\":{in_doubt_max},\"torn\":{torn},\"lost\":{lost},\"unasked\":{unasked},\
         \"interrupted\":{interrupted},\"cleaned\":{cleaned},\"discarded\":{discarded},\"seconds\":{seconds:.1}}}"
    );
    if let Some((failed, wrong)) = &explored.failure {
        println!("FAIL workload {failed}, {wrong}");
        println!("  again: cargo lab soak volume-crashes --seed {failed} --states {}", arguments.states);
        return Ok((states.saturating_sub(1), 1));
    }
    let mut results = Results::new(
        "states that a power cut may leave of a volume's drive, each recovered twice: all that was durable is there, in whole commits, in order",
        "seed,states,workloads,moments,requests_in_doubt_max,torn_in_a_block,lost_something_not_durable,kept_something_unanswered,recovery_cut_off,segments_cleaned,blocks_given_up,failed,seconds",
    );
    results.row(&format!(
        "{seed},{states},{workloads},{moments},{in_doubt_max},{torn},{lost},{unasked},{interrupted},{cleaned},{discarded},0,{seconds:.1}"
    ));
    results.write(&arguments.results, "volume-crashes")?;
    Ok((states, 0))
}
