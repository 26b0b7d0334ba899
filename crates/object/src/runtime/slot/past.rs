//! The state of an open object as of a position: by the view itself where it goes back so far, else by a view that is made by replay.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use ithaca_log::client::ErrorClass;
use ithaca_log::pos::LogPos;

use super::super::tails::Tail;
use super::{Later, Slot};
use crate::error::ObjectError;
use crate::object::Object;
use crate::record::Call;
use crate::view::{Look, SnapshotError, View};

/// Views as of old positions that are kept.
const PAST_MAX_COUNT: usize = 2;

/// A view as of an old position.
pub(super) struct Past<O: Object> {
    snapshot: LogPos,
    view: RefCell<View<O>>,
}

impl<O: Object> Past<O> {
    fn is(&self, snapshot: LogPos) -> bool {
        self.snapshot == snapshot && !self.view.borrow().is_broken()
    }
}

impl<O: Object> Slot<O> {
    /// Looks at the state that reflects every position below `snapshot`, with `own` calls on top of it.
    pub(in crate::runtime) async fn look_at(
        &self,
        snapshot: LogPos,
        own: &[Call],
        look: &mut Look<'_, O>,
    ) -> Result<(), ObjectError> {
        if self.upto() < snapshot {
            let is_decided = self.runtime.decide(snapshot).await?;
            let tail = self.runtime.tail_of(Some(self.stream)).await?;
            if tail.tail < snapshot || !is_decided {
                let (object, tail) = (self.backing.name.clone(), tail.tail);
                return Err(ObjectError::NotYet { object, snapshot, tail });
            }
            // What lies above the snapshot is not needed for it.
            let bound = tail.bound.map(|bound| bound.min(LogPos(snapshot.0.saturating_sub(1))));
            self.reach(Tail { tail: snapshot, bound, decided: snapshot, ..tail }).await?;
        }
        let covers = self.view.borrow().covers(snapshot);
        match covers {
            Err(SnapshotError::BelowFloor { .. }) => {
                let past = self.past(snapshot).await?;
                let mut view = past.view.borrow_mut();
                view.look_at(snapshot, own, look).map_err(|error| self.failed(error))
            }
            _ => self.look_here(snapshot, own, look),
        }
    }

    /// Whether the view itself can be read as of `snapshot`, as it is now.
    pub(in crate::runtime) fn can_read_at(&self, snapshot: LogPos) -> bool {
        self.view.borrow().covers(snapshot).is_ok()
    }

    /// Looks at the view itself as of `snapshot`, with `own` calls on top of it.
    pub(in crate::runtime) fn look_here(
        &self,
        snapshot: LogPos,
        own: &[Call],
        look: &mut Look<'_, O>,
    ) -> Result<(), ObjectError> {
        let _whole = Whole(self);
        let mut view = self.view.borrow_mut();
        view.look_at(snapshot, own, look).map_err(|error| self.failed(error))
    }

    /// What the last of some calls gives back that are made on the state as of `snapshot`.
    pub(in crate::runtime) async fn output_at(
        &self,
        snapshot: LogPos,
        calls: &[Call],
    ) -> Result<Option<Box<dyn Any>>, ObjectError> {
        let mut output = None;
        self.look_at(snapshot, calls, &mut |_, last| output = last).await?;
        Ok(output)
    }

    pub(in crate::runtime) fn failed(&self, error: SnapshotError) -> ObjectError {
        let object = self.backing.name.clone();
        match error {
            SnapshotError::Stopped(fault) => self.stopped(fault),
            SnapshotError::Call(error) => error.into(),
            SnapshotError::AboveView { snapshot, upto } => {
                ObjectError::NotYet { object, snapshot, tail: upto }
            }
            SnapshotError::BelowFloor { snapshot, floor } => {
                ObjectError::NotYet { object, snapshot, tail: floor }
            }
        }
    }

    /// A view as of a position that the view itself does not go back to: made by replay, and kept for a while.
    fn past(&self, snapshot: LogPos) -> Later<'_, Result<Rc<Past<O>>, ObjectError>> {
        Box::pin(self.replayed(snapshot))
    }

    /// One is made at a time: each is as large as the state.
    async fn replayed(&self, snapshot: LogPos) -> Result<Rc<Past<O>>, ObjectError> {
        loop {
            if let Some(past) = self.past.borrow().iter().find(|past| past.is(snapshot)) {
                return Ok(Rc::clone(past));
            }
            let ticket = self.replayed.ticket();
            if !self.is_replaying.replace(true) {
                let replaying = Replaying(self);
                let past = self.replay(snapshot).await;
                if let Err(error @ ObjectError::Log(_)) = &past
                    && error.class() == ErrorClass::Unavailable
                {
                    self.not_replayed.replace(Some((ticket, error.clone())));
                }
                drop(replaying);
                return past;
            }
            self.replayed.after(ticket).await;
            // Where the log does not answer, each in turn would wait until its deadline. What is wrong with a position is for whoever reads it.
            let failed = self.not_replayed.borrow().clone();
            if let Some((_, error)) = failed.filter(|(rings, _)| *rings == ticket) {
                return Err(error);
            }
        }
    }

    async fn replay(&self, snapshot: LogPos) -> Result<Rc<Past<O>>, ObjectError> {
        let mut view = self.begin_view(snapshot, None).await?;
        let mut gap = None;
        while view.upto() < snapshot && view.fault().is_none() {
            let Some(part) = self.piece(view.upto(), snapshot, snapshot, &mut gap).await? else {
                view = self.begin_view(snapshot, None).await?;
                continue;
            };
            for entry in &part.entries {
                view.take(entry.pos, &entry.data);
            }
            view.advance(part.upto);
        }
        let past = Rc::new(Past { snapshot, view: RefCell::new(view) });
        let mut kept = self.past.borrow_mut();
        kept.push_back(Rc::clone(&past));
        if kept.len() > PAST_MAX_COUNT {
            kept.pop_front();
        }
        Ok(past)
    }
}

/// Sees to it that a view in which a call of a transaction has panicked is made again: that call is in no log.
struct Whole<'s, O: Object>(&'s Slot<O>);

impl<O: Object> Drop for Whole<'_, O> {
    fn drop(&mut self) {
        let is_broken = {
            let view = self.0.view.borrow();
            view.is_broken() && view.fault().is_none()
        };
        if is_broken {
            self.0.begin_anew();
        }
    }
}

/// A view as of an old position that is being made: dropped, it lets the next begin.
struct Replaying<'s, O: Object>(&'s Slot<O>);

impl<O: Object> Drop for Replaying<'_, O> {
    fn drop(&mut self) {
        self.0.is_replaying.set(false);
        self.0.replayed.ring();
    }
}
