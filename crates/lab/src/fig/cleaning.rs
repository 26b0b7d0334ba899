//! Writes while the log is cleaned: Gecko, figure 4. A chain of two disks against the same log over two striped ones.
//!
//! Writers of random blocks run all the time; midway the oldest segments are cleaned, without rests, and then all goes on as
//! before. The trim pattern says how much of those segments is garbage.

use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::sim::{Dice, Domain, Speed};

use super::Figure;
use super::blocks::{Layout, Shape, World, array_of_disks};
use super::chart::{Chart, Line, Scale};
use super::load::{Bench, Load, Request};
use super::mix::{Mix, Rates, SLOT, mean};
use crate::blocks::BLOCK;

const SEED: u64 = 1;
/// Random writers: the smallest power of two with which chain and array, not cleaned, both come to the speed of their disks.
pub const WRITERS: u64 = 64;
/// Blocks that Gecko's cleaner copies at the same time (`GC_CONCURRENT_REQ` of its kernel module).
const GECKO_COPIES: u64 = 64;
const TRIMS: [u64; 2] = [50, 0];
/// What runs before the measurement.
const WARM: Duration = Duration::from_millis(300);

/// How a cleaner goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As Gecko's: block by block, each read by itself unless it is the neighbour of the last one.
    Blocks,
    /// As ours unless told otherwise: 1 MiB at a time, garbage read along with what lies around it.
    Large,
}

impl Style {
    fn name(self) -> &'static str {
        match self {
            Self::Blocks => "by blocks",
            Self::Large => "by 1 MiB",
        }
    }

    /// Sets a chain up for writers of blocks, and for this cleaner.
    pub fn tune(self, options: &mut ChainOptions) {
        (options.flights, options.group_max_bytes) = (8, 64 << 10);
        if self == Self::Blocks {
            options.read_gap_bytes = 0;
            options.clean_batch_bytes = GECKO_COPIES * BLOCK;
        }
    }
}

/// The load of this figure.
pub const WRITES: Mix = Mix { clients: WRITERS, reads_percent: 0, hits_percent: 0, write_blocks: 1 };

/// Trims so many in a hundred of the blocks that the oldest `bytes` of the log hold, at random.
fn trim(world: &World, bytes: u64, percent: u64) {
    for block in 0..bytes / BLOCK {
        if Dice::new(SEED).below(Domain::User(9), 0, block, 100) < percent {
            world.blocks.trim(block);
        }
    }
}

/// How much of the figure to measure.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Segments of each disk.
    pub disk_segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments that are cleaned.
    pub segments: usize,
    /// Before and after the cleaning.
    pub around: Duration,
    /// The cleaning is looked at for so long at the most.
    pub most: Duration,
    /// Segments that are cleaned before the load begins, so that the body has free ones.
    pub ahead: usize,
}

#[cfg(test)]
impl Extent {
    /// A smaller one for tests: one segment is cleaned, for up to `most_ms`.
    pub fn small(disk_segments: u64, segment_bytes: u64, ahead: usize, around_ms: u64, most_ms: u64) -> Self {
        let (around, most) = (Duration::from_millis(around_ms), Duration::from_millis(most_ms));
        Self { disk_segments, segment_bytes, segments: 1, around, most, ahead }
    }
}

/// A log that was cleaned under load.
pub struct Run {
    /// By slot, from the end of the warm-up.
    pub rates: Rates,
    /// The slots in which it was cleaned.
    pub cleaned: std::ops::Range<usize>,
    /// Movements of all arms while it was cleaned, each second.
    pub seeks_per_s: f64,
}

impl Run {
    /// Loads a log of `shape`, of which `trims` percent of the oldest segments are garbage, and cleans those midway.
    pub fn of(
        shape: Shape,
        tune: impl FnOnce(&mut ChainOptions),
        mix: Mix,
        trims: u64,
        extent: Extent,
    ) -> Self {
        let world = World::filled(shape, tune);
        trim(&world, (extent.ahead + extent.segments) as u64 * extent.segment_bytes, trims);
        world.clean(extent.ahead);
        let mut running = mix.start(&world);
        running.run(WARM + extent.around);
        let (began, seeks) = (running.slots(), world.seeks());
        running.clean(extent.segments, extent.most);
        let ended = running.slots();
        let seeks = (world.seeks() - seeks) as f64;
        running.run(extent.around);
        let warm = (WARM.as_nanos() / SLOT.as_nanos()) as usize;
        let rates = running.rates().from(warm);
        let cleaned = began - warm..ended - warm;
        Self { rates, seeks_per_s: seeks / seconds(cleaned.len()), cleaned }
    }

    /// What clients wrote before, while it was not cleaned.
    pub fn before(&self) -> f64 {
        mean(&self.rates.writes[..self.cleaned.start])
    }

    /// What clients wrote while it was cleaned.
    pub fn writes(&self) -> f64 {
        mean(&self.rates.writes[self.cleaned.clone()])
    }

    /// What clients read while it was cleaned.
    pub fn reads(&self) -> f64 {
        mean(&self.rates.reads[self.cleaned.clone()])
    }

    /// What the cleaner wrote again while it was at it.
    pub fn moved(&self) -> f64 {
        mean(&self.rates.moved[self.cleaned.clone()])
    }
}

fn seconds(slots: usize) -> f64 {
    slots as f64 * SLOT.as_secs_f64()
}

/// One row.
struct Case {
    layout: Layout,
    style: Style,
    trims: u64,
    run: Run,
}

impl Case {
    fn new(layout: Layout, style: Style, trims: u64, extent: Extent) -> Self {
        let Extent { disk_segments, segment_bytes, .. } = extent;
        let shape = Shape { layout, width: 2, sides: 1, disk_segments, segment_bytes };
        let run = Run::of(shape, |options| style.tune(options), WRITES, trims, extent);
        Self { layout, style, trims, run }
    }

    /// Bytes of log that the cleaner got through each second: what it moved and the garbage between.
    fn passed(&self) -> f64 {
        self.run.moved() * 100.0 / (100 - self.trims) as f64
    }

    /// What the paper's text gives for its cleaner: the application's writes meanwhile.
    fn paper(&self) -> &'static str {
        match (self.layout, self.trims) {
            _ if self.style != Style::Blocks => "",
            (Layout::Chain, _) => "60",
            (Layout::Array, 50) => "10",
            (Layout::Array, _) => "40",
        }
    }

    fn row(&self) -> String {
        let run = &self.run;
        format!(
            "{},{},{},{:.1},{:.1},{},{:.1},{:.1},{:.1},{:.1},{:.0}",
            self.layout.name(),
            self.style.name(),
            self.trims,
            run.before(),
            run.writes(),
            self.paper(),
            run.moved(),
            run.writes() + run.moved(),
            self.passed(),
            seconds(run.cleaned.len()),
            run.seeks_per_s
        )
    }

    fn chart(&self) -> Chart {
        let pair = |slots: &[f64]| -> Vec<f64> { slots.chunks(2).map(mean).collect() };
        let (writes, moved) = (pair(&self.run.rates.writes), pair(&self.run.rates.moved));
        let all = writes.iter().zip(&moved).map(|(one, other)| one + other).collect();
        let per_second = (1.0 / (2.0 * SLOT.as_secs_f64())).round() as usize;
        let label = |at: usize| {
            if at.is_multiple_of(per_second) { (at / per_second).to_string() } else { String::new() }
        };
        let line = |name: &str, y| Line { name: name.to_string(), y };
        Chart {
            title: format!("{}, {} % trimmed, cleaned {}", self.layout.name(), self.trims, self.style.name()),
            x_label: "seconds".to_string(),
            y_label: "MB/s".to_string(),
            x: (0..writes.len()).map(label).collect(),
            scale: Scale::Linear,
            lines: vec![line("application", writes), line("application and cleaning", all)],
        }
    }
}

/// Random blocks written in place on two striped disks, in MB/s: what both logs are there to avoid.
fn in_place(extent: Extent) -> f64 {
    let bench = Bench::new(SEED, Speed::Disk);
    let size_bytes = 2 * extent.disk_segments * extent.segment_bytes;
    let drive = bench.drive_of("array", size_bytes, array_of_disks(2, 1));
    let load = Load { request: Request::DurableWrite, len: BLOCK as usize, depth: WRITERS, count: 2000 };
    let place = move |n| Dice::new(SEED).below(Domain::User(0), 0, n, size_bytes / BLOCK) * BLOCK;
    bench.run(&drive, load, place).mb_per_s(&load)
}

/// Measures what `extent` says.
pub fn measure(extent: Extent) -> Figure {
    let mut cases = Vec::new();
    for style in [Style::Blocks, Style::Large] {
        for layout in [Layout::Chain, Layout::Array] {
            cases.extend(TRIMS.map(|trims| Case::new(layout, style, trims, extent)));
        }
    }
    let in_place = in_place(extent);
    let mut rows: Vec<String> = cases.iter().map(Case::row).collect();
    rows.push(format!("RAID-0 in place,,,{in_place:.1},,,,,,,"));
    let charts = cases.iter().filter(|case| case.style == Style::Blocks).map(Case::chart).collect();
    Figure {
        name: "cleaning",
        claim: "a chain writes on at the speed of a disk while it is cleaned, whatever is trimmed; the same log over \
                striped disks loses most of its writes to the movements of the arms"
            .to_string(),
        expected: "Gecko, figure 4: on the chain 60 MB/s of 120 for the application with 50 % and with 0 % of the body \
                   trimmed, the rest for the cleaner; on RAID-0 10 MB/s with 50 % and 40 MB/s with 0 %, and a half \
                   to a third of the space cleaned in the same time; in place a few MB/s"
            .to_string(),
        setting: setting(extent),
        columns: "drives,cleaner,trimmed %,writes before MB/s,writes while cleaned MB/s,paper MB/s,cleaner MB/s,\
                  both MB/s,log cleaned MB/s,seconds,seeks/s",
        rows,
        charts,
        checks: checks(&cases, in_place),
    }
}

fn setting(extent: Extent) -> String {
    format!(
        "Two disks of {} MiB each, one zone of 120 MB/s, as links of a chain or striped by 64 KiB under a chain of one; the body \
         fills one disk, or the same bytes of the array. {WRITERS} writers of random 4 KiB blocks, one request each (the least \
         power of two with which both logs come to their disks' speed); the oldest {} MiB are cleaned to the tail without \
         rests. By blocks: as Gecko's kernel module, {GECKO_COPIES} blocks at a time, each read by itself unless it is the last one's \
         neighbour; by 1 MiB: as ours does unless told otherwise. Misses: on RAID-0 the application keeps about 20 MB/s under \
         either pattern, not 10 and 40, because our cleaner reads ahead in pieces and no disk does for it, so that under either the arms go to and \
         fro. The cleaner has three quarters under way at the tail of what the writers have, which leaves them a little more than half of a disk. Seed {SEED}.",
        (extent.disk_segments * extent.segment_bytes) >> 20,
        (extent.segments as u64 * extent.segment_bytes) >> 20
    )
}

fn checks(cases: &[Case], in_place: f64) -> Vec<(String, bool)> {
    let mut checks = Vec::new();
    let mut says = |what: String, is_so| checks.push((what, is_so));
    for case in cases {
        let (before, writes, both) =
            (case.run.before(), case.run.writes(), case.run.writes() + case.run.moved());
        let name = format!("{}, {} % trimmed, {}", case.layout.name(), case.trims, case.style.name());
        match case.layout {
            Layout::Chain => {
                says(
                    format!("{name}: {before:.0} MB/s before, within 100 and 120"),
                    (100.0..=120.0).contains(&before),
                );
                says(
                    format!("{name}: {both:.0} MB/s in all while it is cleaned, as before within a tenth"),
                    both >= before * 0.9,
                );
                says(
                    format!("{name}: {writes:.0} MB/s for the application meanwhile, at least 55"),
                    writes >= 55.0,
                );
            }
            Layout::Array => {
                says(
                    format!("{name}: {before:.0} MB/s before, within 190 and 240"),
                    (190.0..=240.0).contains(&before),
                );
                says(
                    format!("{name}: {writes:.0} MB/s meanwhile, less than a seventh"),
                    writes < before / 7.0,
                );
            }
        }
    }
    let of = |layout: Layout, trims: u64| {
        cases.iter().find(|case| (case.layout, case.trims, case.style) == (layout, trims, Style::Blocks))
    };
    for trims in TRIMS {
        let pair = of(Layout::Chain, trims).zip(of(Layout::Array, trims));
        let factor = pair.map_or(0.0, |(chain, array)| chain.passed() / array.passed());
        says(
            format!(
                "{trims} % trimmed: the chain cleans {factor:.1} times the log in the same time, at least twice"
            ),
            factor >= 2.0,
        );
    }
    says(format!("in place: {in_place:.1} MB/s, a few"), (1.0..=5.0).contains(&in_place));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_writes_on_while_it_is_cleaned_and_a_striped_log_does_not() {
        let figure = measure(Extent::small(10, 64 << 20, 0, 500, 1500));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
