//! Watching an object: whoever waits for its changes is told of each of them, in order, instead of asking again and again.
//!
//! ```text
//!   records of the object      ──●────────●──●───────►  positions of the log
//!   next() gives snapshots       ▲ 18     ▲  ▲ 28       at(18) is the state right after the first of them
//! ```
//!
//! The sequencer says when the object's stream goes on; the view is then brought up to date as for a read, and its history tells which
//! records are new.

use std::rc::Rc;

use ithaca_log::client::StreamWatch;
use ithaca_log::pos::LogPos;

use super::Handle;
use super::slot::Slot;
use crate::error::ObjectError;
use crate::object::Object;

/// Tells of the changes of an object. Dropping it ends nothing but itself.
pub struct Watch<O: Object> {
    slot: Rc<Slot<O>>,
    stream: StreamWatch,
    /// What was told last.
    told: LogPos,
}

impl<O: Object> Handle<O> {
    /// Watches the object from a state on that is known: the one that reflects every position of the log below `since`; 0 for none.
    ///
    /// Errors: `OnlyLocal` if the state is at a node.
    pub fn watch(&self, since: LogPos) -> Result<Watch<O>, ObjectError> {
        if self.is_remote {
            return Err(self.only_here("a watch"));
        }
        let stream = self.slot.runtime.client.stream_watch(self.stream());
        Ok(Watch { slot: Rc::clone(&self.slot), stream, told: since })
    }
}

impl<O: Object> Watch<O> {
    /// Waits for the next change. Gives the snapshot that reflects it and no later one, which [`Handle::at`] reads; it is durable. A
    /// change of several objects is the same snapshot of each of them.
    ///
    /// No change is left out as long as the watch lags behind by less than the view's history, 16,384 records or 64 MiB of calls as a
    /// rule. What lies further back, or below the checkpoint that the view began with, is one change: the earliest snapshot that is
    /// still in memory.
    ///
    /// Errors: those of a read; `Stopped` after all changes that came before. One may call it again. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<LogPos, ObjectError> {
        self.told = self.changed().await?;
        Ok(self.told)
    }

    /// Waits for the next change, and looks at the state after it and after each later one that is known by then, in order: each with the
    /// snapshot that [`Watch::next`] would have given. To read at as many snapshots one after the other costs each of them what lies between it
    /// and the newest; this costs the changes themselves, however many have come together.
    ///
    /// Errors, and what dropping it does: those of [`Watch::next`]. `look` is not called again for what it has seen.
    pub async fn look_through(&mut self, mut look: impl FnMut(LogPos, &O)) -> Result<(), ObjectError> {
        self.changed().await?;
        let through = self.slot.view.borrow_mut().look_through(self.told, &mut look);
        self.told = through.map_err(|error| self.slot.failed(error))?.unwrap_or(self.told);
        Ok(())
    }

    /// Waits until the view has a change that was not told.
    async fn changed(&mut self) -> Result<LogPos, ObjectError> {
        // Of what the view has already nobody is asked.
        loop {
            if let Some(next) = self.next_in_view() {
                return Ok(next);
            }
            self.slot.sync().await?;
            if self.next_in_view().is_none() {
                self.slot.state()?;
                self.stream.changed().await?;
            }
        }
    }

    fn next_in_view(&self) -> Option<LogPos> {
        self.slot.view.borrow().next_snapshot(self.told)
    }
}
