//! Faults of links, processes and drives, one or two at a time, under a cluster of real processes that has a network of its
//! own, while clients append, read, trim and follow.
//!
//! ```text
//!   form ─► load ─► event: begin ─► hold ─► heal ─► whole again ─┐ ─► drain ─► audit, history
//!                     ▲────────────────────────────────────────┘
//! ```
//!
//! After each event the log goes on and every copy is made again; at the end every position is read and held against what
//! clients were told. Budget: any one fault, or two at different nodes, all healed after a while; one loss of a node's data
//! at a time. All of it must be survived: nothing acknowledged is lost, whatever was down meanwhile.
//!
//! Wall time is not among the faults: a node reads it once, for a number that is shown and compared with nothing. Nodes that
//! are started again may have a monotonic clock that began at another time.

mod disk;
mod fault;
mod ground;
mod links;
mod results;
mod witness;
mod world;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use ithaca_env::real::files;
use ithaca_env::sim::Random;
use ithaca_env::task::{Ended, TaskHandle, race};
use ithaca_env::{Env, real};
use ithaca_log::client::Client;

use super::Ground;
use super::acks::Acks;
use super::audit::{OnDamage, audit};
use super::kill::parse_span;
use super::ledger::{Ledger, Violation};
use super::load::{Load, connect};
use crate::sim::history::{History, Moment, Trim};
use crate::sim::oracle;
use fault::{Event, Kind, plan};
use links::Links;
use results::{Row, Table};
use witness::{Shared, attest, follow};
use world::{PATIENCE, WHOLE_PATIENCE, World, whole_again};

/// Clients that load the log, and how long each rests between two things that it does.
const LOADERS: (u32, Duration) = (2, Duration::from_millis(40));
/// Witnesses, and the longest rest between two of their calls, in microseconds.
const WITNESSES: (u32, u64) = (3, 100_000);
/// What follows an event is its own: how long it is looked at after the log goes on.
const AFTER: Duration = Duration::from_millis(500);

/// Failed appends of an event that are told.
const TOLD_MAX: usize = 4;

/// Which faults, and how many.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak net --rounds 5 --seed 7")]
pub struct NetArguments {
    /// Clusters, one after the other; each is formed anew, and has a seed one higher than the one before.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Nodes of a cluster.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=9))]
    nodes: u64,
    /// Copies of each entry.
    #[arg(long, default_value_t = 2)]
    replicas: u32,
    /// Events of two faults at once in each round, beside one event of each kind.
    #[arg(long, default_value_t = 6)]
    pairs: u64,
    /// How long an event lasts, in seconds, from a range.
    #[arg(long, default_value = "2..5", value_parser = parse_span)]
    hold_seconds: (f64, f64),
    /// Only these kinds of faults, by their names in the results.
    #[arg(long, value_delimiter = ',', value_parser = parse_kind)]
    only: Vec<Kind>,
    /// Writes what the witnesses of the last round did and saw to this file, as JSON.
    #[arg(long)]
    history: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| format!("`{text}`: expected one of {}", names.join(", ")))
}

/// Runs as many rounds as asked. Returns rounds without and with a violation.
pub fn run(arguments: &NetArguments) -> io::Result<(u64, u64)> {
    ground::enter()?;
    let (binary, folder, seed) = arguments.ground.seeded_place_in(&arguments.ground.data, "net")?;
    let kinds = if arguments.only.is_empty() { Kind::ALL.to_vec() } else { arguments.only.clone() };
    let mut links = Links::new(arguments.nodes as usize)?;
    let mut table = Table::default();
    let mut failed = 0;
    for nth in 0..arguments.rounds {
        let seed = seed.wrapping_add(nth);
        let folder = folder.join(format!("seed-{seed}"));
        println!("round {}: seed {seed}, {}", nth + 1, folder.display());
        let round = Round::new(arguments, &binary, &folder, &kinds, seed);
        let held = real::run(async |env| round.run(&env, &mut links, &mut table).await)?;
        failed += u64::from(!held);
        if held {
            std::fs::remove_dir_all(&folder)?;
        } else {
            eprintln!("round {}: what the nodes said stays in {}", nth + 1, folder.display());
        }
    }
    if failed == 0 {
        std::fs::remove_dir_all(&folder)?;
    }
    table.finish(arguments, failed)?;
    Ok((arguments.rounds - failed, failed))
}

/// One cluster and what befalls it.
struct Round<'a> {
    arguments: &'a NetArguments,
    binary: &'a Path,
    folder: &'a Path,
    events: Vec<Event>,
    random: RefCell<Random>,
    ledger: Rc<RefCell<Ledger>>,
}

/// Everybody who does something with the log of a round.
struct Clients {
    load: Rc<Load>,
    loaders: Vec<TaskHandle<()>>,
    shared: Rc<Shared>,
    witnesses: Vec<TaskHandle<()>>,
    follower: TaskHandle<()>,
}

impl<'a> Round<'a> {
    fn new(
        arguments: &'a NetArguments,
        binary: &'a Path,
        folder: &'a Path,
        kinds: &[Kind],
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let nodes = arguments.nodes as usize;
        let events = plan(&mut random, kinds, nodes, arguments.pairs, arguments.hold_seconds);
        Self { arguments, binary, folder, events, random: random.into(), ledger: Rc::default() }
    }

    /// Whether everything held. An error is of the soak itself, or a request to stop.
    async fn run(&self, env: &Env, links: &mut Links, table: &mut Table) -> io::Result<bool> {
        let signalled = env.spawn(real::shutdown_signal());
        match race(self.events(env, links, table), signalled.join()).await {
            Ended::First(held) => held,
            Ended::Second(_) => Err(io::Error::other("interrupted")),
        }
    }

    async fn events(&self, env: &Env, links: &mut Links, table: &mut Table) -> io::Result<bool> {
        let full =
            self.events.iter().flat_map(|event| &event.faults).find(|fault| fault.kind == Kind::FullDisk);
        let short = full.map(|fault| fault.node);
        let replicas = self.arguments.replicas;
        let mut world = World::new(self.binary, self.folder, links, replicas, short, &self.ledger)?;
        let addrs = world.nodes().addrs();
        let client = connect(env, &addrs).await.map_err(io::Error::other)?;
        let clients = self.start_clients(env, &addrs).await?;
        for event in &self.events {
            let row = self.event(env, &mut world, &client, &clients.shared.acks, event).await?;
            println!("{}", row.words());
            let told = self.ledger.borrow_mut().take_told();
            told.iter().for_each(|line| eprintln!("  {line}"));
            for line in self.ledger.borrow_mut().take_errors().iter().take(TOLD_MAX) {
                println!("  {line}");
            }
            table.add(row);
        }
        whole_again(env, &client).await;
        let shared = self.end_clients(clients).await;
        let last = connect(env, &addrs).await.map_err(io::Error::other)?;
        self.judge(env, &world, &last, &shared.history).await
    }

    async fn start_clients(&self, env: &Env, addrs: &[SocketAddr]) -> io::Result<Clients> {
        let (loaders, pause) = LOADERS;
        let load = Load::paced(env, addrs, &self.ledger, u64::MAX, pause);
        let draw = || Random::new(self.random.borrow_mut().next_u64());
        let loaders = (1..=loaders).map(|worker| load.start(worker, draw())).collect();
        let (count, rest_us) = WITNESSES;
        let shared = Rc::new(Shared {
            env: env.clone(),
            ledger: Rc::clone(&self.ledger),
            history: History::default(),
            acks: Acks::default(),
            rest_us,
            stopped: Cell::new(false),
        });
        let mut witnesses = Vec::new();
        for nth in 0..count {
            let client = connect(env, addrs).await.map_err(io::Error::other)?;
            witnesses.push(env.spawn(attest(Rc::clone(&shared), client, nth, draw())));
        }
        let following = connect(env, addrs).await.map_err(io::Error::other)?;
        let follower = env.spawn(follow(Rc::clone(&shared), following));
        Ok(Clients { load, loaders, shared, witnesses, follower })
    }

    async fn end_clients(&self, clients: Clients) -> Rc<Shared> {
        let Clients { load, loaders, shared, witnesses, follower } = clients;
        shared.stopped.set(true);
        for witness in witnesses {
            witness.join().await;
        }
        load.drain(loaders).await;
        follower.abort();
        shared
    }

    /// Begins an event, ends it, and waits until the cluster has got over it.
    async fn event(
        &self,
        env: &Env,
        world: &mut World<'_>,
        client: &Client,
        acks: &Acks,
        event: &Event,
    ) -> io::Result<Row> {
        if event.waits {
            self.must_be_whole(env, client, "before an event that needs it").await;
        }
        let before = self.ledger.borrow().counts();
        let mut random = Random::new(self.random.borrow_mut().next_u64());
        let began = Instant::now();
        for fault in &event.faults {
            world.begin(env, client, &mut random, *fault, event.hold).await?;
        }
        let until = Instant::now() + event.hold;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            env.sleep(left.min(Duration::from_millis(50))).await;
            world.look_after()?;
        }
        let held = Instant::now();
        for fault in &event.faults {
            world.heal(env, client, &mut random, *fault).await?;
        }
        let healed = Instant::now();
        let resumed = self.resumed(env, acks, healed, event).await;
        env.sleep(AFTER).await;
        let whole = self.must_be_whole(env, client, event.name()).await;
        world.look_after()?;
        Ok(Row {
            event: event.clone(),
            stall: acks.gap(began, held),
            resumed: resumed.map(|at| at - healed),
            whole: whole.map(|took| took + AFTER),
            counts: self.ledger.borrow().counts().since(before),
        })
    }

    async fn resumed(&self, env: &Env, acks: &Acks, healed: Instant, event: &Event) -> Option<Instant> {
        while healed.elapsed() < PATIENCE {
            if let Some(resumed) = acks.resumed(healed) {
                return Some(resumed);
            }
            env.sleep(Duration::from_millis(5)).await;
        }
        self.violated(format!("{}: no append succeeds within {PATIENCE:?} after healing", event.name()));
        None
    }

    async fn must_be_whole(&self, env: &Env, client: &Client, when: &str) -> Option<Duration> {
        let whole = whole_again(env, client).await;
        if whole.is_none() {
            let layout = client.layout().await;
            let layout = layout.map(|layout| format!("{:?} {:?}", layout.nodes, layout.missing()));
            self.violated(format!("{when}: copies are missing after {WHOLE_PATIENCE:?}: {layout:?}"));
        }
        whole
    }

    /// Reads everything, and holds it and what the witnesses saw against what clients were told. Whether all holds.
    async fn judge(
        &self,
        env: &Env,
        world: &World<'_>,
        client: &Client,
        history: &History,
    ) -> io::Result<bool> {
        self.must_be_whole(env, client, "at the end").await;
        let audited = audit(client, &self.ledger, OnDamage::Lost).await;
        // At some time: only that somebody asked is known of those of the load.
        let asked = |pos| Trim { range: pos..pos + 1, start: Moment(0), end: None };
        history.trims.borrow_mut().extend(self.ledger.borrow().trims_asked().map(asked));
        if let Err(what) = oracle::judge(history) {
            self.violated(what);
        }
        if let Some(path) = &self.arguments.history {
            files::write(path, history.json().as_bytes())?;
        }
        world.nodes().panics()?.into_iter().for_each(|panic| self.violated(panic));
        match &audited {
            Ok(found) => println!("audited {} positions up to {}", found.positions, found.tail),
            Err(error) => self.violated(format!("the audit: {error}")),
        }
        let told = self.ledger.borrow_mut().take_told();
        told.iter().for_each(|line| eprintln!("  {line}"));
        let (lost, differing) = self.ledger.borrow().violations();
        println!("{} acknowledged: {lost} lost, {differing} differing", self.ledger.borrow().acked());
        Ok(lost + differing == 0)
    }

    fn violated(&self, what: String) {
        self.ledger.borrow_mut().violated(Violation::Differing, what);
    }
}
