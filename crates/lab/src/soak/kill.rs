//! SIGKILL of the whole cluster under load, again and again on the same data; with `--power` the file system that holds
//! the data loses its power first.
//!
//! ```text
//!   load ── kill ──┬─► the clients live on, over the restart ── their appends end ──┬─► first append ─► audit ─► load
//!                  └─► the clients die with the cluster ───────── restart ──────────┘
//! ```
//!
//! Now and then the cluster is killed again while it starts. Whatever was audited once is trimmed but for the last
//! positions, so that the log stays bounded and its segments are recycled.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use ithaca_env::sim::Random;
use ithaca_env::{Env, real};
use ithaca_log::client::ClientError;

use super::audit::{Audit, OnDamage, audit};
use super::entry::Name;
use super::ledger::{Ledger, Violation};
use super::load::{Load, connect};
use super::power::{FileSystem, Powered};
use super::process::{Server, Site};
use super::results::Results;
use super::{Ground, parse_size};
use crate::measure::median;

/// Kills out of a hundred that the clients live through.
const LIVE_ON_PERCENT: u64 = 50;
/// Restarts out of a hundred that are killed before they serve.
const KILL_STARTING_PERCENT: u64 = 25;
/// Power cuts out of a hundred after which the program is left to notice by itself that its drive is gone.
const NOTICES_PERCENT: u64 = 50;
/// What `ithaca dev` exits with when a drive has failed.
const DRIVE_FAILED: Option<i32> = Some(3);
/// Appends that are acknowledged for each kill, at the least: fewer would have tried nothing.
const ACKED_MIN: u64 = 10;
/// A start that is killed runs so long at the most.
const STARTING_MAX_MS: u64 = 60;

/// How often, and under which load.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak kill --kills 100 --seconds-between 0.5..2")]
pub struct KillArguments {
    /// Kills under load; those of a cluster that is only starting come on top.
    #[arg(long, default_value_t = 100)]
    kills: u64,
    /// Seconds of load before each, from a range.
    #[arg(long, default_value = "0.5..2", value_parser = parse_span)]
    seconds_between: (f64, f64),
    /// Clients that append.
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// Log units.
    #[arg(long, default_value_t = 2)]
    units: u32,
    /// Positions that are kept, and read again after every kill.
    #[arg(long, default_value_t = 50_000)]
    keep: u64,
    /// Size at which a drive begins.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    drive_size: u64,
    /// Cuts the power of a file system made for the data, in a loop device, at each kill. Needs root.
    #[arg(long, value_enum)]
    power: Option<FileSystem>,
    #[command(flatten)]
    ground: Ground,
}

/// A range of seconds as 0.5..2.
pub fn parse_span(text: &str) -> Result<(f64, f64), String> {
    let parts = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.filter(|(first, end)| first <= end).ok_or_else(|| format!("`{text}`: expected a range as 0.5..2"))
}

fn how(power: Option<FileSystem>) -> String {
    match power {
        None => "SIGKILL".into(),
        Some(kind) => format!("A power cut of {kind:?} below, then SIGKILL"),
    }
}

/// What happened around one kill.
#[derive(Default)]
struct Round {
    load: Duration,
    lived_on: bool,
    killed_starting: bool,
    outstanding: usize,
    ready: Duration,
    first_append: Duration,
    audit: Audit,
}

/// What the soak itself was doing when a call of its own failed, which ends it: the cluster does not serve.
fn during(what: &'static str) -> impl Fn(ClientError) -> io::Error {
    move |error| io::Error::other(format!("{what}: {error}"))
}

struct Soak<'a> {
    arguments: &'a KillArguments,
    site: Site,
    /// What holds the data, if its power is cut.
    power: Option<&'a Powered>,
    random: Random,
    ledger: Rc<RefCell<Ledger>>,
    next_worker: u32,
}

/// Kills as often as asked. Returns rounds without and with a violation.
pub fn run(arguments: &KillArguments) -> io::Result<(u64, u64)> {
    let ground = &arguments.ground;
    let named = |kind: FileSystem| format!("{}-{}", kind.name(), std::process::id());
    let power = arguments.power.map(|kind| Powered::new(&ground.data, &named(kind), kind)).transpose()?;
    let folder = power.as_ref().map_or(ground.data.as_path(), Powered::folder);
    let (site, random) = ground.site_in(folder, "kill", arguments.units, arguments.drive_size)?;
    let mut soak =
        Soak { arguments, site, power: power.as_ref(), random, ledger: Rc::default(), next_worker: 0 };
    let mut results = Results::new(
        &format!(
            "{} of `ithaca dev` under load, restart on the same data, audit of every position that is kept",
            how(arguments.power)
        ),
        "kill,load_ms,clients_lived_on,killed_while_starting,in_flight,acked_total,unknown_total,tail,restart_ms,first_append_ms,audited,lost_total,differing_total",
    );
    let mut restarts_ms = Vec::new();
    let mut failed = 0;
    let mut server = real::run(async |env| soak.site.start(&env).await)?.0;
    for kill in 1..=arguments.kills {
        let before = soak.ledger.borrow().violations();
        let round;
        (server, round) = soak.round(server)?;
        restarts_ms.push(round.ready.as_secs_f64() * 1000.0);
        let row = soak.row(kill, &round);
        println!("{}", row.0);
        results.row(&row.1);
        let told = soak.ledger.borrow_mut().take_told();
        told.iter().for_each(|line| eprintln!("kill {kill}: {line}"));
        failed += u64::from(soak.ledger.borrow().violations() != before);
    }
    let before = soak.ledger.borrow().violations();
    real::run(async |env| server.stop(&env).await)?;
    soak.note_panics()?;
    if soak.ledger.borrow().acked() < ACKED_MIN * arguments.kills {
        let what =
            format!("only {} appends were acknowledged: nothing was tried", soak.ledger.borrow().acked());
        soak.ledger.borrow_mut().violated(Violation::Differing, what);
    }
    soak.ledger.borrow_mut().take_told().iter().for_each(|line| eprintln!("at the end: {line}"));
    failed = (failed + u64::from(soak.ledger.borrow().violations() != before)).min(arguments.kills);
    let (lost, differing) = soak.ledger.borrow().violations();
    let summary = format!(
        "{{\"kills\":{},\"acked\":{},\"acked_lost\":{lost},\"differing\":{differing},\"restart_ms_p50\":{:.0},\"restart_ms_max\":{:.0}}}",
        arguments.kills,
        soak.ledger.borrow().acked(),
        median(restarts_ms.iter().copied()),
        restarts_ms.iter().copied().fold(0.0, f64::max),
    );
    println!("{summary}");
    results.remark(&summary);
    let name = arguments.power.map_or("kill".to_string(), |kind| format!("power-{}", kind.name()));
    results.write(&ground.results, &name)?;
    if failed == 0 {
        soak.site.remove()?;
    } else {
        eprintln!("the data stays in {}", soak.site.root().display());
        // And the file system below with it, mounted.
        std::mem::forget(power);
    }
    Ok((arguments.kills - failed, failed))
}

impl Soak<'_> {
    /// Loads `server`, kills it, restarts it and audits the log.
    fn round(&mut self, server: Server) -> io::Result<(Server, Round)> {
        let (first, end) = self.arguments.seconds_between;
        let mut round = Round {
            load: Duration::from_secs_f64(self.random.within(first, end)),
            lived_on: self.random.percent(LIVE_ON_PERCENT),
            killed_starting: self.random.percent(KILL_STARTING_PERCENT),
            ..Round::default()
        };
        // Leaving an environment drops its clients where they stand, as the end of their process would.
        let restarted = real::run(async |env| self.load_and_kill(&env, server, &mut round).await)?;
        let server = real::run(async |env| {
            let server = match restarted {
                Some(server) => server,
                None => self.restart(&env, &mut round).await?,
            };
            let client = connect(&env, &[self.site.addr()]).await.map_err(during("connecting to audit"))?;
            let audited = audit(&client, &self.ledger, OnDamage::Lost).await;
            round.audit = audited.map_err(during("the audit"))?;
            io::Result::Ok(server)
        })?;
        self.note_panics()?;
        Ok((server, round))
    }

    /// No life of the program may end in a panic.
    fn note_panics(&self) -> io::Result<()> {
        for panic in self.site.panics()? {
            self.ledger.borrow_mut().violated(Violation::Differing, panic);
        }
        Ok(())
    }

    /// The cluster again, if the clients live through its restart.
    async fn load_and_kill(
        &mut self,
        env: &Env,
        server: Server,
        round: &mut Round,
    ) -> io::Result<Option<Server>> {
        let load = Load::new(env, &[self.site.addr()], &self.ledger, self.arguments.keep);
        let mut workers = Vec::new();
        for _ in 0..self.arguments.clients {
            self.next_worker += 1;
            workers.push(load.start(self.next_worker, Random::new(self.random.next_u64())));
        }
        env.sleep(round.load).await;
        round.outstanding = load.outstanding();
        match self.power {
            None => server.kill()?,
            Some(power) => {
                power.cut()?;
                if self.random.percent(NOTICES_PERCENT) {
                    let code = server.ended_by_itself(env).await?;
                    if code != DRIVE_FAILED {
                        let what = format!("with its drive gone the server ended with {code:?}");
                        self.ledger.borrow_mut().violated(Violation::Differing, what);
                    }
                } else {
                    server.kill()?;
                }
                power.restore(env).await?;
            }
        }
        if round.lived_on {
            let server = self.restart(env, round).await?;
            load.drain(workers).await;
            return Ok(Some(server));
        }
        // What arrived before the kill but was not looked at yet still counts as told.
        env.sleep(Duration::from_millis(5)).await;
        self.ledger.borrow_mut().abandoned(load.outstanding() as u64);
        Ok(None)
    }

    /// Starts the cluster and appends an entry.
    async fn restart(&mut self, env: &Env, round: &mut Round) -> io::Result<Server> {
        if round.killed_starting {
            let starting = self.site.spawn()?;
            env.sleep(Duration::from_millis(self.random.below(STARTING_MAX_MS))).await;
            starting.kill()?;
        }
        let spawned = Instant::now();
        let (server, ready) = self.site.start(env).await?;
        round.ready = ready;
        self.next_worker += 1;
        let name = Name { worker: self.next_worker, len: 100, number: 0 };
        self.ledger.borrow_mut().sending(name);
        let client = connect(env, &[self.site.addr()]).await.map_err(during("the first connection"))?;
        let pos = client.append(name.bytes()).await.map_err(during("the first append"))?;
        round.first_append = spawned.elapsed();
        self.ledger.borrow_mut().acknowledged(name, pos.0);
        Ok(server)
    }

    /// A round in words and as a row of the results.
    fn row(&self, kill: u64, round: &Round) -> (String, String) {
        let ledger = self.ledger.borrow();
        let (lost, differing) = ledger.violations();
        let ms = |span: Duration| span.as_secs_f64() * 1000.0;
        let Audit { tail, positions, .. } = round.audit;
        let words = format!(
            "kill {kill}: after {:.0} ms, {} in flight{}{}; ready in {:.0} ms, first append {:.0} ms; {} acknowledged, audited {positions} up to {tail}: {lost} lost, {differing} differing",
            ms(round.load),
            round.outstanding,
            if round.lived_on { ", clients lived on" } else { "" },
            if round.killed_starting { ", killed again while starting" } else { "" },
            ms(round.ready),
            ms(round.first_append),
            ledger.acked(),
        );
        let row = format!(
            "{kill},{:.0},{},{},{},{},{},{tail},{:.1},{:.1},{positions},{lost},{differing}",
            ms(round.load),
            u8::from(round.lived_on),
            u8::from(round.killed_starting),
            round.outstanding,
            ledger.acked(),
            ledger.unknown(),
            ms(round.ready),
            ms(round.first_append),
        );
        (words, row)
    }
}
