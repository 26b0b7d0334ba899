//! A `HashMap` of the standard library in a loop: what a read costs that goes through nothing.

use std::collections::HashMap;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use ithaca_env::sim::Random;
use ithaca_object::collections::Blob;

use super::plan::Bench;
use super::side::{MakeSide, Side, WARM_UP};
use crate::bare::{MAP_KEYS, ServerProcess};
use crate::measure::{Figure, Histogram, process_cpu_nanos};

/// Reads between two looks at the clock, as many as `ithaca bench snapshot` makes.
const READS: u64 = 256;

/// The same keys and values as those of a map of the system, for as many programs as there.
pub struct Memory {
    maps: Vec<HashMap<u64, Blob>>,
    random: Random,
}

impl Memory {
    /// All keys have values.
    pub fn new(bench: &Bench) -> Self {
        let value = || Blob(vec![7; bench.size].into());
        let map = || (0..MAP_KEYS).map(|key| (key, value())).collect();
        Self { maps: (0..bench.clients).map(|_| map()).collect(), random: Random::new(7) }
    }

    fn work(&mut self, span: Duration) -> (Histogram, f64) {
        let (mut latencies, begin) = (Histogram::default(), Instant::now());
        while begin.elapsed() < span {
            for map in &self.maps {
                let started = Instant::now();
                for _ in 0..READS {
                    black_box(map.get(&self.random.below(MAP_KEYS)).cloned());
                }
                latencies.add(started.elapsed().as_nanos() as u64, READS);
            }
        }
        (latencies, begin.elapsed().as_secs_f64())
    }
}

impl Side for Memory {
    fn name(&self) -> &'static str {
        MakeSide::Memory.name()
    }

    fn slice(&mut self, _: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        self.work(WARM_UP);
        let before = process_cpu_nanos();
        let (latencies, seconds) = self.work(span);
        let nanos = process_cpu_nanos() - before;
        let reads = latencies.total().max(1) as f64;
        Ok(Figure {
            ops_per_s: reads / seconds,
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            client_cpu_us: nanos as f64 / 1e3 / reads,
            server_cpu_us: 0.0,
            flush_us: 0.0,
        })
    }
}
