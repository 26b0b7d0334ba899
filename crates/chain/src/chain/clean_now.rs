//! Cleaning when the owner says so, not when space runs short.

use std::rc::Rc;

use super::{Chain, Inner};
use crate::core::Cause;
use crate::error::ChainError;

impl Chain {
    /// Cleans up to `segments` of the closed segments, the oldest first, whether that gives room or not, and without rests: for
    /// the hours in which nobody else needs the drives. Returns how many came free; those that are damaged, or whose records
    /// do not fit into what is free, are passed by. On return the copies are durable.
    ///
    /// Ends early when the chain closes, which waits for it; goes on when it is dropped. Errors: the chain has stopped, or was closed.
    pub async fn clean(&self, segments: usize) -> Result<usize, ChainError> {
        let inner = Rc::clone(&self.inner);
        let task = self.inner.env.spawn(async move { inner.clean_oldest(segments).await });
        task.join().await.unwrap_or(Ok(0))
    }
}

impl Inner {
    async fn clean_oldest(self: Rc<Self>, segments: usize) -> Result<usize, ChainError> {
        // A chain that is closed waits for it: whoever opens the drives next may use the segments that are wiped here.
        let _busy = self.busy.one_more();
        let _turn = self.begin_cleaning().await;
        // What was being cleaned when it stopped is so for good.
        self.check_running()?;
        let oldest = self.core.borrow_mut().closed_by_age();
        let cleaned = |inner: &Self| inner.core.borrow().counters.segments_cleaned;
        let before = cleaned(&self);
        for (segment, lap) in oldest.into_iter().take(segments) {
            if self.is_closing.get() {
                break;
            }
            self.clean(segment, lap, Cause::Asked).await?;
        }
        // Victims whose copies went to the body come free with its end.
        self.finish_body().await?;
        Ok((cleaned(&self) - before) as usize)
    }
}
