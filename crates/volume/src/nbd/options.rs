//! Decodes the data of options. Never panics, never trusts a length, and refuses what is left over.

use bytes::Buf;
use thiserror::Error;

use super::limits::NAME_MAX_BYTES;

/// Why an option's data cannot be understood.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It ends early.
    #[error("{field}: needs {needed} bytes, {left} left")]
    Short {
        /// What was being read.
        field: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// It goes on after its end.
    #[error("{left} bytes too many")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// A text is longer than texts may be.
    #[error("{field}: {len} bytes, more than {limit}")]
    TooLong {
        /// Which.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The longest that is taken.
        limit: usize,
    },
    /// A text is not UTF-8.
    #[error("{field}: not UTF-8")]
    NotText {
        /// Which.
        field: &'static str,
    },
}

/// The data of `INFO` and `GO`: an export, and what a client wants to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExportAsk {
    pub name: String,
    pub infos: Vec<u16>,
}

impl ExportAsk {
    pub fn decode(data: &[u8]) -> Result<Self, Malformed> {
        let mut rest = data;
        let name = text(&mut rest, "name")?;
        let count = usize::from(number(&mut rest, "count of infos", 2)? as u16);
        if rest.len() < 2 * count {
            return Err(Malformed::Short { field: "infos", needed: 2 * count, left: rest.len() });
        }
        let infos = (0..count).map(|_| rest.get_u16()).collect();
        finish(rest).map(|()| Self { name, infos })
    }
}

/// The data of options about metadata contexts: an export, and queries for contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contexts {
    pub name: String,
    pub queries: Vec<String>,
}

impl Contexts {
    pub fn decode(data: &[u8]) -> Result<Self, Malformed> {
        let mut rest = data;
        let name = text(&mut rest, "name")?;
        let count = number(&mut rest, "count of queries", 4)?;
        let mut queries = Vec::new();
        // As many as there are bytes for, whatever the count says: each takes four at the least.
        for _ in 0..count {
            queries.push(text(&mut rest, "query")?);
        }
        finish(rest).map(|()| Self { name, queries })
    }
}

fn number(rest: &mut &[u8], field: &'static str, len: usize) -> Result<u32, Malformed> {
    if rest.len() < len {
        return Err(Malformed::Short { field, needed: len, left: rest.len() });
    }
    Ok(rest.get_uint(len) as u32)
}

fn text(rest: &mut &[u8], field: &'static str) -> Result<String, Malformed> {
    let len = number(rest, field, 4)? as usize;
    if len > NAME_MAX_BYTES {
        return Err(Malformed::TooLong { field, len, limit: NAME_MAX_BYTES });
    }
    if rest.len() < len {
        return Err(Malformed::Short { field, needed: len, left: rest.len() });
    }
    let (text, left) = rest.split_at(len);
    *rest = left;
    String::from_utf8(text.to_vec()).map_err(|_| Malformed::NotText { field })
}

fn finish(rest: &[u8]) -> Result<(), Malformed> {
    if rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing { left: rest.len() }) }
}
