//! How many of something there are.

use std::cell::Cell;
use std::rc::Rc;

use super::Notify;

/// How many of something there are: each counts from [`Count::one_more`] until that is dropped.
#[derive(Clone, Default)]
pub struct Count {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    count: Cell<usize>,
    fewer: Notify,
}

/// One that counts, until this is dropped.
pub struct Counted {
    inner: Rc<Inner>,
}

impl Count {
    /// One more.
    pub fn one_more(&self) -> Counted {
        self.inner.count.set(self.inner.count.get() + 1);
        Counted { inner: Rc::clone(&self.inner) }
    }

    /// How many there are.
    pub fn get(&self) -> usize {
        self.inner.count.get()
    }

    /// Waits until there are fewer than `limit`. Dropping the future stops the wait.
    pub async fn below(&self, limit: usize) {
        self.inner.fewer.until(|| (self.get() < limit).then_some(())).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inner.count.set(self.inner.count.get() - 1);
        self.inner.fewer.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::sim::Sim;

    #[test]
    fn who_waits_for_fewer_goes_on_when_enough_are_gone_and_not_before() {
        let sim = Sim::new(1);
        let node = sim.process("node", [10, 0, 0, 1].into());
        let env = sim.env(node);
        sim.block_on(node, async move {
            let count = Count::default();
            let (first, second, third) = (count.one_more(), count.one_more(), count.one_more());
            let is_below = Rc::new(Cell::new(false));
            let (waiter, told) = (count.clone(), Rc::clone(&is_below));
            let task = env.spawn(async move {
                waiter.below(2).await;
                told.set(true);
            });
            drop(first);
            env.yield_now().await;
            assert_eq!((count.get(), is_below.get()), (2, false));
            drop(second);
            task.join().await;
            assert_eq!((count.get(), is_below.get()), (1, true));
            drop(third);
            assert_eq!(count.get(), 0);
        });
    }
}
