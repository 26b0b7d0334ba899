//! Soaks: the real program on a real drive, killed, filled and damaged, and judged by what its clients were told.
//!
//! * `kill`: SIGKILL under load, again and again, or with `--power` a power cut of the file system below; nothing
//!   acknowledged may be missing, nothing may differ.
//! * `restart`: how long a log of a given size takes to serve again after SIGKILL.
//! * `recovery`: how long a chain by itself takes to open, with the metadata of very many records.
//! * `metadata`: what a metadata drive is written.
//! * `memory`: resident memory while a log grows, is read at random and is replayed.
//! * `wipe`: a node of a cluster of processes loses its data under load, and every entry gets its copies again.
//! * `cargo lab failover`: SIGKILL of one node of a cluster of processes at a time; how long the log stands still.
//! * `net`: every node of a cluster in a network of its own; links, processes and drives fail one or two at a time.
//! * `corrupt`: bits and blocks of the stored files change while the system is down; no read may give other bytes.
//! * `fs`: real file systems on a volume, whose server is killed under them.
//! * `volume-crashes`: every state that a power cut may leave of a volume's (simulated) drive is recovered.
//!
//! Each writes `results/NAME.csv` and ends with one line of JSON, then one of counts. Their data lies below `--data`,
//! which must be on a drive and not in memory, and is removed when all is well.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a soak starts and kills real processes, reads the clock and writes its results"
)]

mod acks;
mod audit;
mod corrupt;
mod damage;
mod entry;
mod failover;
mod fill;
mod fs;
mod kill;
mod ledger;
mod load;
mod memory;
mod metadata;
mod net;
mod nodes;
mod power;
mod process;
mod recovery;
mod restart;
pub mod results;
mod volume;
mod volume_crashes;
mod wipe;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use ithaca_env::sim::Random;

pub use failover::{FailoverArguments, run as run_failover};

use process::Site;

/// Which soak.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak kill --kills 100")]
pub struct SoakArguments {
    #[command(subcommand)]
    soak: Soak,
}

#[derive(Subcommand)]
enum Soak {
    /// Kills the cluster under load and checks that nothing acknowledged is lost.
    Kill(kill::KillArguments),
    /// Measures how soon a log serves again after a kill.
    Restart(restart::RestartArguments),
    /// Measures how long chains of many records, and of a large open segment, take to open.
    Recovery(recovery::RecoveryArguments),
    /// Measures what a metadata drive is written for each byte of data.
    Metadata(metadata::MetadataArguments),
    /// Measures resident memory while a log grows and is read.
    Memory(memory::MemoryArguments),
    /// Wipes a node of a cluster of processes and measures how long every entry lacks a copy.
    Wipe(wipe::WipeArguments),
    /// Breaks links, processes and drives of a cluster of processes and checks that the log stays one log.
    Net(net::NetArguments),
    /// Damages stored files and checks that no read gives other bytes.
    Corrupt(corrupt::CorruptArguments),
    /// Works on real file systems on a volume, kills its server, and checks that what was synced is there.
    Fs(fs::FsArguments),
    /// Recovers every state that a power cut may leave of a volume's drive, on simulated drives.
    VolumeCrashes(volume_crashes::VolumeCrashesArguments),
}

/// What every soak takes.
#[derive(Args)]
struct Ground {
    /// The program under test [default: `ithaca` beside this one]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs lie meanwhile.
    #[arg(long, default_value = "target/soak-data")]
    data: PathBuf,
    /// Where results go.
    #[arg(long, default_value = "results")]
    results: PathBuf,
    /// What decides every random choice of this side [default: a random one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
}

impl Ground {
    /// A cluster of `units` units below the data folder, empty, and the random choices of this run.
    fn site(&self, name: &str, units: u32, drive_bytes: u64) -> io::Result<(Site, Random)> {
        self.site_in(&self.data, name, units, drive_bytes)
    }

    /// The same in another folder.
    fn site_in(&self, folder: &Path, name: &str, units: u32, drive_bytes: u64) -> io::Result<(Site, Random)> {
        let (binary, folder, random) = self.place_in(folder, name)?;
        Ok((Site::new(binary, folder, units, drive_bytes)?, random))
    }

    /// The program, a folder of its own below the data folder, and the random choices of this run.
    fn place(&self, name: &str) -> io::Result<(PathBuf, PathBuf, Random)> {
        self.place_in(&self.data, name)
    }

    fn place_in(&self, folder: &Path, name: &str) -> io::Result<(PathBuf, PathBuf, Random)> {
        let (binary, folder, seed) = self.seeded_place_in(folder, name)?;
        Ok((binary, folder, Random::new(seed)))
    }

    /// The program, a folder of its own below `folder`, and the seed of this run.
    fn seeded_place_in(&self, folder: &Path, name: &str) -> io::Result<(PathBuf, PathBuf, u64)> {
        let binary = match &self.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe()?.with_file_name("ithaca"),
        };
        if !binary.exists() {
            return Err(io::Error::other(format!(
                "{}: not there; build it or name it with --binary",
                binary.display()
            )));
        }
        let seed = self.seed.unwrap_or_else(seed_of_now);
        println!("soak {name}: seed {seed}, {} on {}", binary.display(), folder.display());
        Ok((binary, folder.join(format!("{name}-{}", std::process::id())), seed))
    }
}

/// A seed that differs from run to run, short enough to be typed.
fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Random::new(since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32)).next_u64() >> 32
}

/// Runs the soak that `arguments` names. Returns whether all that it demands was found.
pub fn run(arguments: &SoakArguments) -> io::Result<bool> {
    let (passed, failed) = match &arguments.soak {
        Soak::Kill(arguments) => kill::run(arguments),
        Soak::Restart(arguments) => restart::run(arguments),
        Soak::Recovery(arguments) => recovery::run(arguments),
        Soak::Metadata(arguments) => metadata::run(arguments),
        Soak::Memory(arguments) => memory::run(arguments),
        Soak::Wipe(arguments) => wipe::run(arguments),
        Soak::Net(arguments) => net::run(arguments),
        Soak::Corrupt(arguments) => corrupt::run(arguments),
        Soak::Fs(arguments) => fs::run(arguments),
        Soak::VolumeCrashes(arguments) => volume_crashes::run(arguments),
    }?;
    println!("soak: {passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// A size in bytes as 4k, 64M or 2G.
fn parse_size(text: &str) -> Result<u64, String> {
    let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[unit.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        other => return Err(format!("`{other}`: expected k, M or G")),
    };
    let count: u64 = unit.parse().map_err(|_| format!("`{unit}`: expected a whole number"))?;
    count.checked_mul(1 << shift).ok_or_else(|| "too large".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("7X").is_err() && parse_size("M").is_err() && parse_size("99999999999G").is_err());
    }
}
