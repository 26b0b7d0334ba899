//! Plans as text and back.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Time;
use crate::sim::drive::DriveFault;
use crate::sim::options::nanos;
use crate::sim::process::Death;

use super::{Plan, PlanAction, PlanError, Step};

/// A span as a whole number of its largest fitting unit.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = nanos(self.0);
        let fitting = UNITS.iter().find(|(_, unit_ns)| ns.is_multiple_of(*unit_ns));
        let (unit, unit_ns) = fitting.copied().unwrap_or(("ns", 1));
        write!(f, "{}{unit}", ns / unit_ns)
    }
}

const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        for (name, number) in &self.settings {
            writeln!(f, "set {name} {number}")?;
        }
        for Step { number, at, action } in &self.steps {
            writeln!(f, "step {number} at {} {action}", Span(Duration::from_nanos(at.0)))?;
        }
        Ok(())
    }
}

fn death_word(death: Death) -> &'static str {
    match death {
        Death::Kill => "kill",
        Death::PowerCut => "crash",
        Death::Vanish => "vanish",
    }
}

impl fmt::Display for PlanAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanAction::End { process, death, down } => {
                write!(f, "{} {process} {}", death_word(*death), Span(*down))
            }
            PlanAction::EndAtIo { process, death, points, down } => {
                write!(f, "{}-at-io {process} {points} {}", death_word(*death), Span(*down))
            }
            PlanAction::Pause { process, span } => write!(f, "pause {process} {}", Span(*span)),
            PlanAction::SlowCpu { process, cost, span } => {
                write!(f, "slow-cpu {process} {} {}", Span(*cost), Span(*span))
            }
            PlanAction::ClockRate { process, ppm } => write!(f, "clock-rate {process} {ppm}"),
            PlanAction::WallJump { process, ms } => write!(f, "wall-jump {process} {ms}"),
            PlanAction::Drive { process, drive, fault } => {
                write!(f, "drive {process} {drive} ")?;
                write_fault(f, fault)
            }
            PlanAction::Cut { from, to, span } => write!(f, "cut {from} {to} {}", Span(*span)),
            PlanAction::Partition { one, other, span } => {
                write!(f, "partition {one} {other} {}", Span(*span))
            }
            PlanAction::Flap { one, other, span, times } => {
                write!(f, "flap {one} {other} {} {times}", Span(*span))
            }
            PlanAction::Reset { one, other } => write!(f, "reset {one} {other}"),
            PlanAction::SlowLink { from, to, latency, span } => {
                write!(f, "slow-link {from} {to} {} {}", Span(*latency), Span(*span))
            }
        }
    }
}

fn write_fault(f: &mut fmt::Formatter<'_>, fault: &DriveFault) -> fmt::Result {
    match fault {
        DriveFault::FailWrites { count } => write!(f, "fail-writes {count}"),
        DriveFault::FailSyncs { count } => write!(f, "fail-syncs {count}"),
        DriveFault::FailReads { count } => write!(f, "fail-reads {count}"),
        DriveFault::NoSpace { count } => write!(f, "no-space {count}"),
        DriveFault::LoseWrites { count } => write!(f, "lose-writes {count}"),
        DriveFault::MisdirectWrites { count } => write!(f, "misdirect-writes {count}"),
        DriveFault::Unreadable { offset } => write!(f, "unreadable {offset}"),
        DriveFault::BitRot { offset, bit } => write!(f, "bit-rot {offset} {bit}"),
        DriveFault::Slow { percent, span } => write!(f, "slow {percent} {}", Span(*span)),
        DriveFault::Stuck { span } => write!(f, "stuck {}", Span(*span)),
        DriveFault::Gone => write!(f, "gone"),
        DriveFault::Replace => write!(f, "replace"),
    }
}

/// The words of one line.
struct Words<'a> {
    line: usize,
    words: std::str::SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn next(&mut self, expected: &'static str) -> Result<&'a str, PlanError> {
        self.words.next().ok_or(PlanError::Missing { line: self.line, expected })
    }

    fn name(&mut self, expected: &'static str) -> Result<String, PlanError> {
        self.next(expected).map(str::to_owned)
    }

    fn no(&self, word: &str, expected: &'static str) -> PlanError {
        PlanError::Word { line: self.line, word: word.to_owned(), expected }
    }

    fn number<T: FromStr>(&mut self, expected: &'static str) -> Result<T, PlanError> {
        let word = self.next(expected)?;
        word.parse().map_err(|_| self.no(word, expected))
    }

    fn span(&mut self) -> Result<Duration, PlanError> {
        let expected = "a span such as 20ms";
        let word = self.next(expected)?;
        let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = UNITS.iter().find(|(unit, _)| *unit == &word[digits.len()..]);
        let ns = digits.parse::<u64>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit.1));
        ns.map(Duration::from_nanos).ok_or_else(|| self.no(word, expected))
    }

    fn word(&mut self, wanted: &'static str) -> Result<(), PlanError> {
        let word = self.next(wanted)?;
        if word == wanted { Ok(()) } else { Err(self.no(word, wanted)) }
    }

    fn end(mut self) -> Result<(), PlanError> {
        match self.words.next() {
            Some(word) => Err(PlanError::Extra { line: self.line, word: word.to_owned() }),
            None => Ok(()),
        }
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    /// Reads what [`Display`](fmt::Display) writes. Empty lines and those that begin with `#` say nothing.
    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        for (index, line) in text.lines().enumerate() {
            let mut words = Words { line: index + 1, words: line.split_whitespace() };
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            match words.next("seed, set or step")? {
                "seed" => plan.seed = words.number("a seed")?,
                "set" => {
                    let name = words.name("a setting")?;
                    plan.settings.insert(name, words.number("a number")?);
                }
                "step" => {
                    let number = words.number("the step's number")?;
                    words.word("at")?;
                    let at = Time::ZERO + words.span()?;
                    let action = read_action(&mut words)?;
                    plan.steps.push(Step { number, at, action });
                }
                word => return Err(words.no(word, "seed, set or step")),
            }
            words.end()?;
            plan.check_length()?;
        }
        Ok(plan)
    }
}

fn read_death(word: &str) -> Option<Death> {
    [Death::Kill, Death::PowerCut, Death::Vanish].into_iter().find(|&death| death_word(death) == word)
}

fn read_action(words: &mut Words<'_>) -> Result<PlanAction, PlanError> {
    let word = words.next("an action")?;
    let first = words.name("a process")?;
    if let Some(death) = read_death(word) {
        return Ok(PlanAction::End { process: first, death, down: words.span()? });
    }
    if let Some(death) = word.strip_suffix("-at-io").and_then(read_death) {
        let points = words.number("a number of I/O points")?;
        return Ok(PlanAction::EndAtIo { process: first, death, points, down: words.span()? });
    }
    let other = "a process";
    Ok(match word {
        "pause" => PlanAction::Pause { process: first, span: words.span()? },
        "slow-cpu" => PlanAction::SlowCpu { process: first, cost: words.span()?, span: words.span()? },
        "clock-rate" => {
            let ppm: i32 = words.number("parts per million")?;
            if ppm.unsigned_abs() > crate::sim::limits::CLOCK_DRIFT_MAX_PPM {
                return Err(words.no(&ppm.to_string(), "a rate within the stated bound"));
            }
            PlanAction::ClockRate { process: first, ppm }
        }
        "wall-jump" => PlanAction::WallJump { process: first, ms: words.number("milliseconds")? },
        "drive" => {
            let drive = words.name("a drive")?;
            PlanAction::Drive { process: first, drive, fault: read_fault(words)? }
        }
        "cut" => PlanAction::Cut { from: first, to: words.name(other)?, span: words.span()? },
        "partition" => PlanAction::Partition { one: first, other: words.name(other)?, span: words.span()? },
        "flap" => {
            let (other, span) = (words.name(other)?, words.span()?);
            PlanAction::Flap { one: first, other, span, times: words.number("a number of times")? }
        }
        "reset" => PlanAction::Reset { one: first, other: words.name(other)? },
        "slow-link" => {
            let (to, latency, span) = (words.name(other)?, words.span()?, words.span()?);
            PlanAction::SlowLink { from: first, to, latency, span }
        }
        word => return Err(words.no(word, "an action")),
    })
}

fn read_fault(words: &mut Words<'_>) -> Result<DriveFault, PlanError> {
    let count = "a number of requests";
    Ok(match words.next("a drive fault")? {
        "fail-writes" => DriveFault::FailWrites { count: words.number(count)? },
        "fail-syncs" => DriveFault::FailSyncs { count: words.number(count)? },
        "fail-reads" => DriveFault::FailReads { count: words.number(count)? },
        "no-space" => DriveFault::NoSpace { count: words.number(count)? },
        "lose-writes" => DriveFault::LoseWrites { count: words.number(count)? },
        "misdirect-writes" => DriveFault::MisdirectWrites { count: words.number(count)? },
        "unreadable" => DriveFault::Unreadable { offset: words.number("a byte offset")? },
        "bit-rot" => {
            DriveFault::BitRot { offset: words.number("a byte offset")?, bit: words.number("a bit")? }
        }
        "slow" => DriveFault::Slow { percent: words.number("percent")?, span: words.span()? },
        "stuck" => DriveFault::Stuck { span: words.span()? },
        "gone" => DriveFault::Gone,
        "replace" => DriveFault::Replace,
        word => return Err(words.no(word, "a drive fault")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan::{FaultKind, Shape};

    #[test]
    fn every_plan_reads_back_as_it_was_written() {
        let shape = Shape {
            processes: vec!["unit".into()],
            drives: vec![("unit".into(), "log".into())],
            links: vec![("client".into(), "unit".into())],
            faults: FaultKind::ALL.to_vec(),
            steps_max: 20,
            horizon: Duration::from_secs(1),
            drive_bytes: 1 << 20,
            ..Shape::default()
        };
        let mut words = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let plan = Plan::expand(seed, &shape);
            assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
            words.extend(
                plan.steps.iter().map(|step| std::mem::discriminant(&step.action)).map(|d| format!("{d:?}")),
            );
        }
        assert_eq!(words.len(), 12, "every action was tried");
    }

    #[test]
    fn a_text_that_is_no_plan_is_refused_with_its_line() {
        let refused = |text: &str| text.parse::<Plan>().map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(
            refused("seed 1\n\n# note\nstop"),
            Err("line 4: \"stop\" is not seed, set or step".into())
        );
        assert_eq!(
            refused("step 1 at 3m crash a 1s"),
            Err("line 1: \"3m\" is not a span such as 20ms".into())
        );
        assert_eq!(refused("step 1 at 3ms crash a"), Err("line 1: a span such as 20ms is missing".into()));
        assert_eq!(refused("seed 1 2"), Err("line 1: \"2\" is one word too many".into()));
    }
}
