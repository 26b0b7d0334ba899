//! Damage to stored files while the system is down: whatever a read gives afterwards is what was appended, or a refusal.
//!
//! ```text
//!   load ─► audit ─► stop or kill ─► start and kill ─► copy ─┬─► harm ─► fsck ─► start ─► audit ─► kill ─► start ─► audit
//!                                                            └─► harm ─► ...
//! ```
//!
//! The cluster was started once more before the harm, so that everything in the log is vouched for by what follows it:
//! what is cut as a torn tail was never acknowledged. Budget: any number of blocks, at most `--places` a round. What is
//! harmed must be detected; this cluster has one copy of each entry, so it need not be survived.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use ithaca_env::sim::Random;
use ithaca_env::{Env, real};

use super::audit::{Audit, OnDamage, audit};
use super::damage::{Stored, harm};
use super::ledger::{Ledger, Violation};
use super::load::{Load, connect};
use super::process::{NotStarted, Site};
use super::results::Results;
use super::{Ground, parse_size};

/// What `ithaca fsck` and `ithaca dev` exit with where data is damaged.
const DAMAGED: Option<i32> = Some(4);
/// Clients that load the log.
const CLIENTS: u32 = 4;
/// One of so many positions may be refused, at the most. What refuses all loses nothing, and serves nobody.
const REFUSED_SHARE: u64 = 4;
/// Rounds that start from the same log.
const ROUNDS_PER_LOG: u64 = 20;

/// How often.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak corrupt --rounds 100")]
pub struct CorruptArguments {
    /// Rounds of harm.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Places that are harmed in one round, at the most.
    #[arg(long, default_value_t = 4)]
    places: u64,
    /// Positions of a log, about 2 KiB each.
    #[arg(long, default_value_t = 60_000)]
    positions: u64,
    /// Log units.
    #[arg(long, default_value_t = 2)]
    units: u32,
    /// Size at which a drive begins.
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    drive_size: u64,
    #[command(flatten)]
    ground: Ground,
}

/// What one round showed.
#[derive(Default)]
struct Round {
    harms: Vec<String>,
    fsck: Option<i32>,
    /// `None` if the cluster refused to start.
    audit: Option<Audit>,
}

/// Harms as often as asked. Returns rounds without and with a violation.
pub fn run(arguments: &CorruptArguments) -> io::Result<(u64, u64)> {
    let (mut site, mut random) = arguments.ground.site("corrupt", arguments.units, arguments.drive_size)?;
    let mut results = Results::new(
        "blocks of stored files are harmed while `ithaca dev` is down; then fsck, a start, and a read of every position",
        "round,harm,fsck_exit,started,positions,refused_as_damaged,lost,differing",
    );
    let (mut failed, mut refused_starts, mut read, mut damaged) = (0, 0, 0, 0);
    let mut made = None;
    for nth in 1..=arguments.rounds {
        if nth % ROUNDS_PER_LOG == 1 || made.is_none() {
            made = Some(make_log(&mut site, &mut random, arguments.positions)?);
        }
        let Some((ledger, files)) = &made else { unreachable!("a log was made") };
        let ledger = RefCell::new(ledger.clone());
        let places = 1 + random.below(arguments.places);
        let round = run_round(&mut site, &mut random, &ledger, files, places)?;
        let (lost, differing) = ledger.borrow().violations();
        let Audit { positions, damaged: refused, .. } = round.audit.unwrap_or_default();
        let (harms, fsck) = (round.harms.join("; "), round.fsck.unwrap_or(-1));
        let started = u8::from(round.audit.is_some());
        println!(
            "round {nth}: {harms}: fsck {fsck}, started {started}, {positions} positions, {refused} refused, {lost} lost, {differing} differing"
        );
        ledger.borrow_mut().take_told().iter().for_each(|line| eprintln!("round {nth}: {line}"));
        results.row(&format!("{nth},{harms},{fsck},{started},{positions},{refused},{lost},{differing}"));
        failed += u64::from(lost + differing > 0);
        refused_starts += u64::from(round.audit.is_none());
        read += positions;
        damaged += refused;
    }
    if damaged * REFUSED_SHARE > read {
        eprintln!("{damaged} of {read} positions were refused: more than a few harmed blocks can take along");
        failed = (failed + 1).min(arguments.rounds);
    }
    let summary = format!(
        "{{\"rounds\":{},\"failed\":{failed},\"starts_refused\":{refused_starts},\"positions_refused\":{damaged}}}",
        arguments.rounds,
    );
    println!("{summary}");
    results.remark(&summary);
    results.write(&arguments.ground.results, "corrupt")?;
    if failed == 0 {
        site.remove()?;
    } else {
        eprintln!("the last round's data stays in {}", site.root().display());
    }
    Ok((arguments.rounds - failed, failed))
}

/// A log that was loaded, read and closed, kept beside the cluster's own directory; what is known of it, and its files.
fn make_log(site: &mut Site, random: &mut Random, positions: u64) -> io::Result<(Ledger, Vec<Stored>)> {
    let original = site.root().join("original");
    for folder in [&original, &site.cluster()] {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
    }
    let ledger: Rc<RefCell<Ledger>> = Rc::default();
    real::run(async |env| {
        let (server, _) = site.start(&env).await?;
        let load = Load::new(&env, &[site.addr()], &ledger, u64::MAX);
        let workers =
            (1..=CLIENTS).map(|worker| load.start(worker, Random::new(random.next_u64()))).collect();
        while ledger.borrow().last_known().unwrap_or(0) < positions {
            env.sleep(Duration::from_millis(5)).await;
        }
        load.drain(workers).await;
        let client = connect(&env, &[site.addr()]).await.map_err(io::Error::other)?;
        audit(&client, &ledger, OnDamage::Lost).await.map_err(io::Error::other)?;
        if random.percent(50) {
            server.stop(&env).await?;
        } else {
            server.kill()?;
        }
        let (server, _) = site.start(&env).await?;
        server.kill()
    })?;
    std::fs::rename(site.cluster(), &original)?;
    std::fs::create_dir(site.cluster())?;
    let files = Stored::in_folder(&original, &site.cluster())?;
    println!("a log of {} blocks", files.iter().map(Stored::block_count).sum::<usize>());
    Ok((ledger.take(), files))
}

fn run_round(
    site: &mut Site,
    random: &mut Random,
    ledger: &RefCell<Ledger>,
    files: &[Stored],
    places: u64,
) -> io::Result<Round> {
    let panics_before = site.panics()?.len();
    files.iter().try_for_each(Stored::restore)?;
    let harms = (0..places).map(|_| harm(files, random)).collect::<io::Result<Vec<String>>>()?;
    let modified = || files.iter().map(Stored::modified).collect::<io::Result<Vec<_>>>();
    let before = modified()?;
    let mut round = Round { harms, fsck: site.fsck()?, audit: None };
    let violated = |what: String| ledger.borrow_mut().violated(Violation::Differing, what);
    if modified()? != before {
        violated("fsck changed a file".to_string());
    }
    if round.fsck != Some(0) && round.fsck != DAMAGED {
        violated(format!("fsck ended with {:?}", round.fsck));
    }
    match real::run(async |env| start_and_audit_twice(&env, site, ledger).await) {
        Ok(audit) => round.audit = Some(audit),
        Err(error) => match NotStarted::in_error(&error) {
            Some(NotStarted { code: DAMAGED }) => {}
            _ => violated(format!("after the harm: {error}")),
        },
    }
    let is_seen = round.audit.is_none_or(|audit| audit.damaged > 0);
    if is_seen && round.fsck != DAMAGED {
        violated(format!("fsck ended with {:?}, although something is damaged", round.fsck));
    }
    for panic in site.panics()?.iter().skip(panics_before) {
        violated(panic.clone());
    }
    Ok(round)
}

/// Reads everything, then once more after a kill: what a recovery makes of damage is there for the next one too.
async fn start_and_audit_twice(env: &Env, site: &mut Site, ledger: &RefCell<Ledger>) -> io::Result<Audit> {
    let mut first = None;
    loop {
        let (mut server, _) = site.start(env).await?;
        let client = connect(env, &[site.addr()]).await.map_err(io::Error::other)?;
        let found = audit(&client, ledger, OnDamage::Count).await.map_err(io::Error::other)?;
        if server.has_ended()? {
            return Err(io::Error::other("the server ended by itself"));
        }
        server.kill()?;
        match first {
            Some(first) => return Ok(first),
            None => first = Some(found),
        }
    }
}
