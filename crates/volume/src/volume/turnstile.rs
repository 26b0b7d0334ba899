//! Who waits for room, in order: one at a time tries, so that a large commit is not passed by small ones for ever.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ithaca_env::sync::Notify;

/// See the module.
#[derive(Default)]
pub(super) struct Turnstile {
    waiting: RefCell<(u64, BTreeSet<u64>)>,
    changed: Notify,
}

/// A place in the line. Dropping it lets the next one try.
pub(super) struct Place {
    turnstile: Rc<Turnstile>,
    number: u64,
}

impl Turnstile {
    /// Waits until everybody who came before has gone.
    pub(super) async fn enter(self: &Rc<Self>) -> Place {
        let number = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.0 += 1;
            let number = waiting.0;
            waiting.1.insert(number);
            number
        };
        let place = Place { turnstile: Rc::clone(self), number };
        self.changed.until(|| (self.waiting.borrow().1.first() == Some(&number)).then_some(())).await;
        place
    }

    /// Whether nobody waits.
    pub(super) fn is_free(&self) -> bool {
        self.waiting.borrow().1.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.borrow().1.len()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turnstile.waiting.borrow_mut().1.remove(&self.number);
        self.turnstile.changed.ring();
    }
}
