//! YCSB's core workloads on objects over a running cluster, beside Redis that syncs each write: what a program gets that has its records in
//! a map or in a store whose values stay in the log. (Wei 5.5.2, figure 5.11, has them on a map with remote views.)

mod redis;
mod sides;
mod workload;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::ClientOptions;

use super::started::cpu_nanos_of;
use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{Histogram, median, process_cpu_nanos, wall_nanos};
use crate::soak::results::Results;
use sides::{Kind, Program};
use workload::{FIELD_BYTES, FIELDS, Operations, RECORDS, WORKLOADS, Workload};

/// The bench's name on the command line.
pub const NAME: &str = "ycsb";
/// Programs, each with a client and a view of its own, and operations under way in each.
const PROGRAMS: usize = 2;
const WORKERS: usize = 32;
/// How long a side works before it is measured.
const WARM_UP: Duration = Duration::from_millis(200);

/// What a side did in one slice.
pub struct Slice {
    latencies: Histogram,
    seconds: f64,
    client_nanos: u64,
    server_nanos: u64,
}

impl Slice {
    fn ops_per_s(&self) -> f64 {
        self.latencies.total() as f64 / self.seconds
    }

    fn row(&self) -> String {
        let ops = self.latencies.total().max(1) as f64;
        let (client_us, server_us) =
            (self.client_nanos as f64 / 1e3 / ops, self.server_nanos as f64 / 1e3 / ops);
        format!(
            "{:.0},{:.1},{:.1},{:.2},{client_us:.2},{server_us:.2}",
            self.ops_per_s(),
            self.latencies.quantile_us(0.5),
            self.latencies.quantile_us(0.99),
            client_us + server_us
        )
    }
}

/// Measures as many rounds as asked. There is no target: what it costs to read and write records in each way is the figure.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let what = format!(
        "YCSB core workloads, {RECORDS} records of {FIELDS} fields of {FIELD_BYTES} B, zipfian 0.99, d: latest, scans of 1 to 100; an update writes the whole \
         record; f: read and write as one (redis: one after the other). `ithaca dev`, one process; {PROGRAMS} programs with a client and a view each in this \
         process, {WORKERS} operations under way in each; reads are linearizable. redis: appendfsync always, {} threads with a connection each, GET and SET of \
         one string a record; e is left out, its strings have no order. CPU: microseconds an operation",
        PROGRAMS * WORKERS
    );
    let columns = "round,flush_us,workload,side,ops_per_s,p50_us,p99_us,cpu_us,client_cpu_us,server_cpu_us";
    let mut results = Results::new(&what, columns);
    let dev = ithaca::Dev::start(&arguments.data)?;
    let options = ClientOptions { endpoints: vec![dev.endpoint()?], ..ClientOptions::default() };
    let mut peer = super::redis::Server::start(&arguments.data, true);
    match &peer {
        Ok(server) => redis::load(server)?,
        Err(error) => results.remark(&format!("redis is left out: {error}")),
    }
    let mut rates: Vec<(String, f64)> = Vec::new();
    ithaca_env::real::run(async |env| load(&env, &options).await)?;
    // Of each side: what one inserts the others do not have.
    let mut records = [RECORDS; 3];
    for round in 0..arguments.rounds {
        for workload in &WORKLOADS {
            let flush_us = flush_probe_us(probe)?;
            let mut row = |side: &str, slice: &Slice| {
                let row = format!("{round},{flush_us:.0},{},{side},{}", workload.name, slice.row());
                println!("{NAME} {row}");
                results.row(&row);
                rates.push((format!("{} {side}", workload.name), slice.ops_per_s()));
            };
            let span = Duration::from_secs_f64(arguments.seconds);
            let seed = 1 + round as u64;
            let [of_map, of_store, of_redis] = &mut records;
            for (kind, records) in [(Kind::Map, of_map), (Kind::Store, of_store)] {
                let operations = Rc::new(RefCell::new(Operations::new(seed, *records)));
                let slice = ithaca_env::real::run(async |env| {
                    measure(&env, &options, kind, workload, &operations, (dev.pid(), span)).await
                })?;
                row(kind.name(), &slice);
                *records = operations.borrow().records();
            }
            if let (Ok(server), false) = (&mut peer, workload.has_scans()) {
                let operations = Mutex::new(Operations::new(seed, *of_redis));
                redis::slice(server, workload, PROGRAMS * WORKERS, &operations, WARM_UP)?;
                let slice = redis::slice(server, workload, PROGRAMS * WORKERS, &operations, span)?;
                row("redis", &slice);
                let operations =
                    operations.into_inner().map_err(|_| io::Error::other("a worker panicked"))?;
                *of_redis = operations.records();
            }
        }
    }
    say_medians(&rates, &mut results);
    results.write(&arguments.results, NAME)?;
    Ok(true)
}

fn say_medians(rates: &[(String, f64)], results: &mut Results) {
    let mut names: Vec<&String> = rates.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of_name = rates.iter().filter(|(of, _)| of == name).map(|(_, rate)| *rate);
        let remark = format!("median {name}: {:.0} operations a second", median(of_name));
        println!("{NAME}: {remark}");
        results.remark(&remark);
    }
}

/// Fills every object.
async fn load(env: &Env, options: &ClientOptions) -> io::Result<()> {
    for kind in [Kind::Map, Kind::Store] {
        let program = Program::new(env, options, kind).await.map_err(io::Error::other)?;
        program.load().await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// One slice of one side, on objects that are up to date when it begins.
async fn measure(
    env: &Env,
    options: &ClientOptions,
    kind: Kind,
    workload: &'static Workload,
    operations: &Rc<RefCell<Operations>>,
    (server, span): (u32, Duration),
) -> io::Result<Slice> {
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        programs.push(Rc::new(Program::new(env, options, kind).await.map_err(io::Error::other)?));
    }
    work(env, &programs, workload, operations, WARM_UP).await?;
    let (client_before, server_before, begun) = (process_cpu_nanos(), cpu_nanos_of(server)?, wall_nanos());
    let latencies = work(env, &programs, workload, operations, span).await?;
    let seconds = (wall_nanos() - begun) as f64 / 1e9;
    let client_nanos = process_cpu_nanos() - client_before;
    let server_nanos = cpu_nanos_of(server)? - server_before;
    Ok(Slice { latencies, seconds, client_nanos, server_nanos })
}

/// All workers of all programs for `span`.
async fn work(
    env: &Env,
    programs: &[Rc<Program>],
    workload: &'static Workload,
    operations: &Rc<RefCell<Operations>>,
    span: Duration,
) -> io::Result<Histogram> {
    let end = env.now() + span;
    let latencies = Rc::new(RefCell::new(Histogram::default()));
    let mut tasks = Vec::new();
    for program in programs.iter().flat_map(|program| std::iter::repeat_n(program, WORKERS)) {
        let (program, operations) = (Rc::clone(program), Rc::clone(operations));
        let (latencies, of_task) = (Rc::clone(&latencies), env.clone());
        tasks.push(env.spawn(async move {
            while of_task.now() < end {
                let operation = operations.borrow_mut().next(workload);
                let started = wall_nanos();
                program.operate(operation).await?;
                latencies.borrow_mut().add(wall_nanos() - started, 1);
            }
            Ok::<(), ithaca_object::ObjectError>(())
        }));
    }
    for task in tasks {
        let ended = task.join().await.unwrap_or(Ok(()));
        ended.map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(latencies.take())
}
