//! Whose transaction is which: each thread has at most one, as in Isotope, and it ends with the thread.
//!
//! The system gives a thread's number to another one some time after it has ended. What tells them apart is when they were started:
//! so what a dead thread has left is never taken for a later one's.
//!
//! While the system does not say, as when it is short of descriptors, a thread that has a transaction is taken for the one that began it:
//! taken for another one it would be in none, not know it, and write for everybody what was to be done as a whole or not at all.

use std::collections::BTreeMap;

use super::limits::THREADS_MAX;

/// When the thread of a number was started; nothing if there is none. Or the system does not say.
type Started<E> = Result<Option<u64>, E>;

/// What a thread has.
struct Entry<T> {
    started: u64,
    held: T,
}

impl<T> Entry<T> {
    /// Whether it is that of a thread that was started then, as far as is known.
    fn is_of<E>(&self, started: &Started<E>) -> bool {
        started.as_ref().map_or(true, |started| *started == Some(self.started))
    }
}

/// Why a thread gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoEntry {
    /// There is no thread of this number, or it is not known which one has it.
    NoThread,
    /// It has one.
    Taken,
    /// So many have one that no more may.
    Full,
}

/// See the module.
pub(super) struct Threads<T> {
    entries: BTreeMap<u32, Entry<T>>,
}

impl<T> Default for Threads<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new() }
    }
}

impl<T> Threads<T> {
    /// What the thread has; `started` says when the one of this number was. What a dead one has left is dropped.
    pub(super) fn get<E>(&mut self, thread: u32, started: impl FnOnce() -> Started<E>) -> Option<&T> {
        let entry = self.entries.get(&thread)?;
        if !entry.is_of(&started()) {
            self.entries.remove(&thread);
        }
        self.entries.get(&thread).map(|entry| &entry.held)
    }

    /// Whether a thread that was `started` then may have one now. What a dead one of the same number has left is given back and is
    /// to be ended.
    pub(super) fn admit<E>(&mut self, thread: u32, started: &Started<E>) -> Result<Option<T>, NoEntry> {
        let left = match self.entries.get(&thread) {
            _ if matches!(started, Ok(None)) => return Err(NoEntry::NoThread),
            Some(entry) if entry.is_of(started) => return Err(NoEntry::Taken),
            None if started.is_err() => return Err(NoEntry::NoThread),
            Some(_) => self.remove(thread),
            None => None,
        };
        if self.entries.len() >= THREADS_MAX {
            return Err(NoEntry::Full);
        }
        Ok(left)
    }

    /// The thread has this from now on, which was [admitted](Self::admit).
    pub(super) fn insert(&mut self, thread: u32, started: u64, held: T) {
        let before = self.entries.insert(thread, Entry { started, held });
        assert!(before.is_none(), "a thread has one transaction");
    }

    /// Takes from a thread what it has.
    pub(super) fn remove(&mut self, thread: u32) -> Option<T> {
        self.entries.remove(&thread).map(|entry| entry.held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes from those that are not there any more what they had, with their numbers; `started` says when the thread of a number was.
    pub(super) fn take_dead<E>(&mut self, started: impl Fn(u32) -> Started<E>) -> Vec<(u32, T)> {
        let is_dead =
            |(thread, entry): (&u32, &Entry<T>)| (!entry.is_of(&started(*thread))).then_some(*thread);
        let dead: Vec<u32> = self.entries.iter().filter_map(is_dead).collect();
        dead.into_iter().filter_map(|thread| Some((thread, self.remove(thread)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(started: u64) -> Started<()> {
        Ok(Some(started))
    }

    #[test]
    fn what_a_thread_has_ends_with_it_and_is_not_another_ones_with_its_number() {
        let mut threads = Threads::default();
        assert_eq!(threads.admit(5, &at(100)), Ok(None));
        threads.insert(5, 100, "first");
        assert_eq!(threads.admit(5, &at(100)), Err(NoEntry::Taken));
        assert_eq!(threads.admit(5, &at(200)), Ok(Some("first")), "another thread, later");
        threads.insert(5, 200, "second");
        threads.insert(6, 150, "third");
        assert_eq!(threads.take_dead(|thread| if thread == 6 { at(150) } else { Ok(None) }), [(5, "second")]);
        assert_eq!(threads.get(5, || at(200)), None);
        assert_eq!(threads.get(6, || at(150)), Some(&"third"));
        assert_eq!(threads.take_dead(|_| at(151)), [(6, "third")], "its number was given again");
        threads.insert(6, 151, "fourth");
        assert_eq!(threads.get(6, || at(152)), None, "another thread asks");
        assert!(threads.is_empty());
    }

    #[test]
    fn a_thread_of_which_nothing_is_known_keeps_what_it_has_and_gets_nothing() {
        let mut threads = Threads::default();
        assert_eq!(threads.admit(5, &Err(())), Err(NoEntry::NoThread));
        assert_eq!(threads.admit(5, &at(100)), Ok(None));
        threads.insert(5, 100, "first");
        assert_eq!(threads.admit(5, &Err(())), Err(NoEntry::Taken));
        assert_eq!(threads.take_dead(|_| Err(())), []);
        assert_eq!(threads.get(5, || Err(())), Some(&"first"));
    }

    #[test]
    fn so_many_threads_have_one_and_no_more() {
        let mut threads = Threads::default();
        for thread in 1..=THREADS_MAX as u32 {
            assert_eq!(threads.admit(thread, &at(1)), Ok(None));
            threads.insert(thread, 1, ());
        }
        assert_eq!(threads.admit(u32::MAX, &at(1)), Err(NoEntry::Full));
        assert_eq!(threads.admit(u32::MAX, &Ok::<_, ()>(None)), Err(NoEntry::NoThread));
    }
}
