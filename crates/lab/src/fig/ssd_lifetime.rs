//! How much longer the SSD of the tail cache lasts because memory in front of it takes overwrites: Gecko, figure 8.

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::tail_cache::setting;
use super::tail_emulator::{Filled, Sizes, fill_with_mixes};

/// The text's SSD: bytes, erases that each of its blocks bears, and bytes a second that are written to the volume.
const SSD_BYTES: f64 = 32e9;
const ERASES: f64 = 10_000.0;
const RATE: f64 = 40e6;
const DAY_S: f64 = 86_400.0;

/// Days that the SSD lasts if every write to the volume costs `each` writes to it.
fn days(each: f64) -> f64 {
    SSD_BYTES * ERASES / (RATE * each) / DAY_S
}

/// One mix.
struct Point {
    name: String,
    /// Writes to the SSD for each to the volume: without memory before it, and with it.
    without: f64,
    with: f64,
    /// Writes to the volume that were written again before they left memory, in percent.
    coalesced_percent: f64,
}

impl Point {
    fn new((name, with): (String, Filled), without: &Filled) -> Self {
        let each = |filled: &Filled| filled.whole().to_ssd as f64 / filled.whole().writes as f64;
        let whole = with.whole();
        let coalesced_percent = 100.0 * whole.coalesced as f64 / whole.writes as f64;
        Self { name, without: each(without), with: each(&with), coalesced_percent }
    }

    /// How many times as long it lasts.
    fn factor(&self) -> f64 {
        self.without / self.with
    }
}

/// Fills tail drives of so many blocks with each mix, with memory and without.
pub fn measure(tail_blocks: u64) -> Figure {
    let with = Sizes::of_the_text(tail_blocks);
    let without = fill_with_mixes(Sizes { memory_blocks: 0, ..with });
    let points: Vec<Point> = fill_with_mixes(with)
        .into_iter()
        .zip(&without)
        .map(|(with, (_, without))| Point::new(with, without))
        .collect();
    let row = |(number, point): (usize, &Point)| {
        format!(
            "{number},{},{:.1},{:.3},{:.3},{:.2},{:.0},{:.0}",
            point.name,
            point.coalesced_percent,
            point.without,
            point.with,
            point.factor(),
            days(point.without),
            days(point.with)
        )
    };
    let line = |name: &str, value: fn(&Point) -> f64| Line {
        name: name.to_string(),
        y: points.iter().map(value).collect(),
    };
    let chart = Chart {
        title: "days that the SSD lasts at 40 MB/s".to_string(),
        x_label: "mix of traces".to_string(),
        y_label: "days".to_string(),
        x: (0..points.len()).map(|number| number.to_string()).collect(),
        scale: Scale::Linear,
        lines: vec![
            line("SSD alone", |point| days(point.without)),
            line("memory before it", |point| days(point.with)),
        ],
    };
    Figure {
        name: "ssd-lifetime",
        claim: "memory in front of the SSD takes overwrites, so that the SSD is written less and lasts longer".to_string(),
        expected: "Gecko, figure 8: an SSD of 32 GB and 10,000 erases lasts some 3 months at 40 MB/s; with 2 GB of memory that coalesce overwrites, 2 to 8 \
                   times as long, at least twice for each of 21 mixes (Shin, figure 3.7: more than 4 times for 13)"
            .to_string(),
        setting: setting(tail_blocks, false),
        columns: "mix,traces,coalesced %,SSD writes per write without memory,with memory,factor,days without memory,days with memory",
        rows: points.iter().enumerate().map(row).collect(),
        charts: vec![chart],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let factors = || points.iter().map(Point::factor);
    let (least, most) = (factors().fold(f64::MAX, f64::min), factors().fold(0.0, f64::max));
    let over_two = factors().filter(|factor| *factor >= 2.0).count();
    let months = || points.iter().map(|point| days(point.without) / 30.4);
    let (shortest, longest) = (months().fold(f64::MAX, f64::min), months().fold(0.0, f64::max));
    let mixes = points.len();
    vec![
        (
            format!("an SSD alone lasts {shortest:.1} to {longest:.1} months, some 3"),
            2.8 <= shortest && longest <= 3.2,
        ),
        (format!("{over_two} of {mixes} mixes let it last twice as long or more"), over_two == mixes),
        (format!("factors from {least:.2} to {most:.2}, none above the text's 8"), most <= 8.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ssd_that_is_written_more_or_less_than_the_volume_is_found() {
        // What the figure says of the SSD alone has to follow from what was counted.
        let point = |without| Point { name: String::new(), without, with: 0.3, coalesced_percent: 70.0 };
        let says_three = |without: &[f64]| {
            let points: Vec<Point> = without.iter().copied().map(point).collect();
            checks(&points)[0].1
        };
        assert!(says_three(&[1.0, 1.04]));
        assert!(!says_three(&[1.0, 1.2]), "blocks that are read are written to it too");
        assert!(!says_three(&[0.9, 1.0]), "some writes are not");
    }

    #[test]
    fn memory_before_the_ssd_doubles_its_life_at_least() {
        // At the figure's own scale: requests do not shrink with the drive, and the memory of a smaller one coalesces less.
        let figure = measure(super::super::TAIL_BLOCKS);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
