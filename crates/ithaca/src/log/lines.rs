//! Cuts input that comes in pieces into lines, without copying a line that lies within one piece.

use bytes::{Bytes, BytesMut};

/// A line is longer than an entry may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Lines of the input: everything between newlines, without them, and what follows the last one if it is not empty.
pub struct Lines {
    limit: usize,
    piece: Bytes,
    /// The beginning of a line whose end is not there yet; within the limit.
    begun: BytesMut,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, piece: Bytes::new(), begun: BytesMut::new() }
    }

    /// Adds the next piece of input; the one before has been cut up: [`next`](Lines::next) gave `None`.
    pub fn add(&mut self, piece: Bytes) {
        assert!(self.piece.is_empty(), "the piece before is still being cut");
        self.piece = piece;
    }

    /// The next whole line, `None` if it needs more input.
    pub fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let end = self.piece.iter().position(|&byte| byte == b'\n');
        let len = end.unwrap_or(self.piece.len());
        if self.begun.len() + len > self.limit {
            return Err(TooLong);
        }
        let part = self.piece.split_to(len);
        if end.is_none() {
            self.begun.extend_from_slice(&part);
            return Ok(None);
        }
        let _newline = self.piece.split_to(1);
        if self.begun.is_empty() {
            return Ok(Some(part));
        }
        self.begun.extend_from_slice(&part);
        Ok(Some(self.begun.split().freeze()))
    }

    /// The line without a newline at the end of the input, if there is one.
    pub fn last(&mut self) -> Option<Bytes> {
        (!self.begun.is_empty()).then(|| self.begun.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&str], limit: usize) -> Result<Vec<String>, TooLong> {
        let mut lines = Lines::new(limit);
        let mut found = Vec::new();
        let text = |line: Bytes| String::from_utf8(line.to_vec()).expect("text");
        for piece in pieces {
            lines.add(Bytes::copy_from_slice(piece.as_bytes()));
            while let Some(line) = lines.next()? {
                found.push(text(line));
            }
        }
        found.extend(lines.last().map(text));
        Ok(found)
    }

    #[test]
    fn lines_are_the_same_wherever_the_pieces_end() {
        let whole = "one\n\ntwo\r\nlast";
        for at in 0..=whole.len() {
            assert_eq!(
                cut(&[&whole[..at], &whole[at..]], 10),
                Ok(vec!["one".into(), String::new(), "two\r".into(), "last".into()])
            );
        }
    }

    #[test]
    fn a_newline_at_the_end_begins_no_line() {
        assert_eq!(cut(&["a\n"], 10), Ok(vec!["a".into()]));
        assert_eq!(cut(&["\n"], 10), Ok(vec![String::new()]));
        assert_eq!(cut(&[], 10), Ok(vec![]));
    }

    #[test]
    fn a_line_over_the_limit_is_refused_before_it_is_gathered() {
        assert_eq!(cut(&["abc\n"], 3), Ok(vec!["abc".into()]));
        assert_eq!(cut(&["ab", "cd\n"], 3), Err(TooLong));
        assert_eq!(cut(&["abcd"], 3), Err(TooLong));
    }
}
