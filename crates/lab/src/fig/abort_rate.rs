//! How many transactions abort, by what a map is divided into: Wei, figure 5.16.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::sim::{Dice, Domain};
use ithaca_object::collections::{Map, MapState};
use ithaca_object::composed::HashedMap;
use ithaca_object::key::Key;
use ithaca_object::{ObjectError, Runtime, RuntimeOptions, Tx, TxOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Setup, Testbed};

const SEED: u64 = 1;
const UNITS: usize = 4;
/// Keys that are drawn.
const KEYS: u64 = 100_000;
/// Before each measurement.
const WARM: Duration = Duration::from_millis(30);
/// What at most may abort of transactions on what is divided into 1000, with 16 writers: the text's rate.
const ASKED: f64 = 0.02;

/// What transactions work on, and how their conflicts are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Maps among which keys are spread; whoever reads one conflicts with every change of it, as in the text.
    Buckets(u64),
    /// One map, conflicts by key.
    Keys,
    /// A hashed map of so many buckets, conflicts by key.
    Hashed(u64),
}

impl Shape {
    fn name(self) -> String {
        match self {
            Self::Buckets(1) => "1 object".to_string(),
            Self::Buckets(count) => format!("{count} objects"),
            Self::Keys => "1 map by key".to_string(),
            Self::Hashed(count) => format!("hashed {count}"),
        }
    }
}

/// All of them.
pub const SHAPES: [Shape; 6] = [
    Shape::Buckets(1),
    Shape::Buckets(10),
    Shape::Buckets(100),
    Shape::Buckets(1000),
    Shape::Keys,
    Shape::Hashed(1000),
];

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    Uniform,
    /// A few of them most of the time: the chance of a key is as one over its number.
    Zipf,
}

impl Draw {
    /// One of [`KEYS`], by who draws for which time and what.
    fn key(self, (writer, turn, what): (u64, u64, u64)) -> u64 {
        let drawn = Dice::new(SEED).below(Domain::User(writer as u32), turn, what, 1 << 53);
        let part = drawn as f64 / (1u64 << 53) as f64;
        match self {
            Self::Uniform => (part * KEYS as f64) as u64,
            Self::Zipf => (KEYS as f64).powf(part) as u64,
        }
    }
}

/// The map of a program.
enum Keyed {
    Buckets(Vec<Map<u64, u64>>),
    Hashed(HashedMap<u64, u64>),
    One(Map<u64, u64>),
}

impl Keyed {
    fn open(runtime: &Runtime, shape: Shape) -> Result<Self, ObjectError> {
        Ok(match shape {
            Shape::Buckets(count) => {
                let maps = (0..count).map(|number| Map::open(runtime, &format!("bucket {number}")));
                Self::Buckets(maps.collect::<Result<_, _>>()?)
            }
            Shape::Keys => Self::One(Map::open(runtime, "map")?),
            Shape::Hashed(count) => Self::Hashed(HashedMap::open_with(runtime, "map", count)?),
        })
    }

    /// Two reads and a write: the transaction of the text.
    async fn work(&self, tx: &Tx, [one, other, written]: [u64; 3]) -> Result<(), ObjectError> {
        match self {
            Self::Buckets(maps) => {
                let map = |key: u64| &maps[(key % maps.len() as u64) as usize];
                for key in [one, other] {
                    let value = |map: &MapState<u64, u64>| map.entries().get(&key).map(|placed| placed.value);
                    map(key).handle().within(tx).read(|| vec![Key::all()], value).await?;
                }
                map(written).within(tx).fast_put(written, one).await?;
            }
            Self::One(map) => {
                let map = map.within(tx);
                map.get(&one).await?;
                map.get(&other).await?;
                map.fast_put(written, one).await?;
            }
            Self::Hashed(map) => {
                let map = map.within(tx);
                map.get(&one).await?;
                map.get(&other).await?;
                map.fast_put(written, one).await?;
            }
        }
        Ok(())
    }
}

/// Transactions that ended, by how.
#[derive(Default)]
pub struct Ended {
    pub committed: Cell<u64>,
    pub aborted: Cell<u64>,
}

impl Ended {
    /// The part of all that aborted.
    pub fn abort_rate(&self) -> f64 {
        let (committed, aborted) = (self.committed.get() as f64, self.aborted.get() as f64);
        aborted / (committed + aborted).max(1.0)
    }

    /// Counts one by its result. Panics if it is neither committed nor aborted.
    pub fn count<T>(&self, result: Result<T, ObjectError>) {
        let count = match result {
            Ok(_) => &self.committed,
            Err(ObjectError::Aborted(_)) => &self.aborted,
            Err(error) => panic!("a cluster without faults commits or says why not: {error}"),
        };
        count.set(count.get() + 1);
    }

    /// Forgets what was counted.
    pub fn reset(&self) {
        self.committed.set(0);
        self.aborted.set(0);
    }
}

/// What part of the transactions of so many writers aborts.
fn rate(writers: usize, shape: Shape, draw: Draw, span: Duration) -> f64 {
    let testbed = Testbed::new(&Setup::steady(UNITS, writers, 1));
    let ended = Rc::new(Ended::default());
    let errors: Rc<RefCell<Option<ObjectError>>> = Rc::default();
    let mut loads = Vec::new();
    for writer in 0..writers {
        let (process, client) = testbed.client(writer);
        let runtime = Runtime::new(&testbed.sim.env(process), client, RuntimeOptions::default());
        let keyed = Rc::new(Keyed::open(&runtime, shape).expect("nothing else is open"));
        if let (0, Keyed::Hashed(map)) = (writer, &*keyed) {
            // It gets its shape with its first change, which is nobody's conflict here.
            let map = map.clone();
            testbed.sim.block_on(process, async move { map.fast_put(0, 0).await }).expect("a first change");
        }
        let (ended, errors) = (Rc::clone(&ended), Rc::clone(&errors));
        loads.push(testbed.start_at(writer, 1, move |_, turn| {
            let keys = [0, 1, 2].map(|what| draw.key((writer as u64, turn, what)));
            let (runtime, keyed) = (runtime.clone(), Rc::clone(&keyed));
            let (ended, errors) = (Rc::clone(&ended), Rc::clone(&errors));
            async move {
                let options = TxOptions { retries: 0, ..TxOptions::default() };
                let done = runtime.transact(&options, async |tx: &Tx| keyed.work(tx, keys).await).await;
                if let Err(error) = &done
                    && !matches!(error, ObjectError::Aborted(_))
                {
                    errors.borrow_mut().get_or_insert(error.clone());
                    return;
                }
                ended.count(done);
            }
        }));
    }
    testbed.sim.run_for(WARM);
    ended.reset();
    testbed.sim.run_for(span);
    let rate = ended.abort_rate();
    assert!(ended.committed.get() > 0, "some commit");
    assert_eq!(*errors.borrow(), None, "a cluster without faults commits or says why not");
    loads.iter().for_each(|load| testbed.stop(load));
    rate
}

/// Measures so many writers for `span` of virtual time each.
pub fn measure(writers: &[usize], shapes: &[Shape], span: Duration) -> Figure {
    let draws = [Draw::Uniform, Draw::Zipf];
    let of_draw = |draw| -> Vec<Vec<f64>> {
        let of_shape = |shape: &Shape| writers.iter().map(|it| rate(*it, *shape, draw, span)).collect();
        shapes.iter().map(of_shape).collect()
    };
    let rates = draws.map(of_draw);
    let chart = |title: &str, rates: &[Vec<f64>]| Chart {
        title: title.to_string(),
        x_label: "writers".to_string(),
        y_label: "% that abort".to_string(),
        x: writers.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines: shapes
            .iter()
            .zip(rates)
            .map(|(shape, rates)| Line {
                name: shape.name(),
                y: rates.iter().map(|rate| rate * 100.0).collect(),
            })
            .collect(),
    };
    let mut rows = Vec::new();
    for (draw, rates) in draws.iter().zip(&rates) {
        for (shape, rates) in shapes.iter().zip(rates) {
            let each = writers.iter().zip(rates);
            rows.extend(each.map(|(writers, rate)| format!("{draw:?},{},{writers},{rate:.4}", shape.name())));
        }
    }
    Figure {
        name: "abort-rate",
        claim: "transactions over different keys of a map do not conflict: conflicts are found by key, and in a hashed map by bucket and key".to_string(),
        expected: "Wei, figure 5.16: \"even with only two concurrent writers, transactions on the SMR map must abort half the time. With the CSMR map with \
                   1000 buckets, even with 16 concurrent writers, the abort rate remains at 2%\""
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units; each writer is a program on a machine of its own with one transaction under way: two reads and a write of \
             keys drawn of {KEYS}, evenly or as one over the key's number. Objects: as many maps as said, and whoever reads one conflicts with every \
             change of it, as in the text. By key: as our maps do it. One that aborts is not run again; the next one begins at once. {} ms each, seed {SEED}.",
            span.as_millis()
        ),
        columns: "keys,map,writers,abort rate",
        rows,
        charts: vec![chart("keys drawn evenly", &rates[0]), chart("a few keys most of the time", &rates[1])],
        checks: checks(writers, shapes, &rates[0]),
    }
}

fn checks(writers: &[usize], shapes: &[Shape], rates: &[Vec<f64>]) -> Vec<(String, bool)> {
    let at = |shape| shapes.iter().position(|it| *it == shape).map(|nth| &rates[nth]);
    let mut checks = Vec::new();
    let Some(most) = writers.last() else { return checks };
    let last = |shape| at(shape).and_then(|rates| rates.last().copied());
    for shape in [Shape::Hashed(1000), Shape::Keys, Shape::Buckets(1000)] {
        if let Some(rate) = last(shape) {
            let (name, percent, asked) = (shape.name(), rate * 100.0, ASKED * 100.0);
            let text = format!("{most} writers on {name}: {percent:.2} % abort, asked {asked:.0} %");
            checks.push((text, rate <= ASKED));
        }
    }
    if let (Some(one), Some(many)) = (last(Shape::Buckets(1)), last(Shape::Buckets(1000))) {
        let text = format!(
            "{most} writers: dividing one object into 1000 takes {:.0} % of aborts to {:.2} %",
            one * 100.0,
            many * 100.0
        );
        checks.push((text, one >= 0.5 && many < one / 10.0));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_conflicts_less_and_by_key_hardly_at_all() {
        let shapes = [Shape::Buckets(1), Shape::Buckets(1000), Shape::Keys, Shape::Hashed(1000)];
        let figure = measure(&[8], &shapes, Duration::from_millis(100));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
