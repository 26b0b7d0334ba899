//! How a command ends when it did not do what was asked: one line on stderr and an exit code.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use crate::output::shown;

/// The exit codes, a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The answer is no: unwritten, trimmed, not found, a difference.
    No = 1,
    /// Wrong usage: an argument, a setting or an input that cannot work.
    Usage = 2,
    /// Somebody could not be reached, refused or ran out of time; the outcome may be unknown.
    Unreachable = 3,
    /// Stored data is damaged.
    Damaged = 4,
}

/// Why a command ended: what was tried, where, and what stood in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// To be told in one line.
    Told {
        /// The exit code.
        exit: Exit,
        /// The line.
        line: String,
    },
    /// Whoever read our output went away: nothing to tell and nobody to tell it to.
    OutputClosed,
}

impl Failure {
    /// The answer is no.
    pub fn no(line: impl Into<String>) -> Self {
        Self::Told { exit: Exit::No, line: line.into() }
    }

    /// Wrong usage.
    pub fn usage(line: impl Into<String>) -> Self {
        Self::Told { exit: Exit::Usage, line: line.into() }
    }

    /// Not reached, refused or out of time.
    pub fn unreachable(line: impl Into<String>) -> Self {
        Self::Told { exit: Exit::Unreachable, line: line.into() }
    }

    /// Damaged data.
    pub fn damaged(line: impl Into<String>) -> Self {
        Self::Told { exit: Exit::Damaged, line: line.into() }
    }

    /// The same failure with `context: ` before its line.
    pub fn context(self, context: impl fmt::Display) -> Self {
        match self {
            Self::Told { exit, line } => Self::Told { exit, line: format!("{context}: {line}") },
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// The same failure with `; more` after its line.
    pub fn and(self, more: impl fmt::Display) -> Self {
        match self {
            Self::Told { exit, line } => Self::Told { exit, line: format!("{line}; {more}") },
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// The same failure with another exit code.
    pub fn with_exit(self, exit: Exit) -> Self {
        match self {
            Self::Told { line, .. } => Self::Told { exit, line },
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// Tells it on stderr, in one line whatever the line holds, and gives the code to exit with.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Told { exit, line } => {
                // In one piece, so that no other process's line comes into it. Where stderr cannot be written to, the code still tells.
                let line = format!("ithaca: {}\n", shown(&line.replace('\n', " ")));
                let _ = std::io::stderr().write_all(line.as_bytes());
                ExitCode::from(*exit as u8)
            }
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_comes_first_and_the_exit_code_stays() {
        let failure = Failure::no("position 7 was never written").context("log read 7");
        let line = "log read 7: position 7 was never written".to_owned();
        assert_eq!(failure, Failure::Told { exit: Exit::No, line });
        assert_eq!(Failure::OutputClosed.context("log read").with_exit(Exit::Damaged), Failure::OutputClosed);
    }
}
