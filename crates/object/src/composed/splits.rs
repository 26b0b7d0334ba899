//! When a composed map is split: by whoever has made a part of it too large, once that is committed.
//!
//! Nothing depends on a split. So a handle, with its clones, tries one at a time and gives it up after a few conflicts. What was refused
//! will be again soon: it is tried again when the part is twice as large.

use std::cell::Cell;

use ithaca_log::client::ErrorClass;

use crate::error::ObjectError;

/// The splits of a map by one handle and its clones.
pub(super) struct Splits {
    /// By how many times as much as usual a part is too large.
    times: Cell<usize>,
    is_under_way: Cell<bool>,
}

impl Default for Splits {
    fn default() -> Self {
        Self { times: Cell::new(1), is_under_way: Cell::default() }
    }
}

impl Splits {
    /// What is too large where as a rule more than `usual` is.
    pub(super) fn above(&self, usual: usize) -> usize {
        usual.saturating_mul(self.times.get())
    }

    /// Begins one; `None` if one is under way.
    pub(super) fn begin(&self) -> Option<UnderWay<'_>> {
        (!self.is_under_way.replace(true)).then_some(UnderWay(self))
    }
}

/// A split that is under way, over when dropped.
pub(super) struct UnderWay<'s>(&'s Splits);

impl UnderWay<'_> {
    /// It has ended so. Also a conflict counts as refused if it was dear.
    pub(super) fn ended(self, split: &Result<(), ObjectError>, is_dear: bool) {
        let times = &self.0.times;
        match split {
            Ok(()) => times.set(1),
            Err(error) if is_dear || error.class() == ErrorClass::Usage => {
                times.set(times.get().saturating_mul(2));
            }
            Err(_) => {}
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.is_under_way.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::TxFull;

    #[test]
    fn one_split_is_under_way_and_one_that_was_refused_is_tried_when_there_is_twice_as_much() {
        // Else every put that comes tries again what does not fit, of a bucket that grows.
        let splits = Splits::default();
        let end = |split: Result<(), ObjectError>, is_dear| {
            let under_way = splits.begin().expect("none is under way");
            assert!(splits.begin().is_none());
            under_way.ended(&split, is_dear);
            splits.above(10)
        };
        let full = || Err(TxFull::Calls.into());
        assert_eq!((end(full(), false), end(full(), false)), (20, 40));
        let unknown = || Err(ithaca_log::client::ClientError::Closed.into());
        assert_eq!((end(unknown(), false), end(unknown(), true)), (40, 80));
        assert_eq!(end(Ok(()), true), 10);
        drop(splits.begin());
        assert!(splits.begin().is_some(), "one that was dropped is over");
    }
}
