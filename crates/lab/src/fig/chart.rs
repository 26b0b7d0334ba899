//! Pictures of figures: line charts side by side, as SVG, from numbers alone; the same numbers give the same bytes.

use std::fmt::Write as _;

/// How values become places on an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly from 0.
    Linear,
    /// By their logarithm, from the power of ten below the least value; values must be above 0.
    Log,
}

/// One line of a chart.
pub struct Line {
    /// What it is.
    pub name: String,
    /// One value for each of the chart's `x`.
    pub y: Vec<f64>,
}

/// One chart: values over a few places that stand evenly apart, whatever their values.
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// What stands along the axis below.
    pub x_label: String,
    /// What stands along the axis on the left, with its unit.
    pub y_label: String,
    /// The places below, as they are written there.
    pub x: Vec<String>,
    /// How high values stand.
    pub scale: Scale,
    /// What is drawn.
    pub lines: Vec<Line>,
}

const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#3a7d44", "#7d4f9e", "#b8860b", "#555555"];
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 70.0;
const COLUMNS: usize = 2;
const CAPTION_LINE: f64 = 17.0;
/// Characters of a line of the caption.
const CAPTION_WIDTH: usize = 140;

/// A picture of the charts, two to a row, with a caption below.
pub fn picture(charts: &[Chart], caption: &[String]) -> String {
    let caption: Vec<String> = caption.iter().flat_map(|text| wrap(text)).collect();
    let columns = charts.len().min(COLUMNS);
    let rows = charts.len().div_ceil(COLUMNS);
    let (width, charts_height) = (WIDTH * columns as f64, HEIGHT * rows as f64);
    let width = width.max(WIDTH * COLUMNS as f64);
    let height = charts_height + CAPTION_LINE * caption.len() as f64 + 12.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>"
    );
    for (number, chart) in charts.iter().enumerate() {
        let (x, y) = ((number % COLUMNS) as f64 * WIDTH, (number / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(out, "<g transform=\"translate({x} {y})\">");
        draw(&mut out, chart);
        let _ = writeln!(out, "</g>");
    }
    for (number, line) in caption.iter().enumerate() {
        let y = charts_height + CAPTION_LINE * (number + 1) as f64;
        text(&mut out, (12.0, y), "start", line);
    }
    out.push_str("</svg>\n");
    out
}

/// The values at the lower and the upper end of the axis, and where marks stand.
fn axis(chart: &Chart) -> (f64, f64, Vec<f64>) {
    let values = || chart.lines.iter().flat_map(|line| line.y.iter().copied());
    let most = values().fold(f64::MIN_POSITIVE, f64::max);
    match chart.scale {
        Scale::Log => {
            let least = values().filter(|&value| value > 0.0).fold(most, f64::min);
            let (low, high) = (least.log10().floor() as i32, most.log10().ceil() as i32);
            let high = high.max(low + 1);
            let marks = (low..=high).map(|power| 10f64.powi(power)).collect();
            (10f64.powi(low), 10f64.powi(high), marks)
        }
        Scale::Linear => {
            let power = 10f64.powf(most.log10().floor());
            let step = [0.2, 0.5, 1.0, 2.0].map(|part| part * power).into_iter();
            let step = step.filter(|step| most / step <= 6.0).fold(f64::INFINITY, f64::min);
            let count = (most / step).ceil() as u32;
            (0.0, f64::from(count) * step, (0..=count).map(|mark| f64::from(mark) * step).collect())
        }
    }
}

fn draw(out: &mut String, chart: &Chart) {
    let (low, high, marks) = axis(chart);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x_of = |place: usize| {
        let span = (right - LEFT) / chart.x.len().max(1) as f64;
        LEFT + span * (place as f64 + 0.5)
    };
    let y_of = |value: f64| {
        let part = match chart.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value.max(low).log10() - low.log10()) / (high.log10() - low.log10()),
        };
        bottom - part * (bottom - TOP)
    };
    let _ = writeln!(out, "<g font-weight=\"bold\">");
    text(out, ((LEFT + right) / 2.0, 20.0), "middle", &chart.title);
    let _ = writeln!(out, "</g>");
    for mark in marks {
        let y = y_of(mark);
        let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#dddddd\"/>");
        text(out, (LEFT - 6.0, y + 4.0), "end", &number(mark));
    }
    let _ = writeln!(out, "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" stroke=\"black\" fill=\"none\"/>");
    for (place, label) in chart.x.iter().enumerate() {
        text(out, (x_of(place), bottom + 16.0), "middle", label);
    }
    text(out, ((LEFT + right) / 2.0, bottom + 32.0), "middle", &chart.x_label);
    let middle = (TOP + bottom) / 2.0;
    let _ = writeln!(out, "<g transform=\"rotate(-90 14 {middle:.1})\">");
    text(out, (14.0, middle), "middle", &chart.y_label);
    let _ = writeln!(out, "</g>");
    let share = (WIDTH - 24.0) / chart.lines.len().max(1) as f64;
    for (place, line) in chart.lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let points: Vec<_> = line.y.iter().enumerate().map(|(place, &y)| (x_of(place), y_of(y))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let path = path.join("L");
        let _ = writeln!(out, "<path d=\"M{path}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>");
        for (x, y) in points {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (x, y) = (12.0 + share * place as f64, HEIGHT - 16.0);
        let _ = writeln!(out, "<path d=\"M{x:.1} {y}h14\" stroke=\"{colour}\" stroke-width=\"3\"/>");
        text(out, (x + 18.0, y + 4.0), "start", &line.name);
    }
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

/// A mark of an axis, short.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() >= CAPTION_WIDTH {
            lines.push(word.to_string());
        } else {
            let gap = if lines[last].is_empty() { "" } else { " " };
            lines[last] = format!("{}{gap}{word}", lines[last]);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, y: Vec<f64>) -> Chart {
        let x = (0..y.len()).map(|place| place.to_string()).collect();
        let text = || "a < b & c".to_string();
        let lines = vec![Line { name: text(), y }];
        Chart { title: text(), x_label: text(), y_label: text(), x, scale, lines }
    }

    #[test]
    fn axes_hold_every_value_and_few_marks() {
        for most in [0.3, 1.0, 7.0, 12.0, 99.0, 480.0, 1_000_000.0] {
            let (low, high, marks) = axis(&chart(Scale::Linear, vec![0.1, most]));
            assert!(low == 0.0 && high >= most && (3..=7).contains(&marks.len()), "{most}: {marks:?}");
            let (low, high, _) = axis(&chart(Scale::Log, vec![0.1, most]));
            assert!(low <= 0.1 && high >= most, "{most}: {low} to {high}");
        }
    }

    #[test]
    fn a_picture_escapes_what_it_writes_and_has_the_whole_caption() {
        let caption = "word ".repeat(100);
        let picture = picture(&[chart(Scale::Log, vec![1.0, 2.0])], &[caption]);
        assert!(picture.contains("a &lt; b &amp; c") && !picture.contains("a < b"));
        assert_eq!(picture.matches("word").count(), 100);
        assert!(picture.lines().count() > 20 && picture.ends_with("</svg>\n"));
    }
}
