//! Replicated commands of 512 bytes, as in the Corfu paper's state machines: each in a record of its own, or in records that they share,
//! by the number of programs that play them all (Wei 3.5.4, figure 3.20).

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_object::collections::{Blob, Map, Put};
use ithaca_object::machine::{Machine, Replica};
use ithaca_object::{ObjectError, Runtime, RuntimeOptions};
use serde::{Deserialize, Serialize};

use super::started::cpu_nanos_of;
use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{Histogram, process_cpu_nanos, wall_nanos};
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "commands";
const COMMAND_BYTES: usize = 512;
/// Commands under way in each program.
const WINDOW: u64 = 64;
const PROGRAMS: [usize; 3] = [1, 2, 4];

/// How a command becomes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A put to a map, in a record of its own.
    Call,
    /// The same, in a record with others.
    Submit,
    /// A command of a machine without undo, in a record with others.
    Machine,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Call => "map_call",
            Self::Submit => "map_submit",
            Self::Machine => "machine",
        }
    }
}

/// Adds up what it is given.
#[derive(Default, Serialize, Deserialize)]
struct Sum {
    bytes: u64,
}

impl Machine for Sum {
    const TYPE: &'static str = "sum";
    type Command = Blob;
    type Response = u64;

    fn apply(&mut self, command: Blob) -> u64 {
        self.bytes += command.0.len() as u64;
        self.bytes
    }
}

struct Program {
    map: Map<u64, Blob>,
    machine: Replica<Sum>,
    command: Blob,
}

impl Program {
    async fn new(env: &Env, options: &ClientOptions, name: &str) -> Result<Self, ObjectError> {
        let client = Client::connect(env, options.clone()).await?;
        let runtime = Runtime::new(env, client, RuntimeOptions::default());
        let map = Map::open(&runtime, &format!("map of {name}"))?;
        let machine = Replica::open(&runtime, &format!("machine of {name}"))?;
        Ok(Self { map, machine, command: Blob(Bytes::from(vec![7; COMMAND_BYTES])) })
    }

    async fn command(&self, how: How, key: u64) -> Result<(), ObjectError> {
        let value = self.command.clone();
        match how {
            How::Call => self.map.handle().call(Put { key, value }).await.map(|_| ()),
            How::Submit => self.map.handle().submit(Put { key, value }).await.map(|_| ()),
            How::Machine => self.machine.submit(value).await.map(|_| ()),
        }
    }
}

/// Measures as many rounds as asked.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let what = format!(
        "commands of {COMMAND_BYTES} B, {WINDOW} under way in each program; every program plays the commands of all, so each has as many applied as all submit; \
         map_call: a record each; map_submit, machine: records that commands share. `ithaca dev`, one process; programs in this one. CPU: microseconds a command, \
         of all programs and the server"
    );
    let columns = "round,flush_us,how,programs,commands_per_s,p50_us,p99_us,client_cpu_us,server_cpu_us";
    let mut results = Results::new(&what, columns);
    let dev = ithaca::Dev::start(&arguments.data)?;
    let options = ClientOptions { endpoints: vec![dev.endpoint()?], ..ClientOptions::default() };
    let span = Duration::from_secs_f64(arguments.seconds);
    for round in 0..arguments.rounds {
        for programs in PROGRAMS {
            let flush_us = flush_probe_us(probe)?;
            for how in [How::Call, How::Submit, How::Machine] {
                let (client_before, server_before) = (process_cpu_nanos(), cpu_nanos_of(dev.pid())?);
                let name = format!("{round} {programs} {}", how.name());
                let latencies = ithaca_env::real::run(async |env| {
                    measure(&env, &options, &name, how, programs, span).await
                })?;
                let count = latencies.total().max(1) as f64;
                let client_us = (process_cpu_nanos() - client_before) as f64 / 1e3 / count;
                let server_us = (cpu_nanos_of(dev.pid())? - server_before) as f64 / 1e3 / count;
                let row = format!(
                    "{round},{flush_us:.0},{},{programs},{:.0},{:.1},{:.1},{client_us:.2},{server_us:.2}",
                    how.name(),
                    latencies.total() as f64 / span.as_secs_f64(),
                    latencies.quantile_us(0.5),
                    latencies.quantile_us(0.99),
                );
                println!("{NAME} {row}");
                results.row(&row);
            }
        }
    }
    results.write(&arguments.results, NAME)?;
    Ok(true)
}

/// What so many programs come to on an object of their own.
async fn measure(
    env: &Env,
    options: &ClientOptions,
    name: &str,
    how: How,
    programs: usize,
    span: Duration,
) -> io::Result<Histogram> {
    let latencies = Rc::new(RefCell::new(Histogram::default()));
    let mut tasks = Vec::new();
    let end = env.now() + span;
    for _ in 0..programs {
        let program = Rc::new(Program::new(env, options, name).await.map_err(io::Error::other)?);
        for key in 0..WINDOW {
            let (program, latencies, of_task) = (Rc::clone(&program), Rc::clone(&latencies), env.clone());
            tasks.push(env.spawn(async move {
                while of_task.now() < end {
                    let started = wall_nanos();
                    program.command(how, key).await?;
                    latencies.borrow_mut().add(wall_nanos() - started, 1);
                }
                Ok::<(), ObjectError>(())
            }));
        }
    }
    for task in tasks {
        task.join().await.unwrap_or(Ok(())).map_err(io::Error::other)?;
    }
    Ok(latencies.take())
}
