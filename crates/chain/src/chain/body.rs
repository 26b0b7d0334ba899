//! The cleaner's own segment, for copies that do not go to the tail.

use std::rc::Rc;

use super::Inner;
use super::clean::Unclean;
use super::owned::Copied;
use crate::core::{Batch, Core, Effect, Ticket};
use crate::error::ChainError;

impl Inner {
    /// Writes copies to the body segment; begins the next one if they do not fit. On return they are durable, but do not count
    /// before the segment is closed. Returns whether there was room.
    pub(super) async fn write_to_body(self: &Rc<Self>, batch: &Batch) -> Result<bool, Unclean> {
        if !self.core.borrow().fits_body(batch) {
            self.finish_body().await?;
            if !self.change_body(Core::begin_body).await? {
                return Ok(false);
            }
        }
        self.copies.borrow_mut().push_back(Copied::new(Ticket(0)));
        self.change_body(|core, effects| core.write_body(batch, effects)).await?;
        Ok(true)
    }

    /// Closes the body segment, if one is open, and gives back the victims that waited for it.
    pub(super) async fn finish_body(self: &Rc<Self>) -> Result<(), ChainError> {
        self.change_body(Core::close_body).await?;
        self.given_back().await;
        let copied = self.core.borrow().copied().to_vec();
        self.give_back_all(copied).await.map(drop)
    }

    /// Starts what `change` asks for, and waits until nothing is on the way to the body segment. Errors: the chain has stopped, and its
    /// drives are to be left alone, or something is on the way to the body segment for good.
    async fn change_body<T>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut Core, &mut Vec<Effect>) -> T,
    ) -> Result<T, ChainError> {
        if let Some(why) = self.core.borrow().stopped() {
            return Err(why.clone());
        }
        let mut effects = Vec::new();
        let result = change(&mut self.core.borrow_mut(), &mut effects);
        self.start(effects);
        let at_rest = self.changed.until(|| {
            let core = self.core.borrow();
            if let Some(why) = core.stopped() {
                return Some(Err(why.clone()));
            }
            core.is_body_at_rest().then_some(Ok(()))
        });
        at_rest.await?;
        Ok(result)
    }
}
