//! Transactions that were released: nobody has them until somebody takes them over by their handle, or their time is up.
//!
//! A handle is given once and found once. Who asks with another user's handle hears what somebody hears who has made one up.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use ithaca_env::Time;

use super::Inner;
use super::tx::TxHandle;
use crate::error::TxError;
use crate::limits::RELEASED_MAX;
use crate::options::Durability;
use crate::planted::{Planted, PlantedBug};
use crate::tx::TxId;

/// Who may go on with a transaction that was released, besides that it takes the handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heir {
    /// Whoever knows the handle, also where it is not known who asks.
    #[default]
    Anyone,
    /// Who runs as this user.
    User(u32),
}

/// Who takes a transaction over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taker {
    /// Whom it runs as, if that is known.
    pub user: Option<u32>,
    /// Whose the transaction is from now on, as in [`TxOptions::client`](crate::TxOptions::client).
    pub client: u64,
}

/// What is known of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: TxId,
    pub(super) durability: Durability,
    pub(super) heir: Heir,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Released {
    entries: BTreeMap<TxHandle, (Time, Entry)>,
    by_time: BTreeSet<(Time, TxHandle)>,
    /// Somebody waits for the time of the first.
    is_watched: bool,
}

impl Released {
    fn add(&mut self, handle: TxHandle, until: Time, entry: Entry) -> Result<(), TxError> {
        if self.entries.len() >= RELEASED_MAX {
            return Err(TxError::TooManyReleased { max: RELEASED_MAX });
        }
        let before = self.entries.insert(handle, (until, entry));
        assert!(before.is_none(), "a handle names one transaction");
        self.by_time.insert((until, handle));
        Ok(())
    }

    /// What this one may take over. It stays until [`take`](Self::take).
    fn find(&self, handle: TxHandle, user: Option<u32>, planted: Planted) -> Option<Entry> {
        let (_, entry) = self.entries.get(&handle)?;
        let is_heir = match entry.heir {
            Heir::Anyone => true,
            Heir::User(heir) => user == Some(heir) || planted.is(PlantedBug::HandleOfAnyUser),
        };
        is_heir.then_some(*entry)
    }

    fn take(&mut self, handle: TxHandle) -> Option<Entry> {
        let (until, entry) = self.entries.remove(&handle)?;
        self.by_time.remove(&(until, handle));
        Some(entry)
    }

    /// One whose time is up.
    fn take_late(&mut self, now: Time) -> Option<Entry> {
        let (until, handle) = *self.by_time.first()?;
        if until > now { None } else { self.take(handle) }
    }
}

impl Inner {
    /// Keeps a transaction until it is taken over or its time is up. Errors: `TooManyReleased`.
    pub(super) fn release(self: &Rc<Self>, handle: TxHandle, entry: Entry) -> Result<(), TxError> {
        let mut released = self.released.borrow_mut();
        released.add(handle, self.env.now() + self.settings.released_max_age, entry)?;
        if !std::mem::replace(&mut released.is_watched, true) {
            self.env.spawn(watch(Rc::downgrade(self)));
        }
        Ok(())
    }

    /// Ends transactions whose time is up. Returns when that of the next one is; if there is none, nobody watches from now on.
    fn end_late(&self) -> Option<Time> {
        let now = self.env.now();
        let mut released = self.released.borrow_mut();
        while let Some(late) = released.take_late(now) {
            self.transactions.borrow_mut().drop(late.id);
        }
        let next = released.by_time.first().map(|&(until, _)| until);
        released.is_watched = next.is_some();
        drop(released);
        self.catch_up();
        next
    }

    /// Gives a transaction to who asks for it. Errors: `NoSuchHandle`; `TooMany`: then it stays as it was.
    pub(super) fn take_over(&self, handle: TxHandle, taker: Taker) -> Result<Entry, TxError> {
        let mut released = self.released.borrow_mut();
        let found = released.find(handle, taker.user, self.settings.planted).ok_or(TxError::NoSuchHandle)?;
        self.transactions.borrow_mut().hand_over(found.id, taker.client)?;
        released.take(handle);
        Ok(found)
    }
}

/// Ends transactions whose time is up; itself when none is left.
async fn watch(inner: Weak<Inner>) {
    loop {
        let Some(volume) = inner.upgrade() else { return };
        let next = volume.end_late();
        let env = volume.env.clone();
        drop(volume);
        match next {
            Some(next) => env.sleep_until(next).await,
            None => return,
        }
    }
}
