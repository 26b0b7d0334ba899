//! Real file systems on a volume: worked on, by the tester [`fsx`] too, their server killed under them, recovered, checked.
//!
//! ```text
//!   mkfs ─► mount ─► fsx ─► work, trims, fsx ─► kill -9 of the server ─► take down ─► serve again ─► mount ─► files against their models ─┐
//!             ▲                                                                                                                           │
//!             └──────────────────────────────────── the file system's own check finds nothing ◄──────────────────────────────── unmount ──┘
//! ```
//!
//! The files' models say what may be there ([`model`]); what a file system has synced before the kill must be. fsx knows its file as long as
//! the server lives.

mod disk;
mod fsx;
mod model;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use ithaca_env::sim::Random;

use super::Ground;
use super::kill::parse_span;
use super::results::Results;
use disk::{Attached, Disk, Kind, Over};
use fsx::Fsx;
use model::{Ended, Modelled};

/// Files that are worked on.
const FILES: usize = 12;
/// Operations from one trim to the next.
const TRIM_EVERY: u64 = 40;
/// XFS asks for 300 MB at least.
const SIZE: &str = "384M";

/// `cargo lab soak fs`.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak fs --kinds ext4,xfs,btrfs --kills 20")]
pub struct FsArguments {
    /// Which file systems, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ext4,xfs,btrfs")]
    kinds: Vec<Kind>,
    /// What makes a file of the volume for the loop device.
    #[arg(long, value_enum, default_value_t = Over::Nbd)]
    over: Over,
    /// Kills of the server under each.
    #[arg(long, default_value_t = 10)]
    kills: u64,
    /// Seconds of work before each, from a range.
    #[arg(long, default_value = "0.5..3", value_parser = parse_span)]
    seconds_between: (f64, f64),
    /// Operations of fsx before each kill, and as many as there is time for until it comes; 0 for none. It is installed if it is not there.
    #[arg(long, default_value_t = 5000)]
    fsx: u64,
    #[command(flatten)]
    ground: Ground,
}

/// What was done.
#[derive(Default)]
struct Done {
    kills: u64,
    operations: u64,
    /// Of fsx, those that it has compared.
    by_fsx: u64,
    trims: u64,
    settled: u64,
    /// What was wrong.
    wrong: Vec<String>,
}

/// Works on each file system in turn. Returns kills that all was well after, and file systems with which it was not.
pub fn run(arguments: &FsArguments) -> io::Result<(u64, u64)> {
    let (program, folder, mut random) = arguments.ground.place("fs")?;
    let mut results = Results::new(
        "a file system on a volume over FUSE and a loop device: random work on files, trims, SIGKILL of the volume's server, restart, mount, \
         the files against what was synced, the file system's own check; before each kill fsx, whose every read is compared, and fsx until it comes",
        "kind,over,kills,operations,fsx_operations,trims,files_settled_at_a_kill,failed",
    );
    let fsx = match (arguments.fsx > 0).then(|| Fsx::find(&folder)).transpose() {
        Ok(fsx) => fsx,
        Err(error) => {
            println!("skip  fsx: {error}");
            results.remark(&format!("fsx skipped: {error}"));
            None
        }
    };
    let (mut passed, mut failed) = (0, 0);
    for &kind in &arguments.kinds {
        if let Some(missing) = kind.missing(arguments.over) {
            println!("skip  {}: {missing}", kind.name());
            results.remark(&format!("{} skipped: {missing}", kind.name()));
            continue;
        }
        let disk = Disk::create(program.clone(), folder.join(kind.name()), SIZE)?;
        let mut done = Done::default();
        if let Err(error) = soak(arguments, kind, &disk, fsx.as_ref(), &mut random, &mut done) {
            done.wrong.push(error.to_string());
        }
        done.wrong.extend(disk.panics()?);
        let Done { kills, operations, by_fsx, trims, settled, wrong } = done;
        println!(
            "{}: {kills} kills, {operations} operations, {by_fsx} of fsx, {trims} trims, {settled} files settled at a kill, {} wrong",
            kind.name(),
            wrong.len()
        );
        wrong.iter().for_each(|wrong| println!("FAIL  {}: {wrong}", kind.name()));
        let over = if arguments.over == Over::Nbd { "nbdfuse" } else { "mount" };
        results.row(&format!(
            "{},{over},{kills},{operations},{by_fsx},{trims},{settled},{}",
            kind.name(),
            wrong.len()
        ));
        passed += kills;
        if wrong.is_empty() {
            disk.remove()?;
        } else {
            failed += 1;
        }
    }
    let name = if arguments.over == Over::Nbd { "fs" } else { "fs-mount" };
    results.write(&arguments.ground.results, name)?;
    if failed == 0 {
        if let Some(fsx) = fsx {
            fsx.remove()?;
        }
        let _ = std::fs::remove_dir(&folder);
    } else {
        eprintln!("what is wrong stays in {}", folder.display());
    }
    Ok((passed, failed))
}

fn soak(
    arguments: &FsArguments,
    kind: Kind,
    disk: &Disk,
    fsx: Option<&Fsx>,
    random: &mut Random,
    done: &mut Done,
) -> io::Result<()> {
    let mut attached = disk.attach(arguments.over)?;
    attached.make(kind)?;
    attached.mount(kind)?;
    let named = |nth| Modelled::create(disk.files().join(format!("file-{nth}")));
    let mut files = (0..FILES).map(named).collect::<io::Result<Vec<_>>>()?;
    std::fs::File::open(disk.files())?.sync_all()?;
    for _ in 0..arguments.kills {
        let (first, end) = arguments.seconds_between;
        if let Some(fsx) = fsx {
            fsx.run(&disk.files().join("fsx"), random.next_u64(), arguments.fsx)?;
            done.by_fsx += arguments.fsx;
        }
        work_and_kill(&mut attached, disk, &mut files, fsx, random, random_seconds(first, end), done)?;
        drop(attached);
        attached = disk.attach(arguments.over)?;
        attached.mount(kind).map_err(|error| during("mount after a kill", &error))?;
        for file in &mut files {
            done.settled += u64::from(file.is_settled());
            match file.recovered(&disk.files()) {
                Ok(()) => {}
                Err(Ended::Wrong(wrong)) => done.wrong.push(wrong),
                Err(Ended::Refused(error)) => done.wrong.push(format!("a file cannot be read: {error}")),
            }
        }
        attached.unmount()?;
        attached.check(kind).map_err(|error| during("check after a kill", &error))?;
        attached.mount(kind)?;
        done.kills += 1;
    }
    attached.unmount()?;
    attached.stop()?;
    disk.verify()
}

fn during(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

fn random_seconds(first: f64, end: f64) -> impl Fn(&mut Random) -> Duration {
    move |random| Duration::from_secs_f64(random.within(first, end))
}

/// Works on the files until the file system refuses, because its server was killed meanwhile.
fn work_and_kill(
    attached: &mut Attached,
    disk: &Disk,
    files: &mut [Modelled],
    fsx: Option<&Fsx>,
    random: &mut Random,
    span: impl Fn(&mut Random) -> Duration,
    done: &mut Done,
) -> io::Result<()> {
    let (span, mut workers) = (span(random), Random::new(random.next_u64()));
    let beside = fsx.map(|fsx| fsx.start(&disk.files().join("fsx-beside"), random.next_u64()));
    let mut beside = beside.transpose()?;
    let (is_killed, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let (worked, killed) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(disk, files, &mut workers, &is_killed, &operations));
        std::thread::sleep(span);
        if let (Some(fsx), Some(beside)) = (fsx, &mut beside)
            && !beside.is_working().unwrap_or(false)
        {
            done.wrong.push(format!("fsx ended before the kill; see {}", fsx.findings().display()));
        }
        let killed = attached.kill();
        is_killed.store(true, Ordering::SeqCst);
        (worker.join(), killed)
    });
    killed?;
    done.operations += operations.load(Ordering::SeqCst);
    match worked.map_err(|_| io::Error::other("the worker panicked"))? {
        Ok(trims) => done.trims += trims,
        Err(Ended::Wrong(wrong)) => done.wrong.push(wrong),
        // Refused before the server was gone.
        Err(Ended::Refused(error)) => return Err(during("work", &error)),
    }
    Ok(())
}

/// Returns how often it has trimmed. Errors: something is wrong, or was refused although the server lived.
fn work(
    disk: &Disk,
    files: &mut [Modelled],
    random: &mut Random,
    is_killed: &AtomicBool,
    operations: &AtomicU64,
) -> Result<u64, Ended> {
    let mut trims = 0;
    while !is_killed.load(Ordering::SeqCst) {
        let nth = operations.fetch_add(1, Ordering::SeqCst);
        let stepped = match nth % TRIM_EVERY {
            0 if nth > 0 => {
                trims += 1;
                Attached::trim(&disk.files()).map_err(Ended::from)
            }
            // A few files are worked on at a time, so that others are settled.
            _ => {
                let few = (nth / 100) as usize * 3 + random.below(3) as usize;
                files[few % files.len()].step(random)
            }
        };
        match stepped {
            Ok(()) => {}
            // The kill is noted after it is done.
            Err(Ended::Refused(error)) => {
                std::thread::sleep(Duration::from_millis(200));
                return if is_killed.load(Ordering::SeqCst) { Ok(trims) } else { Err(Ended::Refused(error)) };
            }
            wrong => return wrong.map(|()| trims),
        }
    }
    Ok(trims)
}
