//! The terminal on standard output.

use rustix::termios::tcgetwinsize;

/// How many characters a terminal shows. At least one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters in a row.
    pub columns: usize,
    /// Rows.
    pub rows: usize,
}

impl Default for Size {
    /// The size of a terminal that does not know its own: 80 by 24.
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// The size of the terminal that standard output goes to, as it is now; `None` if it goes elsewhere.
pub fn size() -> Option<Size> {
    let found = tcgetwinsize(std::io::stdout()).ok()?;
    let known = |value: u16, otherwise: usize| if value == 0 { otherwise } else { value.into() };
    let Size { columns, rows } = Size::default();
    Some(Size { columns: known(found.ws_col, columns), rows: known(found.ws_row, rows) })
}
