//! Standard output: buffered, flushed when asked, and quiet when its reader goes away.

use std::io::{BufWriter, ErrorKind, StdoutLock, Write};

use ithaca_env::Env;
use ithaca_env::real::output_closed;
use ithaca_env::task::{Ended, race};

use crate::cli::Format;
use crate::failure::Failure;

/// Bytes gathered before they are written without being asked.
const BUFFER_BYTES: usize = 64 << 10;

/// Standard output, for one command.
pub struct Output {
    format: Format,
    out: BufWriter<StdoutLock<'static>>,
}

impl Output {
    /// Standard output in this format.
    pub fn new(format: Format) -> Self {
        Self { format, out: BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout().lock()) }
    }

    /// Whether programs read it: one JSON object a line.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(failed)
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.raw(line.as_bytes())?;
        self.raw(b"\n")
    }

    /// Writes a line: `human` for people, `json` for programs.
    pub fn either(
        &mut self,
        human: impl FnOnce() -> String,
        json: impl FnOnce() -> crate::json::Object,
    ) -> Result<(), Failure> {
        let line = if self.is_json() { json().finish() } else { human() };
        self.line(&line)
    }

    /// Hands over everything that was written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(failed)
    }

    /// Writes `text`, which ends its own lines, and flushes.
    pub fn all(&mut self, text: &str) -> Result<(), Failure> {
        self.raw(text.as_bytes())?;
        self.flush()
    }
}

/// Does `work`, which may wait for what comes, as long as somebody reads standard output. Ends with [`Failure::OutputClosed`] when nobody does.
pub async fn while_read<T>(env: &Env, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match race(output_closed(env), work).await {
        Ended::First(()) => Err(Failure::OutputClosed),
        Ended::Second(done) => done,
    }
}

/// What stands in a list, one a line, as people are shown it: what would end the line, or do something to a terminal, as an escape.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_default()),
            false => out.push(letter),
        }
    }
    out
}

/// Why what is printed does not get to whoever reads it.
pub fn failed(error: std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::unreachable(format!("standard output: {error}")),
    }
}
