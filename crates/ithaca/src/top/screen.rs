//! A text that is drawn over itself, on the alternate screen of a terminal.
//!
//! What stood on the terminal before comes back however the command ends, unless it is killed. Plain ANSI sequences; no
//! colours.

use ithaca_env::real::terminal::{self, Size};

use crate::failure::Failure;
use crate::output::Output;

/// To the alternate screen, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Back, with one.
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// The alternate screen, left when this is dropped.
pub struct Screen<'a> {
    out: &'a mut Output,
}

impl<'a> Screen<'a> {
    /// Goes to the alternate screen of the terminal on standard output.
    pub fn enter(out: &'a mut Output) -> Result<Self, Failure> {
        let screen = Self { out };
        screen.out.raw(ENTER)?;
        screen.out.flush()?;
        Ok(screen)
    }

    /// Draws what `text` says on so many columns in place of what was drawn before, as much of it as the terminal has room for now.
    pub fn draw(&mut self, text: impl FnOnce(usize) -> String) -> Result<(), Failure> {
        let size = terminal::size().unwrap_or_default();
        self.out.all(&drawn(&text(size.columns), size))
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone need not be put in order.
        let _ = self.out.raw(LEAVE).and_then(|()| self.out.flush());
    }
}

/// What draws `text` on a screen of this size: lines are cut at its right edge, and the last line says how many more
/// there are.
fn drawn(text: &str, size: Size) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.len() > size.rows {
        let shown = size.rows.saturating_sub(1);
        let more = format!("({} more lines)", lines.len() - shown);
        lines.truncate(shown);
        lines.push(more);
    }
    // Each line is cleared before it is written: a line as wide as the screen leaves the cursor on its last character, and
    // clearing from there would take that too.
    let cut = |line: &String| format!("\x1b[K{}", line.chars().take(size.columns).collect::<String>());
    let shown: Vec<String> = lines.iter().map(cut).collect();
    let rest = if lines.len() < size.rows { "\r\n\x1b[J" } else { "" };
    format!("\x1b[H{}{rest}", shown.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, columns: usize, rows: usize, expected: &str) {
        assert_eq!(drawn(text, Size { columns, rows }), expected, "{text:?} on {columns} x {rows}");
    }

    #[test]
    fn a_text_is_cut_at_the_edges_and_what_is_below_it_is_cleared() {
        check("ab\ncd", 80, 3, "\x1b[H\x1b[Kab\r\n\x1b[Kcd\r\n\x1b[J");
        check("abcdef", 4, 2, "\x1b[H\x1b[Kabcd\r\n\x1b[J");
    }

    #[test]
    fn a_text_that_fills_the_screen_does_not_scroll_it_and_a_longer_one_says_so() {
        check("a\nb", 80, 2, "\x1b[H\x1b[Ka\r\n\x1b[Kb");
        check("a\nb\nc", 80, 2, "\x1b[H\x1b[Ka\r\n\x1b[K(2 more lines)");
        check("a\nb", 80, 1, "\x1b[H\x1b[K(2 more lines)");
    }
}
