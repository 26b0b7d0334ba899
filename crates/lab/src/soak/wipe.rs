//! A node loses all that it has: how long until every entry has its copies again, and what appends notice of it. Then each of the others
//! is killed in turn, and everything is read: the copies are there.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use ithaca_env::sync::Notify;
use ithaca_env::{Env, real};
use ithaca_log::client::Client;

use super::audit::{OnDamage, audit};
use super::entry::Name;
use super::ledger::{Ledger, Violation};
use super::load::connect;
use super::nodes::Nodes;
use super::results::Results;
use super::{Ground, parse_size};

/// Bytes of an entry.
const ENTRY_BYTES: u32 = 4096;
/// Appends under way.
const UNDER_WAY: usize = 256;
/// The node that is wiped.
const WIPED: usize = 3;
/// The longest that is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
/// Seconds until every copy is there, at the most.
const REBUILT_MAX_S: f64 = 60.0;
/// Time over which the rate of appends is measured while all is well.
const HEALTHY: Duration = Duration::from_secs(5);

/// How much, and on what.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak wipe --bytes 1G")]
pub struct WipeArguments {
    /// Bytes of entries before the node is wiped.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    bytes: u64,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Copies of each entry.
    #[arg(long, default_value_t = 2)]
    replicas: u32,
    #[command(flatten)]
    ground: Ground,
}

/// Wipes once. Returns what holds and what does not: that nothing which was acknowledged is missing, the time, and the rate meanwhile.
pub fn run(arguments: &WipeArguments) -> io::Result<(u64, u64)> {
    let (binary, folder, _) = arguments.ground.place("wipe")?;
    let mut nodes = Nodes::formed(&binary, &folder, arguments.nodes, arguments.replicas)?;
    let ledger: Rc<RefCell<Ledger>> = Rc::default();
    let measured = real::run(async |env| {
        let measured = wipe(&env, arguments, &mut nodes, &ledger).await?;
        audit_without_each(&env, &mut nodes, &ledger).await?;
        io::Result::Ok(measured)
    })?;
    for panic in nodes.panics()? {
        ledger.borrow_mut().violated(Violation::Differing, panic);
    }
    let what =
        "one node of a cluster of processes is killed under load, loses its data directory and is replaced";
    let columns = "bytes,before_appends_per_s,rebuilding_appends_per_s,after_appends_per_s,rebuilt_s,acked,lost,differing";
    let mut results = Results::new(what, columns);
    let ((lost, differing), acked) = (ledger.borrow().violations(), ledger.borrow().acked());
    let Measured { healthy, rebuilding, after, took } = measured;
    let (bytes, took) = (acked * u64::from(ENTRY_BYTES), took.as_secs_f64());
    let row = format!("{bytes},{healthy:.0},{rebuilding:.0},{after:.0},{took:.1},{acked},{lost},{differing}");
    results.row(&row);
    println!("{columns}\n{row}");
    ledger.borrow_mut().take_told().iter().for_each(|line| eprintln!("{line}"));
    results.write(&arguments.ground.results, "wipe")?;
    nodes.remove()?;
    // A drive may be slower after some gigabytes than at first, whatever is copied.
    let holds = [lost + differing == 0, took <= REBUILT_MAX_S, rebuilding >= healthy.min(after) / 2.0];
    let held = holds.iter().filter(|it| **it).count() as u64;
    Ok((held, holds.len() as u64 - held))
}

/// Appends a second, and the time until all copies were there.
struct Measured {
    healthy: f64,
    rebuilding: f64,
    after: f64,
    took: Duration,
}

/// Appends as fast as it goes; what became of them is in the ledger.
struct Appending {
    ledger: Rc<RefCell<Ledger>>,
    stopped: Cell<bool>,
    number: Cell<u64>,
    running: Cell<usize>,
    changed: Notify,
}

impl Appending {
    fn start(env: &Env, client: &Client, ledger: &Rc<RefCell<Ledger>>) -> Rc<Self> {
        let appending = Rc::new(Self {
            ledger: Rc::clone(ledger),
            stopped: Cell::new(false),
            number: Cell::new(0),
            running: Cell::new(UNDER_WAY),
            changed: Notify::default(),
        });
        for _ in 0..UNDER_WAY {
            env.spawn(Rc::clone(&appending).append_on(client.clone()));
        }
        appending
    }

    async fn append_on(self: Rc<Self>, client: Client) {
        while !self.stopped.get() {
            let name = Name { worker: 1, len: ENTRY_BYTES, number: self.number.get() };
            self.number.set(name.number + 1);
            self.ledger.borrow_mut().sending(name);
            let result = client.append(name.bytes()).await;
            self.ledger.borrow_mut().settled(name, &result);
        }
        self.running.set(self.running.get() - 1);
        self.changed.ring();
    }

    fn acked(&self) -> u64 {
        self.ledger.borrow().acked()
    }

    /// Appends a second over `span`.
    async fn rate(&self, env: &Env, span: Duration) -> f64 {
        let before = self.acked();
        env.sleep(span).await;
        (self.acked() - before) as f64 / span.as_secs_f64()
    }

    /// Begins no more, and waits for those under way.
    async fn stop(&self) {
        self.stopped.set(true);
        self.changed.until(|| (self.running.get() == 0).then_some(())).await;
    }
}

async fn wipe(
    env: &Env,
    arguments: &WipeArguments,
    nodes: &mut Nodes,
    ledger: &Rc<RefCell<Ledger>>,
) -> io::Result<Measured> {
    let client = connect(env, &nodes.addrs()).await.map_err(io::Error::other)?;
    let appending = Appending::start(env, &client, ledger);
    while appending.acked() * u64::from(ENTRY_BYTES) < arguments.bytes {
        env.sleep(Duration::from_millis(20)).await;
    }
    let healthy = appending.rate(env, HEALTHY).await;
    let epoch = client.layout().await.map_err(io::Error::other)?.epoch;
    nodes.kill(WIPED)?;
    let (began, before) = (Instant::now(), appending.acked());
    // The others have to notice first that the node is not what it was.
    nodes.replace(env, WIPED, PATIENCE).await?;
    // The node is out, and in again.
    whole_after(env, &client, epoch.0 + 2).await?;
    let took = began.elapsed();
    let rebuilding = (appending.acked() - before) as f64 / took.as_secs_f64();
    let after = appending.rate(env, HEALTHY).await;
    appending.stop().await;
    Ok(Measured { healthy, rebuilding, after, took })
}

/// Waits until every copy is there, in a layout of this epoch or a later one.
async fn whole_after(env: &Env, client: &Client, epoch: u64) -> io::Result<()> {
    let began = Instant::now();
    loop {
        let layout = client.layout().await.map_err(io::Error::other)?;
        if layout.epoch.0 >= epoch && layout.is_whole() {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("copies are missing after {PATIENCE:?}")));
        }
        env.sleep(Duration::from_millis(50)).await;
    }
}

/// Reads everything while each node but the wiped one is dead in turn: what nobody else has the wiped one must have.
async fn audit_without_each(env: &Env, nodes: &mut Nodes, ledger: &Rc<RefCell<Ledger>>) -> io::Result<()> {
    let client = connect(env, &nodes.addrs()).await.map_err(io::Error::other)?;
    for dead in (1..=nodes.addrs().len()).filter(|&id| id != WIPED) {
        let epoch = client.layout().await.map_err(io::Error::other)?.epoch;
        nodes.kill(dead)?;
        audit(&client, ledger, OnDamage::Lost).await.map_err(io::Error::other)?;
        nodes.start(dead)?;
        whole_after(env, &client, epoch.0 + 1).await?;
    }
    Ok(())
}
