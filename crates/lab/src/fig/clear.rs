//! What it takes to clear a map that is divided into many, and to ask how large it is then: Wei, figure 5.17.

use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::Client;
use ithaca_object::composed::HashedMap;
use ithaca_object::{Runtime, RuntimeOptions};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::testbed::{Setup, Testbed};

const UNITS: usize = 4;
/// What a clear and a size after it may take at the most, whatever the number of buckets: the text's with remote views "remains relatively
/// low, even with 10K buckets", and shoots up to almost 30 s where views are played back.
const ASKED: Duration = Duration::from_secs(1);

/// Milliseconds.
struct Point {
    buckets: u64,
    /// A clear by a program that knows nothing of the map yet.
    clear: f64,
    /// The size after it, by the same program.
    size: f64,
    /// The size before it, by another program that has to read every bucket.
    full_size: f64,
}

fn open(env: &Env, client: &Client, buckets: u64) -> HashedMap<u64, u64> {
    let runtime = Runtime::new(env, client.clone(), RuntimeOptions::default());
    HashedMap::open_with(&runtime, "map", buckets).expect("nothing else is open")
}

fn point(buckets: u64) -> Point {
    let testbed = Testbed::new(&Setup::steady(UNITS, 3, 1));
    let in_turn = |machine: usize| {
        let (process, client) = testbed.client(machine);
        (process, testbed.sim.env(process), client)
    };
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    let (process, env, client) = in_turn(0);
    testbed.sim.block_on(process, async move {
        let map = open(&env, &client, buckets);
        for key in 0..buckets {
            map.fast_put(key, key).await.expect("a cluster without faults appends");
        }
    });
    let (process, env, client) = in_turn(1);
    let full_size = testbed.sim.block_on(process, async move {
        let (map, began) = (open(&env, &client, buckets), env.now());
        let len = map.len().await.expect("a cluster without faults is read");
        assert_eq!(len as u64, buckets, "every key is there");
        ms(env.now().since(began))
    });
    let (process, env, client) = in_turn(2);
    let (clear, size) = testbed.sim.block_on(process, async move {
        let (map, began) = (open(&env, &client, buckets), env.now());
        map.clear().await.expect("a cluster without faults appends");
        let cleared = env.now();
        assert_eq!(map.len().await.expect("a cluster without faults is read"), 0, "nothing is left");
        (ms(cleared.since(began)), ms(env.now().since(cleared)))
    });
    Point { buckets, clear, size, full_size }
}

/// Measures maps of so many buckets.
pub fn measure(buckets: &[u64]) -> Figure {
    let points: Vec<Point> = buckets.iter().map(|count| point(*count)).collect();
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(value).collect(),
    };
    let row = |it: &Point| {
        let Point { buckets, clear, size, full_size } = it;
        format!("{buckets},{clear:.2},{size:.2},{full_size:.2}")
    };
    Figure {
        name: "clear",
        claim: "clearing a hashed map is one record, however many buckets it has".to_string(),
        expected: "Wei, figure 5.17: a clear and a size \"requires a transactional write followed by a transactional read to all buckets\"; with remote views \
                   \"the latency remains relatively low, even with 10K buckets, but can shoot up to almost 30s\" where every bucket is played back"
            .to_string(),
        setting: format!(
            "The machines of `scaling` with drives that are no limit, {UNITS} units. A hashed map with one key to a bucket on average; a program that knows nothing of it yet clears it and asks for \
             its size; before that, another one asks for its size and reads every bucket to say. Local views, and no processor's work for what is applied. The text's 10,000 buckets are 4000 here."
        ),
        columns: "buckets,clear ms,size after it ms,size before it ms",
        rows: points.iter().map(row).collect(),
        charts: vec![Chart {
            title: "a clear and a size".to_string(),
            x_label: "buckets".to_string(),
            y_label: "milliseconds".to_string(),
            x: points.iter().map(|it| it.buckets.to_string()).collect(),
            scale: Scale::Log,
            lines: vec![
                line("clear", |it| it.clear),
                line("size after it", |it| it.size),
                line("size before it", |it| it.full_size),
            ],
        }],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let Some(first) = points.first() else { return Vec::new() };
    let check = |it: &Point| {
        let both = it.clear + it.size;
        let asked = ASKED.as_millis() as f64;
        vec![
            (
                format!(
                    "{} buckets: a clear takes {:.2} ms, {:.2} ms with {}",
                    it.buckets, it.clear, first.clear, first.buckets
                ),
                it.clear <= 2.0 * first.clear,
            ),
            (
                format!(
                    "{} buckets: with the size after it {both:.2} ms, at most {asked:.0} ms asked",
                    it.buckets
                ),
                both <= asked,
            ),
        ]
    };
    points.iter().flat_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_takes_as_long_whatever_there_is() {
        let figure = measure(&[10, 300]);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
