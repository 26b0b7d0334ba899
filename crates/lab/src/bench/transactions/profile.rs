//! Which part of the processor time is conflict detection: samples of this process by `perf`, and whether one of the functions that do it was
//! under way.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Samples a second of each thread.
const RATE: &str = "4999";
/// Fewer samples say nothing.
const SAMPLES_MIN: usize = 200;
/// What notes marks, compares with the commits since a snapshot, and keeps those commits. They are not inlined.
const DETECTION: [&str; 4] = ["Transactions::mark", "check_conflicts", "Window::add", "Window::forget"];

/// Samples are being taken.
pub struct Profile {
    perf: Child,
}

impl Profile {
    /// Takes samples of this process for so long. Errors: there is no `perf`.
    pub fn start(file: &Path, span: Duration) -> io::Result<Self> {
        let mut perf = Command::new("perf");
        perf.args(["record", "--quiet", "--freq", RATE, "--call-graph", "dwarf,4096", "--output"]).arg(file);
        perf.args(["--pid", &std::process::id().to_string(), "--", "sleep", &span.as_secs_f64().to_string()]);
        let perf = perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self { perf: perf.map_err(|error| io::Error::other(format!("perf: {error}")))? })
    }

    /// Which part of the samples has met conflict detection, from 0 to 1. Errors: too few samples were taken.
    pub fn share(mut self, file: &Path) -> io::Result<f64> {
        self.perf.wait()?;
        let mut script = Command::new("perf");
        script.args(["script", "--no-inline", "--fields", "ip,sym", "--input"]).arg(file);
        let output = script.stderr(Stdio::null()).output()?;
        share_of(&String::from_utf8_lossy(&output.stdout))
    }
}

/// A sample is a paragraph, a line for each function that was under way.
fn share_of(text: &str) -> io::Result<f64> {
    let samples = text.split("\n\n").filter(|sample| !sample.trim().is_empty());
    let (mut all, mut detection) = (0_usize, 0_usize);
    for sample in samples {
        all += 1;
        detection += usize::from(DETECTION.iter().any(|name| sample.contains(name)));
    }
    if all < SAMPLES_MIN {
        return Err(io::Error::other(format!("perf has taken {all} samples, {SAMPLES_MIN} are needed")));
    }
    Ok(detection as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_counts_where_a_function_of_conflict_detection_was_under_way() {
        let one = "  55d0 __memmove\n  55d1 ithaca_volume::tx::window::Window::add\n  55d2 main\n\n";
        let other = "  55d0 __memmove\n  55d2 main\n\n";
        let share = share_of(&(one.repeat(100) + &other.repeat(300))).expect("400 samples");
        assert!((share - 0.25).abs() < 1e-9, "{share}");
        assert!(share_of(one).is_err(), "one sample");
    }
}
