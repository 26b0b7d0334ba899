//! The laboratory: tidy checks, the bare baseline, benches. It judges the system from outside; nothing depends on it.

mod backpointers;
mod bare;
mod bench;
mod blocks;
mod commit_records;
mod fig;
mod locks;
mod measure;
mod operator;
mod sim;
mod soak;
mod tidy;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ithaca_env::real::{Allocator, keep_freed_memory};

/// As the program has it: what is measured in this process must not be without.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Judges Ithaca: tidy checks, baselines, benches.
#[derive(Parser)]
#[command(name = "cargo lab", version, after_help = "Example: cargo lab tidy")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs `./test`: everything that must pass.
    Ci,
    /// Runs seeds in simulated worlds, with faults, and checks what must hold.
    Sim(sim::SimArguments),
    /// Puts faults into the system, one at a time, and checks that the simulations find each.
    #[cfg(feature = "planted-bugs")]
    Planted {
        /// Seeds within which each must be found.
        #[arg(long, default_value_t = 2000)]
        ceiling: u64,
        /// Only those whose name has this in it.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Checks what the architecture and the style promise and no compiler holds us to.
    Tidy,
    /// The bare server; it ends with its standard input.
    #[command(hide = true)]
    BareServer {
        /// Where its journal lies.
        folder: PathBuf,
    },
    /// Measures the system against the bare baseline and Redis, in alternating slices of one run.
    Bench(bench::BenchArguments),
    /// Measures figures on simulated drives, in virtual time, and checks the shape that they must have.
    Fig(fig::FigArguments),
    /// Kills the nodes of a cluster one after the other and measures how long its log stands still.
    Failover(soak::FailoverArguments),
    /// Kills, fills and damages the real program and judges what its clients were told.
    Soak(soak::SoakArguments),
}

fn main() -> ExitCode {
    keep_freed_memory();
    let arguments = Arguments::parse();
    let passed = match arguments.command {
        Command::Ci => std::process::Command::new("./test").status().map(|status| status.success()),
        Command::Sim(arguments) => sim::run(&arguments),
        #[cfg(feature = "planted-bugs")]
        Command::Planted { ceiling, only } => sim::run_planted(ceiling, &only),
        Command::Tidy => tidy::run(Path::new(".")),
        Command::BareServer { folder } => bare::serve(&folder).map(|()| true),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fig(arguments) => fig::run(&arguments),
        Command::Failover(arguments) => soak::run_failover(&arguments).map(|(_, failed)| failed == 0),
        Command::Soak(arguments) => soak::run(&arguments),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("cargo lab: {error}");
            ExitCode::from(1)
        }
    }
}
