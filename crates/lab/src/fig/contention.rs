//! What one random writer does to sequential ones, on a striped array and on a log: Gecko, figure 2, and the answer to it.
//!
//! Every writer keeps the same share of a write-back cache under way: 256 pages of 4 KiB. A sequential writer's pages leave
//! it merged into pieces of a chunk, a random writer's one by one.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainId, ChainOptions, Identity, Label, Run, RunKind, Table};
use ithaca_env::drive::{Drive, Durability};
use ithaca_env::sim::{Dice, Domain, DriveId, Speed};
use ithaca_env::{Env, Time};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::load::Bench;

const SEED: u64 = 1;
const DISKS: u64 = 4;
const DISK_BYTES: u64 = 8 << 30;
const CHUNK: u64 = 64 << 10;
const PAGE: u64 = 4 << 10;
/// Pages that each writer has under way.
const SHARE: u64 = 256;
const WRITERS: [u64; 4] = [1, 2, 4, 8];
/// What runs before the measurement, in virtual time.
const WARM: Duration = Duration::from_millis(250);

/// Where writes go.
#[derive(Clone)]
enum Volume {
    /// In place, striped over drives by chunks.
    Stripes(Rc<Vec<Drive>>),
    /// Appended to a chain on one drive, whatever their addresses.
    Log(Chain, Rc<Cell<u64>>),
}

impl Volume {
    /// Writes `data` at `at`, which lies in one chunk; done when it is on stable storage.
    async fn write(&self, at: u64, data: Bytes) {
        match self {
            Volume::Stripes(drives) => {
                let (chunk, within) = (at / CHUNK, at % CHUNK);
                let drive = &drives[(chunk % drives.len() as u64) as usize];
                let offset = chunk / drives.len() as u64 * CHUNK + within;
                let done = drive.write(offset, data, Durability::Durable).await;
                done.expect("a simulated drive that no fault meets writes");
            }
            Volume::Log(chain, next) => {
                let first_key = next.replace(next.get() + 1);
                let table = Table::of_payloads([&data]);
                let (kind, meta) = (RunKind::Data, Bytes::copy_from_slice(&at.to_le_bytes()));
                let run = Run { first_key, version: 1, kind, meta, table, data };
                let ticket = chain.append(Batch { runs: vec![run], ..Batch::default() });
                let ticket = ticket.expect("the log has room for the whole measurement");
                chain.wait(ticket).await.expect("a simulated drive that no fault meets writes");
            }
        }
    }
}

/// Bytes written between two times.
struct Count {
    from: Time,
    until: Time,
    bytes: Cell<u64>,
}

/// Starts a writer: `share` bytes under way in pieces of `len`, the `n`th at `place(n)`.
fn start_writer(
    env: &Env,
    volume: &Volume,
    count: &Rc<Count>,
    len: u64,
    place: impl Fn(u64) -> u64 + 'static,
) {
    let (next, place) = (Rc::new(Cell::new(0)), Rc::new(place));
    let data = Bytes::from(vec![7; len as usize]);
    for _ in 0..SHARE * PAGE / len {
        let (volume, count, data) = (volume.clone(), Rc::clone(count), data.clone());
        let (next, place, clock) = (Rc::clone(&next), Rc::clone(&place), env.clone());
        env.spawn(async move {
            while clock.now() < count.until {
                volume.write(place(next.replace(next.get() + 1)), data.clone()).await;
                if (count.from..count.until).contains(&clock.now()) {
                    count.bytes.set(count.bytes.get() + len);
                }
            }
        });
    }
}

/// What all writers get together, the random one included, and what it costs.
#[derive(Clone, Copy)]
struct Throughput {
    mb_per_s: f64,
    /// Movements of all arms.
    seeks_per_s: f64,
}

fn throughput(is_log: bool, sequential: u64, has_random: bool, span: Duration) -> Throughput {
    let bench = Bench::new(SEED, Speed::Disk);
    let env = bench.env();
    let (drives, volume) = if is_log { a_log(&bench) } else { stripes(&bench) };
    let from = env.now() + WARM;
    let count = Rc::new(Count { from, until: from + span, bytes: Cell::new(0) });
    let region = DISKS * DISK_BYTES / WRITERS[WRITERS.len() - 1];
    for writer in 0..sequential {
        start_writer(&env, &volume, &count, CHUNK, move |n| writer * region + n * CHUNK);
    }
    if has_random {
        let pages = DISKS * DISK_BYTES / PAGE;
        let place = move |n| Dice::new(SEED).below(Domain::User(0), 0, n, pages) * PAGE;
        start_writer(&env, &volume, &count, PAGE, place);
    }
    let seeks = || -> u64 { drives.iter().map(|&drive| bench.stats(drive).media.seeks).sum() };
    bench.run_until(count.from);
    let before = seeks();
    bench.run_until(count.until);
    Throughput {
        mb_per_s: count.bytes.get() as f64 / 1e6 / span.as_secs_f64(),
        seeks_per_s: (seeks() - before) as f64 / span.as_secs_f64(),
    }
}

fn stripes(bench: &Bench) -> (Vec<DriveId>, Volume) {
    let disks = (0..DISKS).map(|disk| bench.drive(&format!("disk-{disk}"), DISK_BYTES));
    let (ids, drives) = disks.unzip();
    (ids, Volume::Stripes(Rc::new(drives)))
}

/// A log on one disk, all its segments written over in advance, as those of a log that has gone round.
fn a_log(bench: &Bench) -> (Vec<DriveId>, Volume) {
    let (id, drive) = bench.drive("tail", 1 << 30);
    let identity = Identity { id: ChainId([7; 16]), label: Label::new("figure").expect("a short label") };
    let options = ChainOptions { segments_ready: 16, ..ChainOptions::default() };
    let env = bench.env();
    let created = bench.block_on(async move { Chain::create(&env, drive, identity, options).await });
    (vec![id], Volume::Log(created.expect("the drive is empty"), Rc::new(Cell::new(0))))
}

/// Measures for `span` of virtual time each.
pub fn measure(span: Duration) -> Figure {
    let of = |is_log, has_random| WRITERS.map(|writers| throughput(is_log, writers, has_random, span));
    let all = [of(false, false), of(false, true), of(true, true)];
    let rows = WRITERS.iter().enumerate();
    let rows = rows.map(|(at, writers)| {
        let values = all.iter().map(|of| format!("{:.1},{:.0}", of[at].mb_per_s, of[at].seeks_per_s));
        format!("{writers},{}", values.collect::<Vec<_>>().join(","))
    });
    let chart = |title: &str, y_label: &str, value: fn(Throughput) -> f64| Chart {
        title: title.to_string(),
        x_label: "sequential writers".to_string(),
        y_label: y_label.to_string(),
        x: WRITERS.iter().map(u64::to_string).collect(),
        scale: Scale::Linear,
        lines: ["RAID-0, no random", "RAID-0, one random", "log, one random"]
            .into_iter()
            .zip(all)
            .map(|(name, of)| Line { name: name.to_string(), y: of.map(value).to_vec() })
            .collect(),
    };
    let charts = vec![
        chart("throughput of all writers", "MB/s", |point| point.mb_per_s),
        chart("movements of all arms", "seeks/s", |point| point.seeks_per_s),
    ];
    let [alone, disturbed, log] = all.map(|of| of.map(|point| point.mb_per_s));
    Figure {
        name: "contention",
        claim: "one random writer takes a striped array from its sequential writers; a log on one disk goes on as before"
            .to_string(),
        expected: "Gecko, figure 2: 300 to 400 MB/s for one sequential writer on four disks, 120 to 300 MB/s for \
                   eight, below 25 MB/s for any number once one writer of random 4 KiB joins; a log writes at the \
                   speed of one disk, 120 MB/s less what its own footers take, whoever writes"
            .to_string(),
        setting: format!(
            "Four disks of 10,000 rpm striped by {} KiB, written in place, against a chain on one such disk; every \
             writer has {SHARE} pages of 4 KiB under way, sequential ones merged into chunks. {} ms each, seed {SEED}.",
            CHUNK >> 10,
            span.as_millis()
        ),
        columns: "sequential writers,RAID-0 alone MB/s,seeks/s,RAID-0 with one random MB/s,seeks/s,\
                  log with one random MB/s,seeks/s",
        rows: rows.collect(),
        charts,
        checks: checks(alone, disturbed, log),
    }
}

fn checks(alone: [f64; 4], disturbed: [f64; 4], log: [f64; 4]) -> Vec<(String, bool)> {
    let pairs = |least: f64, above: [f64; 4], below: [f64; 4]| {
        above.into_iter().zip(below).all(|(above, below)| above >= below * least)
    };
    let says = |what: &str, is_so| (what.to_string(), is_so);
    let a_tenth = alone[0] / 10.0;
    vec![
        says("one sequential writer alone gets at least 300 MB/s of the array", alone[0] >= 300.0),
        says("eight sequential writers alone get 120 to 300 MB/s", (120.0..=300.0).contains(&alone[3])),
        says(
            "with a random writer the array gives less than a tenth of that of one, however many write",
            disturbed.into_iter().all(|mb| mb < a_tenth),
        ),
        says(
            "the log gives at least three quarters of the disk's 120 MB/s, whoever writes",
            log.into_iter().all(|mb| (90.0..=125.0).contains(&mb)),
        ),
        says("the log gives three times what the array gives", pairs(3.0, log, disturbed)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_random_writer_spoils_an_array_and_not_a_log() {
        let figure = measure(Duration::from_millis(500));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
