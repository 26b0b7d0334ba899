//! Keeps writes of the log and copies between sides apart where they overlap.
//!
//! A copy reads a place on one side and writes it to another. If the log wrote to that place meanwhile, the copy could put
//! old bytes over new ones. So a copy claims its place: it waits for writes that are under way there, and writes that
//! come later wait for it.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::sync::Notify;

/// Who is at work where, in bytes of a drive. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Claims {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    writes: RefCell<Vec<Range<u64>>>,
    copies: RefCell<Vec<Range<u64>>>,
    over: Notify,
}

/// A place that somebody is at work at, until it is dropped.
pub(crate) struct Claim {
    claims: Claims,
    range: Range<u64>,
    is_copy: bool,
}

impl Claims {
    /// Begins a write; `None` while a copy is at work there.
    pub(crate) fn try_write(&self, range: Range<u64>) -> Option<Claim> {
        if overlaps(&self.inner.copies, &range) {
            return None;
        }
        self.inner.writes.borrow_mut().push(range.clone());
        Some(Claim { claims: self.clone(), range, is_copy: false })
    }

    /// Begins a write when no copy is at work there any more.
    pub(crate) async fn write(&self, range: Range<u64>) -> Claim {
        self.inner.over.until(|| self.try_write(range.clone())).await
    }

    /// Begins a copy when nobody is at work there any more.
    pub(crate) async fn copy(&self, range: Range<u64>) -> Claim {
        let inner = &self.inner;
        let is_free = || !overlaps(&inner.writes, &range) && !overlaps(&inner.copies, &range);
        inner.over.until(|| is_free().then_some(())).await;
        inner.copies.borrow_mut().push(range.clone());
        Claim { claims: self.clone(), range, is_copy: true }
    }
}

fn overlaps(ranges: &RefCell<Vec<Range<u64>>>, range: &Range<u64>) -> bool {
    ranges.borrow().iter().any(|other| other.start < range.end && range.start < other.end)
}

impl Drop for Claim {
    fn drop(&mut self) {
        let inner = &self.claims.inner;
        let mut ranges = if self.is_copy { inner.copies.borrow_mut() } else { inner.writes.borrow_mut() };
        let place = ranges.iter().position(|range| *range == self.range).expect("it was claimed");
        ranges.swap_remove(place);
        drop(ranges);
        inner.over.ring();
    }
}
