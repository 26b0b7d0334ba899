//! How many reads of the tail drive memory and a cache drive answer: Gecko, figure 6.

use std::io;
use std::path::PathBuf;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::tail_emulator::{Filled, Sizes, fill_with_mixes, fill_with_trace};

/// Mixes of traces that the text has.
const MIXES: usize = 21;

/// Fills tail drives of so many blocks with each mix, and one with each of the traces in files. Errors: a file that cannot be read or is
/// no trace.
pub fn measure(tail_blocks: u64, files: &[PathBuf]) -> io::Result<Figure> {
    let mut filled = fill_with_mixes(Sizes::of_the_text(tail_blocks));
    for file in files {
        filled.push(fill_with_trace(tail_blocks, file)?);
    }
    let numbers: Vec<String> = (0..filled.len()).map(|number| number.to_string()).collect();
    let line = |name: &str, value: fn(&Filled) -> f64| Line {
        name: name.to_string(),
        y: filled.iter().map(|(_, filled)| value(filled)).collect(),
    };
    let chart = Chart {
        title: "reads of the tail drive that a cache answers".to_string(),
        x_label: "mix of traces (from 21 on: files)".to_string(),
        y_label: "percent".to_string(),
        x: numbers,
        scale: Scale::Linear,
        lines: vec![
            line("memory", |filled| filled.whole().memory_percent()),
            line("memory and SSD", |filled| filled.whole().hit_percent()),
        ],
    };
    Ok(Figure {
        name: "tail-cache",
        claim: "a small cache answers almost all reads of the tail drive, so that they do not disturb its writes".to_string(),
        expected: "Gecko, figure 6, with 2 GB of memory and 32 GB of SSD over a tail drive of 512 GB: above 86 % for each of 21 mixes of \
                   traces, above 90 % for 13 of them, above 95 % for 6; memory alone clearly less"
            .to_string(),
        setting: setting(tail_blocks, !files.is_empty()),
        columns: "mix,traces,blocks written,blocks read of the tail drive,missed,memory %,memory + SSD %",
        rows: filled.iter().enumerate().map(row).collect(),
        charts: vec![chart],
        checks: checks(&filled[..MIXES]),
    })
}

/// What all figures of the tail cache say of their traces and sizes.
pub fn setting(tail_blocks: u64, has_files: bool) -> String {
    let files =
        if has_files { ", and those of files, whose tail drive is as large as what they write" } else { "" };
    format!(
        "Scaled, substitute traces: nine generated ones stand for the SNIA traces of the text{files}. Their skew was raised until every mix coalesces in \
         memory at least as much as the text's least, a factor of 2 (figure 8): that bound is an input here, the rest follows from it. \
         The tail drive has {} MiB, a {}th of the text's; memory, SSD and working \
         sets are scaled alike. The chain's own replacement code, with lines of 15 blocks.",
        tail_blocks >> 8,
        (512 << 10) / (tail_blocks >> 8).max(1)
    )
}

fn row((number, (name, filled)): (usize, &(String, Filled))) -> String {
    let all = filled.whole();
    let (reads, missed) = (all.reads(), all.missed);
    format!(
        "{number},{name},{},{reads},{missed},{:.1},{:.1}",
        all.writes,
        all.memory_percent(),
        all.hit_percent()
    )
}

fn checks(mixes: &[(String, Filled)]) -> Vec<(String, bool)> {
    let above =
        |percent: f64| mixes.iter().filter(|(_, filled)| filled.whole().hit_percent() > percent).count();
    let is_less = |(_, filled): &(String, Filled)| {
        filled.whole().memory_percent() < filled.whole().hit_percent() - 10.0
    };
    let reads_enough = |(_, filled): &(String, Filled)| filled.whole().reads() * 10 > filled.whole().writes;
    let (over_86, over_90, over_95) = (above(86.0), above(90.0), above(95.0));
    vec![
        (format!("{over_86} of {MIXES} mixes above 86 %, all of the text's"), over_86 == MIXES),
        (format!("{over_90} of {MIXES} mixes above 90 %, at least the text's 13"), over_90 >= 13),
        (format!("{over_95} of {MIXES} mixes above 95 %, at least the text's 6"), over_95 >= 6),
        ("memory alone is more than 10 points lower in every mix".to_string(), mixes.iter().all(is_less)),
        ("every mix reads a tenth as much as it writes, or more".to_string(), mixes.iter().all(reads_enough)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn almost_all_reads_of_the_tail_drive_are_answered_by_its_caches() {
        let figure = measure(1 << 16, &[]).expect("no file is read");
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }

    #[test]
    fn a_trace_in_a_file_is_played_beside_the_mixes_and_one_that_is_none_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some.csv");
        let line = |n: u64| {
            format!("{n},host,0,{},{},8192,1\n", ["Write", "Read"][n as usize % 2], n / 2 % 300 * 8192)
        };
        std::fs::write(&path, (0..4000).map(line).collect::<String>()).expect("writable");
        let (name, filled) = fill_with_trace(1 << 12, &path).expect("it is one");
        let all = filled.whole();
        assert_eq!((name.as_str(), all.writes, all.reads()), ("some.csv", 4000, 4000));
        std::fs::write(&path, "1,2,3\n").expect("writable");
        let told = fill_with_trace(1 << 12, &path).expect_err("it is none").to_string();
        assert!(told.contains("some.csv: line 1: 3 fields"), "{told}");
    }
}
