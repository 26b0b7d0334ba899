//! Keeps writes of the log and copies between sides apart where they overlap.
//!
//! A copy reads a place on one side and writes it to another. If the log wrote to that place meanwhile, the copy could put
//! old bytes over new ones. So a copy claims its place: it waits for writes that are under way there, and writes that
//! come later wait for it.

use std::cell::{Cell, RefCell};
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
    writes: RefCell<Vec<Place>>,
    copies: RefCell<Vec<Place>>,
    /// The number of the next claim.
    next: Cell<u64>,
    over: Notify,
}

/// A place and the number of its claim: claims are numbered in the order in which they begin.
struct Place {
    number: u64,
    range: Range<u64>,
}

/// A place that somebody is at work at, until it is dropped.
pub(crate) struct Claim {
    claims: Claims,
    number: u64,
    is_copy: bool,
}

impl Claims {
    /// Begins a write; `None` while a copy is at work there.
    pub(crate) fn try_write(&self, range: Range<u64>) -> Option<Claim> {
        (!overlaps(&self.inner.copies, &range)).then(|| self.begin(range, false))
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
        self.begin(range, true)
    }

    /// Waits until every write has ended that began before this was called. Those that begin meanwhile are not waited for: of a log
    /// that is always being written some are under way at any time.
    pub(crate) async fn end_of_earlier_writes(&self) {
        let inner = &self.inner;
        let first_later = inner.next.get();
        let is_over = || inner.writes.borrow().iter().all(|write| write.number >= first_later);
        inner.over.until(|| is_over().then_some(())).await;
    }

    fn begin(&self, range: Range<u64>, is_copy: bool) -> Claim {
        let number = self.inner.next.get();
        self.inner.next.set(number + 1);
        self.inner.places(is_copy).borrow_mut().push(Place { number, range });
        Claim { claims: self.clone(), number, is_copy }
    }
}

impl Inner {
    fn places(&self, of_copies: bool) -> &RefCell<Vec<Place>> {
        if of_copies { &self.copies } else { &self.writes }
    }
}

fn overlaps(places: &RefCell<Vec<Place>>, range: &Range<u64>) -> bool {
    places.borrow().iter().any(|other| other.range.start < range.end && range.start < other.range.end)
}

impl Drop for Claim {
    fn drop(&mut self) {
        let inner = &self.claims.inner;
        let mut places = inner.places(self.is_copy).borrow_mut();
        let place = places.iter().position(|place| place.number == self.number).expect("it was claimed");
        places.swap_remove(place);
        drop(places);
        inner.over.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn writes_that_began_earlier_are_waited_for_and_later_ones_are_not() {
        let claims = Claims::default();
        let begin = |block: u64| claims.try_write(block..block + 1).expect("no copy is at work");
        let (first, second) = (begin(1), begin(2));
        let mut waits = pin!(claims.end_of_earlier_writes());
        let mut is_over = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!is_over());
        let third = begin(1);
        drop(first);
        assert!(!is_over(), "the second one is under way");
        drop(second);
        assert!(is_over(), "the third one began later");
        drop(third);
    }
}
