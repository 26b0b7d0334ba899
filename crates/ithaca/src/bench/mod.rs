//! `ithaca bench`: workloads over the client library, all clients on one thread of this process.
//!
//! Numbers are what a user would see: operations that completed, their latency from call to answer, and processor time of
//! this process and of every node together. The warm-up counts for nothing. The durability that the nodes state is printed
//! beside every figure.

mod append;
mod histogram;
mod meter;
mod objects;
mod read;
mod token;

use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use ithaca_env::Env;
use ithaca_log::client::{Client, ClientOptions};

use crate::cli::{BenchArgs, Carrier, Global};
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;
use meter::{Figures, Meter};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Positions from the sequencer; one message asks for as many as are in flight. They are trimmed at the end.
    Token,
    /// Durable appends.
    Append,
    /// Durable appends, each to one of its client's streams in turn.
    Stream,
    /// Random reads of the last entries, or with --cold of the whole log.
    Read,
    /// Half of what is in flight appends, half reads the last entries, or with --cold the whole log.
    Mixed,
    /// The whole log in order, again and again.
    Replay,
    /// A key of a map gets a value; the one that it had is the result.
    Map,
    /// The value of a key of a map, as of now: the sequencer is asked.
    Get,
    /// The same of as many keys as are in flight, in one call.
    MultiGet,
    /// The value of a key in a copy of a map's state as of a position: nobody is asked.
    Snapshot,
    /// A transaction: two keys of a map are read, a third gets a value.
    Tx,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Append => "append",
            Self::Stream => "stream",
            Self::Read => "read",
            Self::Mixed => "mixed",
            Self::Replay => "replay",
            Self::Map => "map",
            Self::Get => "get",
            Self::MultiGet => "multi-get",
            Self::Snapshot => "snapshot",
            Self::Tx => "tx",
        }
    }

    /// Operations in flight for each client where the command line does not say.
    fn default_window(self) -> u32 {
        match self {
            Self::Token | Self::Map | Self::Get | Self::MultiGet | Self::Tx => 64,
            Self::Snapshot => 1,
            Self::Append | Self::Stream | Self::Read | Self::Mixed | Self::Replay => 16,
        }
    }

    /// What is done with objects.
    fn deed(self) -> Option<objects::Deed> {
        match self {
            Self::Map => Some(objects::Deed::Put),
            Self::Get => Some(objects::Deed::Get),
            Self::MultiGet => Some(objects::Deed::MultiGet),
            Self::Snapshot => Some(objects::Deed::Snapshot),
            Self::Tx => Some(objects::Deed::Transaction),
            _ => None,
        }
    }

    /// Whether the command line says what each client has in flight, and not what all have together.
    fn is_per_client(self) -> bool {
        self.deed().is_some()
    }
}

/// Longest warm-up.
const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// Time for the workers to end what they have in flight.
const WIND_DOWN_MAX: Duration = Duration::from_secs(10);

/// How many clients there are and how much each has in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    size: usize,
    /// Operations in flight of each client: a total that does not divide evenly gives the first ones one more.
    windows: Vec<usize>,
}

impl Plan {
    fn new(arguments: &BenchArgs) -> Self {
        let total = match arguments.inflight {
            Some(window) if arguments.workload.is_per_client() => window.saturating_mul(arguments.clients),
            Some(total) => total,
            None => arguments.clients * arguments.workload.default_window(),
        };
        // A client with nothing in flight would be no client.
        let clients = arguments.clients.min(total);
        let window = |nth| (total / clients + u32::from(nth < total % clients)) as usize;
        Self { size: arguments.size, windows: (0..clients).map(window).collect() }
    }

    fn in_flight(&self) -> usize {
        self.windows.iter().sum()
    }
}

/// Runs a workload and prints its figures.
pub fn run(global: &Global, arguments: &BenchArgs, out: &mut Output) -> Result<(), Failure> {
    let name = arguments.workload.name();
    let plan = Plan::new(arguments);
    let figures = with_client(global, &format!("bench {name}"), async |env, control| {
        let mut clients = Vec::new();
        for &window in &plan.windows {
            let in_flight =
                (window * plan.size).saturating_mul(2).max(ClientOptions::default().max_in_flight_bytes);
            let options = ClientOptions {
                max_in_flight_bytes: in_flight,
                forward_appends: arguments.carrier == Carrier::Sequencer,
                relay_writes: arguments.carrier != Carrier::Client,
                endpoints: control.endpoints(),
                timeout: global.timeout,
                ..ClientOptions::default()
            };
            clients.push(Client::connect(&env, options).await?);
        }
        measure(&env, &control, &clients, arguments, &plan).await
    })?;
    out.either(
        || human(name, &plan, arguments.seconds, &figures),
        || json(name, &plan, arguments.seconds, &figures),
    )?;
    out.flush()
}

async fn measure(
    env: &Env,
    control: &Client,
    clients: &[Client],
    arguments: &BenchArgs,
    plan: &Plan,
) -> Result<Figures, Failure> {
    let span = match arguments.workload {
        Workload::Read | Workload::Mixed => read::prepare(control, plan.size, arguments.cold).await?,
        Workload::Replay => read::prepare(control, plan.size, true).await?,
        _ => 0..0,
    };
    let random = Rc::new(read::Span::new(span.clone(), arguments.cold));
    let meter = Rc::new(Meter::new(env));
    // Those of objects begin when all are prepared: what reads from memory would hold the others up.
    let (mut workers, mut prepared) = (Vec::new(), Vec::new());
    for (client, &window) in clients.iter().zip(&plan.windows) {
        let (meter, client) = (&meter, client.clone());
        match arguments.workload {
            Workload::Token => workers.push(token::start(meter, client, window)),
            Workload::Append => {
                workers.push(append::start(meter, client, window, plan.size, Vec::new(), drop));
            }
            Workload::Stream => {
                let streams = append::streams(&client, arguments.streams);
                workers.push(append::start(meter, client, window, plan.size, streams, drop));
            }
            Workload::Read => workers.extend(read::start(meter, &client, window, &random, arguments.cold)),
            Workload::Mixed => {
                let (appender, half) = (client.clone(), window.div_ceil(2));
                let done = random.appender();
                workers.push(append::start(meter, appender, half, plan.size, Vec::new(), done));
                workers.extend(read::start(meter, &client, window / 2, &random, arguments.cold));
            }
            Workload::Map | Workload::Get | Workload::MultiGet | Workload::Snapshot | Workload::Tx => {
                let deed = arguments.workload.deed().expect("it is done with objects");
                let (size, is_shared) = (plan.size, arguments.shared);
                prepared.extend(objects::prepare(meter, client, deed, window, size, is_shared).await?);
            }
            Workload::Replay => {
                workers.push(read::replay(meter, client, span.clone(), workers.len(), clients.len()))
            }
        }
    }
    workers.extend(prepared.into_iter().map(objects::Worker::start));
    let seconds = Duration::from_secs(arguments.seconds);
    let figures = meter.run(control, (seconds / 5).min(WARM_UP_MAX), seconds).await;
    meter.stop();
    for worker in workers {
        // One that hangs is told by its client's own deadline; it must not keep the figures back.
        let _ = env.timeout(WIND_DOWN_MAX, worker.join()).await;
    }
    if arguments.workload == Workload::Token {
        token::give_back(&meter, control).await?;
    }
    figures
}

fn human(name: &str, plan: &Plan, seconds: u64, figures: &Figures) -> String {
    format!(
        "{name}: {:.0} ops/s, p50 {:.1} us, p99 {:.1} us, {:.2} us of CPU an op, durability {} \
         ({} B, {} clients, {} in flight, {seconds} s)",
        figures.ops_per_s,
        figures.p50_us,
        figures.p99_us,
        figures.cpu_us_per_op,
        figures.durability,
        plan.size,
        plan.windows.len(),
        plan.in_flight(),
    )
}

fn json(name: &str, plan: &Plan, seconds: u64, figures: &Figures) -> Object {
    Object::new()
        .string("name", name)
        .decimal("ops_per_s", figures.ops_per_s, 1)
        .decimal("p50_us", figures.p50_us, 2)
        .decimal("p99_us", figures.p99_us, 2)
        .decimal("cpu_us_per_op", figures.cpu_us_per_op, 4)
        .string("durability", figures.durability)
        .decimal("client_cpu_us_per_op", figures.client_cpu_us_per_op, 4)
        .number("ops", figures.ops)
        .number("size_bytes", plan.size as u64)
        .number("clients", plan.windows.len() as u64)
        .number("inflight", plan.in_flight() as u64)
        .number("seconds", seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(clients: u32, inflight: Option<u32>) -> Vec<usize> {
        let workload = Workload::Append;
        let carrier = Carrier::Sequencer;
        Plan::new(&BenchArgs {
            workload,
            seconds: 1,
            size: 1,
            clients,
            inflight,
            cold: false,
            streams: 16,
            shared: false,
            carrier,
        })
        .windows
    }

    #[test]
    fn what_is_in_flight_is_the_total_over_all_clients() {
        assert_eq!(windows(2, None), [16, 16]);
        assert_eq!(windows(3, Some(8)), [3, 3, 2]);
        assert_eq!(windows(16, Some(1)), [1]);
    }
}
