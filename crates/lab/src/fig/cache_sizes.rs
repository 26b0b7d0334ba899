//! How the share of reads that the caches of the tail drive answer falls as the drive fills, for several sizes of the SSD: Gecko, figure 7.

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::tail_cache::setting;
use super::tail_emulator::{Filled, PARTS, Sizes, fill_with_mixes};

/// How many times as large as the SSD the tail drive is, and what that is in the text's scale. The text has the second.
const SSDS: [(u64, &str); 3] = [(32, "16 GB"), (16, "32 GB"), (8, "64 GB")];
/// Which of them the text has.
const OF_THE_TEXT: usize = 1;

/// Percent of reads answered while a part of the tail drive was filled, over the mixes.
#[derive(Clone, Copy)]
struct Spread {
    mean: f64,
    min: f64,
    max: f64,
}

fn spread(filled: &[Filled], part: usize) -> Spread {
    let percents = || filled.iter().map(|filled| filled.parts[part].hit_percent());
    Spread {
        mean: percents().sum::<f64>() / filled.len() as f64,
        min: percents().fold(f64::MAX, f64::min),
        max: percents().fold(0.0, f64::max),
    }
}

/// Fills tail drives of so many blocks with each mix.
pub fn measure(tail_blocks: u64) -> Figure {
    let spreads = SSDS.map(|(tail_of_ssd, _)| {
        let sizes = Sizes { tail_of_ssd, ..Sizes::of_the_text(tail_blocks) };
        let filled: Vec<Filled> = fill_with_mixes(sizes).into_iter().map(|(_, filled)| filled).collect();
        std::array::from_fn::<Spread, PARTS, _>(|part| spread(&filled, part))
    });
    let parts = ["first fifth", "second", "third", "fourth", "last"];
    let rows = parts.iter().enumerate().map(|(part, name)| {
        let cells =
            spreads.iter().map(|of| format!("{:.1},{:.1},{:.1}", of[part].mean, of[part].min, of[part].max));
        format!("{name},{}", cells.collect::<Vec<_>>().join(","))
    });
    let line = |name: String, of: &[Spread; PARTS], value: fn(&Spread) -> f64| Line {
        name,
        y: of.iter().map(value).collect(),
    };
    let chart = |title: &str, lines: Vec<Line>| Chart {
        title: title.to_string(),
        x_label: "part of the tail drive that was filled".to_string(),
        y_label: "percent".to_string(),
        x: parts.iter().map(ToString::to_string).collect(),
        scale: Scale::Linear,
        lines,
    };
    let text = &spreads[OF_THE_TEXT];
    let of_text = vec![
        line("mean of the mixes".into(), text, |spread| spread.mean),
        line("least".into(), text, |spread| spread.min),
        line("most".into(), text, |spread| spread.max),
    ];
    let sizes =
        SSDS.iter().zip(&spreads).map(|((_, name), of)| line((*name).to_string(), of, |spread| spread.mean));
    Figure {
        name: "cache-sizes",
        claim: "the caches answer almost everything while the tail drive is not much larger than they are, and still most of it when it is full"
            .to_string(),
        expected: "Gecko, figure 7, mean, least and most of 21 mixes for each 100 GB of the 512 GB tail drive, with 2 GB of memory and 32 GB of SSD: \
                   extremely high for the first, lower for later ones; a larger SSD answers more"
            .to_string(),
        setting: setting(tail_blocks, false),
        columns: "part,16 GB mean %,least,most,32 GB mean %,least,most,64 GB mean %,least,most",
        rows: rows.collect(),
        charts: vec![
            chart("reads answered, SSD of 32 GB in the text's scale", of_text),
            chart("mean, by the size of the SSD", sizes.collect()),
        ],
        checks: checks(&spreads),
    }
}

fn checks(spreads: &[[Spread; PARTS]; SSDS.len()]) -> Vec<(String, bool)> {
    let text = &spreads[OF_THE_TEXT];
    let (first, last) = (text[0].mean, text[PARTS - 1].mean);
    let later = &text[1..];
    let grows =
        (0..PARTS).all(|part| spreads.windows(2).all(|pair| pair[1][part].mean >= pair[0][part].mean - 0.1));
    vec![
        (format!("{first:.1} % on average for the first fifth, 97 or more"), first >= 97.0),
        (
            format!("lower for every later fifth, {last:.1} % for the last"),
            later.iter().all(|spread| spread.mean < first),
        ),
        (
            "80 % or more for the worst mix in any fifth".to_string(),
            text.iter().all(|spread| spread.min >= 80.0),
        ),
        ("no fifth is answered less by a larger SSD".to_string(), grows),
        (
            "the least falls further than the mean".to_string(),
            text[0].min - text[PARTS - 1].min > first - last,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_answer_less_as_the_tail_drive_fills_and_more_when_they_are_larger() {
        let figure = measure(1 << 16);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
