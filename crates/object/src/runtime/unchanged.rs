//! Reading one object by what another one says, without a transaction over both.
//!
//! ```text
//!   this object   ──────●──────────────────────────?───   seen here; it says which other object to read
//!   the other one ──────────────────────●──────────────   its state reflects everything below `upto`
//!                                           ▲ nothing was granted to this object since it was seen: it says the same at `upto`
//! ```
//!
//! That is enough for a linearizable read of both: the other one's state is the newest, and this one's is the same at that place. What
//! the sequencer says counts for the positions that were decided when it was asked, and for those below an entry that was granted in its
//! epoch or before: others may be granted again, after a change of epoch.

use ithaca_log::client::ClientError;
use ithaca_log::pos::LogPos;

use super::handle::Handle;
use super::tails::Tail;
use crate::access::Accessor;
use crate::error::ObjectError;
use crate::object::Object;
use crate::planted::PlantedBug;

impl<O: Object> Handle<O> {
    /// Reads the newest state of `other`, if this object has there still the state that reflected everything below `since`; `None` if it may
    /// have another one.
    pub(crate) async fn look_beside<P: Object, A: Accessor<P>>(
        &self,
        since: LogPos,
        other: &Handle<P>,
        accessor: A,
    ) -> Result<Option<A::Output>, ObjectError> {
        let (runtime, stream) = (self.slot.runtime.clone(), self.stream());
        // One question to the sequencer is about both.
        let asking = runtime.env.spawn({
            let runtime = runtime.clone();
            async move { runtime.tail_of(Some(stream)).await }
        });
        let (output, upto) = Box::pin(other.look_placed(accessor)).await?;
        if runtime.options.planted.is(PlantedBug::OtherStateAssumed) {
            return Ok(Some(output));
        }
        let is_same = |tail: &Tail| tail.bound.is_none_or(|bound| bound < since);
        let early = asking.join().await.unwrap_or(Err(ClientError::Closed))?;
        if !is_same(&early) {
            return Ok(None);
        }
        let decided = early.decided.max(runtime.decided.granted_by(early.epoch));
        if upto <= early.tail.min(decided) {
            return Ok(Some(output));
        }
        // Everything below `upto` is decided by now, and whoever says now where a stream ends knows of it.
        let late = runtime.tail_of(Some(stream)).await?;
        Ok(is_same(&late).then_some(output))
    }
}
