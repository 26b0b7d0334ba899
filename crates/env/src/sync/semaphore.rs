//! So much of something for everybody together. Whoever wants more than is left waits for its turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::oneshot;

/// Gives leave to hold so much of something together, in the order in which it is asked for. Who wants more than there is waits until
/// nobody holds anything, and gets it.
#[derive(Clone)]
pub struct Semaphore {
    inner: Rc<Inner>,
}

struct Inner {
    limit: usize,
    held: Cell<usize>,
    waiting: RefCell<VecDeque<(usize, oneshot::Sender<Permit>)>>,
}

/// Leave to hold so much, until this is dropped.
pub struct Permit {
    inner: Rc<Inner>,
    count: usize,
}

impl Semaphore {
    /// For `limit` together.
    pub fn new(limit: usize) -> Self {
        let inner = Inner { limit, held: Cell::new(0), waiting: RefCell::default() };
        Self { inner: Rc::new(inner) }
    }

    /// How much is held.
    pub fn held(&self) -> usize {
        self.inner.held.get()
    }

    /// Leave to hold `count`, if that takes no waiting: there is room, and nobody waits for any.
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        let is_free = self.inner.waiting.borrow().is_empty() && self.inner.has_room(count);
        is_free.then(|| Permit::new(&self.inner, count))
    }

    /// Waits for leave to hold `count`. Dropping the future gives the turn up.
    pub async fn acquire(&self, count: usize) -> Permit {
        if let Some(permit) = self.try_acquire(count) {
            return permit;
        }
        let (told, turn) = oneshot::channel();
        self.inner.waiting.borrow_mut().push_back((count, told));
        // Dropped after `turn`: whoever comes next may have room although this one had none.
        let _next = Next { inner: &self.inner };
        turn.await.expect("who waits is kept until it has its turn")
    }
}

impl Permit {
    fn new(inner: &Rc<Inner>, count: usize) -> Self {
        inner.held.set(inner.held.get() + count);
        Self { inner: Rc::clone(inner), count }
    }

    /// How much it is for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Makes it one for `count`, less or more. Nobody waits for that, so that whoever holds something goes on: false, and nothing is
    /// changed, if it is more than is left.
    pub fn resize(&mut self, count: usize) -> bool {
        let (before, others) = (self.count, self.inner.held.get() - self.count);
        if count > before && others > 0 && others + count > self.inner.limit {
            return false;
        }
        self.count = count;
        self.inner.held.set(others + count);
        if count < before {
            self.inner.serve();
        }
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.inner.held.set(self.inner.held.get() - self.count);
        self.inner.serve();
    }
}

impl Inner {
    fn has_room(&self, count: usize) -> bool {
        self.held.get() == 0 || self.held.get() + count <= self.limit
    }

    /// Gives those their turn that come first, as far as there is room.
    fn serve(self: &Rc<Self>) {
        while let Some((count, told)) = self.first_in_turn() {
            told.send(Permit::new(self, count));
        }
    }

    fn first_in_turn(&self) -> Option<(usize, oneshot::Sender<Permit>)> {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.pop_front_if(|(_, told)| told.is_abandoned()).is_some() {}
        waiting.pop_front_if(|(count, _)| self.has_room(*count))
    }
}

/// Somebody waits no more: others may have their turn.
struct Next<'a> {
    inner: &'a Rc<Inner>,
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.inner.serve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;
    use crate::sim::Sim;
    use crate::task::TaskHandle;

    /// Runs `test` with a semaphore for ten, and where those who ask note that they have got it.
    fn run(test: impl AsyncFnOnce(World) + 'static) {
        let sim = Sim::new(1);
        let process = sim.process("node", [10, 0, 0, 1].into());
        let env = sim.env(process);
        let world = World { env, semaphore: Semaphore::new(10), given: Rc::default() };
        sim.block_on(process, async move { test(world).await });
    }

    struct World {
        env: Env,
        semaphore: Semaphore,
        given: Rc<RefCell<Vec<(usize, Permit)>>>,
    }

    impl World {
        async fn ask(&self, count: usize) -> TaskHandle<()> {
            let (semaphore, given) = (self.semaphore.clone(), Rc::clone(&self.given));
            let task = self.env.spawn(async move {
                let permit = semaphore.acquire(count).await;
                given.borrow_mut().push((count, permit));
            });
            self.env.yield_now().await;
            task
        }

        /// Gives back the oldest permit, and says for how much each is that is out then.
        async fn give_back(&self) -> Vec<usize> {
            let oldest = self.given.borrow_mut().remove(0);
            drop(oldest);
            self.out().await
        }

        async fn out(&self) -> Vec<usize> {
            self.env.yield_now().await;
            let out: Vec<usize> = self.given.borrow().iter().map(|(count, _)| *count).collect();
            assert_eq!(self.semaphore.held(), out.iter().sum::<usize>());
            out
        }
    }

    #[test]
    fn a_large_one_is_not_overtaken_by_small_ones_that_would_have_room() {
        run(async |world| {
            for count in [4, 4, 7, 1, 1] {
                world.ask(count).await;
            }
            assert_eq!(world.out().await, [4, 4]);
            assert_eq!(world.give_back().await, [4], "seven have no room yet");
            assert_eq!(world.give_back().await, [7, 1, 1]);
            assert_eq!(world.give_back().await, [1, 1]);
        });
    }

    #[test]
    fn what_is_more_than_there_is_gets_it_alone() {
        run(async |world| {
            for count in [1, 11, 1] {
                world.ask(count).await;
            }
            assert_eq!(world.out().await, [1]);
            assert_eq!(world.give_back().await, [11]);
            assert_eq!(world.give_back().await, [1]);
        });
    }

    #[test]
    fn who_stops_waiting_gives_its_turn_up_and_what_it_was_given_unseen() {
        run(async |world| {
            world.ask(6).await;
            let large = world.ask(7).await;
            world.ask(4).await;
            assert_eq!(world.out().await, [6]);
            large.abort();
            assert_eq!(world.out().await, [6, 4], "nobody waits before it any more");
            let unseen = world.ask(8).await;
            world.given.take();
            assert_eq!(world.semaphore.held(), 8);
            unseen.abort();
            assert_eq!(world.out().await, []);
        });
    }

    #[test]
    fn who_does_not_wait_overtakes_nobody_who_does() {
        run(async |world| {
            let held = world.semaphore.acquire(6).await;
            assert!(world.semaphore.try_acquire(5).is_none());
            assert!(world.semaphore.try_acquire(4).is_some_and(|permit| permit.count() == 4));
            world.ask(7).await;
            assert!(world.semaphore.try_acquire(1).is_none(), "seven wait");
            drop(held);
            assert_eq!(world.out().await, [7]);
            assert!(world.semaphore.try_acquire(3).is_some());
        });
    }

    #[test]
    fn a_permit_grows_only_into_what_is_left_and_one_that_shrinks_lets_others_in() {
        run(async |world| {
            let mut first = world.semaphore.acquire(2).await;
            let mut second = world.semaphore.acquire(4).await;
            assert!(first.resize(6), "six and four are ten");
            assert!(!first.resize(7) && first.count() == 6);
            assert!(!second.resize(5) && second.resize(4));
            world.ask(3).await;
            assert_eq!(world.given.borrow().len(), 0);
            assert!(second.resize(1));
            world.env.yield_now().await;
            assert_eq!((world.given.borrow().len(), world.semaphore.held()), (1, 10));
            world.given.borrow_mut().clear();
            drop(second);
            assert!(first.resize(25), "nobody else holds anything");
        });
    }
}
