//! Failover: nodes of a cluster of real processes are killed under load, one after the other, and a probe that appends one
//! entry at a time sees how long the log stood still.
//!
//! ```text
//!   healthy ──► kill ──► stall, until an append begun after the kill is acknowledged ──► dead ──► start ──► back in use
//!      └ longest gap                                                            longest gap ┘
//! ```
//!
//! The nodes take turns, so that the sequencer and the heads of stripes are among them. Every acknowledged entry is read
//! again at the end and held against the ledger.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use ithaca_env::sim::Random;
use ithaca_env::{Env, real};
use ithaca_log::client::Client;
use ithaca_log::pos::NodeId;

use super::Ground;
use super::acks::Acks;
use super::audit::{OnDamage, audit};
use super::entry::Name;
use super::ledger::{Ledger, Violation};
use super::load::{CALL_TIMEOUT, Load, connect, must_have_ended};
use super::nodes::Nodes;
use super::results::Results;
use crate::measure::median;

/// How long a node that was started again may take until the cluster uses it.
const BACK_PATIENCE: Duration = Duration::from_secs(30);
/// The number of the probe among the workers of the ledger.
const PROBE: u32 = u32::MAX;

/// How often, and on what.
#[derive(Args)]
#[command(after_help = "Example: cargo lab failover --trials 50 --json")]
pub struct FailoverArguments {
    /// Nodes that are killed, one after the other.
    #[arg(long, default_value_t = 50)]
    trials: u64,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Copies of each entry.
    #[arg(long, default_value_t = 2)]
    replicas: u32,
    /// Clients that append beside the probe.
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// Asks the nodes to stop instead of killing them, as a rolling restart would.
    #[arg(long)]
    stop: bool,
    /// Milliseconds of each phase: healthy, and dead.
    #[arg(long, default_value_t = 1500)]
    phase_ms: u64,
    /// Prints the summary only.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ground: Ground,
}

/// What one kill did.
struct Trial {
    killed: usize,
    was_sequencer: bool,
    healthy_gap: Duration,
    stall: Duration,
    dead_gap: Duration,
    back: Duration,
}

/// A probe: appends one entry after the other and notes when each was begun and acknowledged.
#[derive(Default)]
struct Probe {
    acks: Acks,
    stopped: Cell<bool>,
}

impl Probe {
    async fn run(self: Rc<Self>, client: Client, ledger: Rc<RefCell<Ledger>>) {
        for number in 0.. {
            if self.stopped.get() {
                return;
            }
            let name = Name { worker: PROBE, len: 128, number };
            ledger.borrow_mut().sending(name);
            let begun = Instant::now();
            let result = client.append(name.bytes()).await;
            let mut ledger = ledger.borrow_mut();
            must_have_ended(&mut ledger, "an append", begun);
            ledger.settled(name, &result);
            if result.is_ok() {
                self.acks.acked(begun);
            }
        }
    }
}

/// Kills as often as asked. Returns what holds and what does not.
pub fn run(arguments: &FailoverArguments) -> io::Result<(u64, u64)> {
    let (binary, folder, mut random) = arguments.ground.place("failover")?;
    let mut nodes = Nodes::formed(&binary, &folder, arguments.nodes, arguments.replicas)?;
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let trials = real::run(async |env| trials(&env, arguments, &mut nodes, &ledger, &mut random).await)?;
    for panic in nodes.panics()? {
        ledger.borrow_mut().violated(Violation::Differing, panic);
    }
    let told = ledger.borrow_mut().take_told();
    told.iter().for_each(|line| eprintln!("{line}"));
    let failed = report(arguments, &trials, &ledger.borrow())?;
    if failed == 0 {
        nodes.remove()?;
    } else {
        eprintln!("what the nodes said stays in {}", nodes.root().display());
    }
    Ok((arguments.trials - failed.min(arguments.trials), failed))
}

async fn trials(
    env: &Env,
    arguments: &FailoverArguments,
    nodes: &mut Nodes,
    ledger: &Rc<RefCell<Ledger>>,
    random: &mut Random,
) -> io::Result<Vec<Trial>> {
    let addrs = nodes.addrs();
    let client = connect(env, &addrs).await.map_err(io::Error::other)?;
    let load = Load::new(env, &addrs, ledger, 20_000);
    let workers = (1..=arguments.clients).map(|worker| load.start(worker, Random::new(random.next_u64())));
    let workers: Vec<_> = workers.collect();
    let probe = Rc::new(Probe::default());
    let probing = env.spawn(Rc::clone(&probe).run(client.clone(), Rc::clone(ledger)));
    let mut done = Vec::new();
    for number in 0..arguments.trials {
        let killed = number as usize % arguments.nodes + 1;
        let trial = one(env, arguments, nodes, &client, &probe, killed).await?;
        if !arguments.json {
            println!(
                "kill {}: node {killed}{}, stalled {:.0} ms; longest gap healthy {:.0} ms, while it was dead {:.0} ms; back after {:.0} ms",
                number + 1,
                if trial.was_sequencer { " (sequencer)" } else { "" },
                ms(trial.stall),
                ms(trial.healthy_gap),
                ms(trial.dead_gap),
                ms(trial.back),
            );
        }
        done.push(trial);
    }
    probe.stopped.set(true);
    load.drain(workers).await;
    probing.join().await;
    for error in ledger.borrow_mut().take_errors().iter().take(5) {
        eprintln!("an append failed: {error}");
    }
    audit(&client, ledger, OnDamage::Lost).await.map_err(io::Error::other)?;
    Ok(done)
}

/// Kills node `killed`, looks, and starts it again.
async fn one(
    env: &Env,
    arguments: &FailoverArguments,
    nodes: &mut Nodes,
    client: &Client,
    probe: &Probe,
    killed: usize,
) -> io::Result<Trial> {
    let phase = Duration::from_millis(arguments.phase_ms);
    let id = NodeId(killed as u64);
    let began = Instant::now();
    env.sleep(phase).await;
    let layout = client.layout().await.map_err(io::Error::other)?;
    let was_sequencer = layout.sequencer == id;
    let dead = Instant::now();
    match arguments.stop {
        true => nodes.stop(env, killed).await?,
        false => nodes.kill(killed)?,
    }
    let resumed = loop {
        if let Some(resumed) = probe.acks.resumed(dead) {
            break resumed;
        }
        if dead.elapsed() > 3 * CALL_TIMEOUT {
            return Err(io::Error::other(format!("the log stood still for {:?}", dead.elapsed())));
        }
        env.sleep(Duration::from_millis(1)).await;
    };
    env.sleep(phase).await;
    let restarted = Instant::now();
    let (healthy_gap, dead_gap) = (probe.acks.gap(began, dead), probe.acks.gap(resumed, restarted));
    nodes.start(killed)?;
    loop {
        let layout = client.layout().await.map_err(io::Error::other)?;
        if layout.units().any(|unit| unit == id) {
            break;
        }
        if restarted.elapsed() > BACK_PATIENCE {
            return Err(io::Error::other(format!("node {killed} is not in use after {BACK_PATIENCE:?}")));
        }
        env.sleep(Duration::from_millis(20)).await;
    }
    let stall = resumed - dead;
    Ok(Trial { killed, was_sequencer, healthy_gap, stall, dead_gap, back: restarted.elapsed() })
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// Writes the results and the summary; returns how much of what is demanded does not hold.
fn report(arguments: &FailoverArguments, trials: &[Trial], ledger: &Ledger) -> io::Result<u64> {
    let what = format!(
        "{} of one node of {} under load, {} copies of each entry; stall: from the kill until an append that was begun after it is acknowledged",
        if arguments.stop { "SIGTERM" } else { "SIGKILL" },
        arguments.nodes,
        arguments.replicas
    );
    let columns = "trial,node,was_sequencer,stall_ms,healthy_gap_ms,dead_gap_ms,back_ms";
    let mut results = Results::new(&what, columns);
    for (number, trial) in trials.iter().enumerate() {
        results.row(&format!(
            "{},{},{},{:.1},{:.1},{:.1},{:.0}",
            number + 1,
            trial.killed,
            u8::from(trial.was_sequencer),
            ms(trial.stall),
            ms(trial.healthy_gap),
            ms(trial.dead_gap),
            ms(trial.back),
        ));
    }
    let (lost, differing) = ledger.violations();
    let all = |of: fn(&Trial) -> Duration| trials.iter().map(move |trial| ms(of(trial)));
    let most = |of: fn(&Trial) -> Duration| all(of).fold(0.0, f64::max);
    let summary = format!(
        "{{\"trials\":{},\"acked\":{},\"acked_lost\":{lost},\"differing\":{differing},\"p50_ms\":{:.0},\"max_ms\":{:.0},\"healthy_gap_ms\":{:.0},\"dead_gap_ms\":{:.0},\"back_p50_ms\":{:.0}}}",
        trials.len(),
        ledger.acked(),
        median(all(|trial| trial.stall)),
        most(|trial| trial.stall),
        most(|trial| trial.healthy_gap),
        most(|trial| trial.dead_gap),
        median(all(|trial| trial.back)),
    );
    println!("{summary}");
    results.remark(&summary);
    results.write(&arguments.ground.results, if arguments.stop { "rolling" } else { "failover" })?;
    Ok(lost + differing)
}
