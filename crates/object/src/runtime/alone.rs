//! Checkpoints of a catalog, which has no catalog itself: they stand in its own stream.
//!
//! ```text
//!   stream of the catalog   r r r r r r  C1  r r r r r r r  C2  r r ►      r: a call      C: the state below some position before it
//!                           └─────┬────┘     ▲                             what C2's maker has trimmed: all below what C1 reflects
//!                                 ▼          │ whoever begins finds C1 and C2, takes the later one, and goes on with the calls from there
//! ```
//!
//! Nobody needs a lock or a condition for it. Whoever appends the 16th call since the last time, the 32nd and so on, appends what the calls below
//! some position come to, and trims what lies below the checkpoint before that one: there is always one of which everything from where it ends on is
//! there, whoever else does the same. Two are left, so that a program that lags a little finds its calls. (docs/protocol/checkpoints.md)

use std::any::TypeId;

use ithaca_log::client::{EntryKind, StreamPart};
use ithaca_log::pos::LogPos;

use super::slot::Slot;
use crate::checkpoint::Catalog;
use crate::checkpoint::chunk::{Chunk, Of};
use crate::error::ObjectError;
use crate::limits;
use crate::object::Object;
use crate::planted::PlantedBug;
use crate::view::View;

impl<O: Object> Slot<O> {
    /// Whether such an object has no catalog, because it is one.
    pub(super) fn is_alone() -> bool {
        TypeId::of::<O>() == TypeId::of::<Catalog>()
    }

    /// The view that was found to begin at, if one was: an empty one if not.
    ///
    /// Errors: `Forgotten` if that reflects more than `limit`.
    pub(super) fn begin_alone(&self, limit: LogPos) -> Result<View<O>, ObjectError> {
        let planted = self.runtime.options.planted;
        match self.found.take() {
            None => Ok(View::new(self.stream, planted)),
            Some(view) if view.upto() > limit => Err(self.forgotten(limit, view.upto())),
            Some(view) => Ok(view),
        }
    }

    /// Looks for a checkpoint in the stream that reflects more than `since`, first in a part of it, and keeps it to begin at. Gives whether there
    /// is one.
    pub(super) async fn find_alone(&self, part: &StreamPart, since: LogPos) -> Result<bool, ObjectError> {
        let mut found = self.latest(part, since);
        if found.is_none() {
            let end = self.runtime.tail_of(Some(self.stream)).await?.end();
            found = self.find_between(part.upto, end, since).await?;
        }
        let is_found = found.is_some();
        self.found.replace(found);
        Ok(is_found)
    }

    /// The last state above `since` that stands in the stream from `next` on, up to `end`, where it ended when that was asked for.
    pub(super) async fn find_between(
        &self,
        mut next: LogPos,
        mut end: LogPos,
        since: LogPos,
    ) -> Result<Option<View<O>>, ObjectError> {
        let (mut found, mut asked) = (None, 0);
        while next < end {
            let bytes = self.runtime.options.read_bytes;
            let more = self.runtime.client.read_stream(self.stream, next..end, bytes).await?;
            found = self.latest(&more, since).or(found);
            if more.upto > next {
                (next, asked) = (more.upto, 0);
            } else {
                end = end.min(self.runtime.tail_again(self.stream, &mut asked).await?.end());
            }
        }
        Ok(found)
    }

    /// The latest state above `since` that a part of the stream has.
    fn latest(&self, part: &StreamPart, since: LogPos) -> Option<View<O>> {
        let chunks = part.entries.iter().filter_map(|entry| Chunk::decode(&entry.data).ok());
        let own = chunks.filter(|chunk| chunk.of.object == self.stream && chunk.of.upto > since);
        let views = own.filter_map(|chunk| {
            View::<O>::restore(self.stream, &chunk.data, self.runtime.options.planted).ok()
        });
        views.max_by_key(View::upto)
    }

    /// Stores the state in the stream, and trims what nobody needs who begins at the one before it.
    pub(super) async fn shorten(&self) -> Result<(), ObjectError> {
        let (upto, data, before) = {
            let mut view = self.view.borrow_mut();
            let data = view.checkpoint().map_err(|error| self.failed(error))?;
            (view.upto(), data, view.passed_checkpoint())
        };
        if data.len() > limits::CHUNK_MAX_BYTES {
            return Err(ObjectError::TooLarge {
                object: self.backing.name.clone(),
                bytes: data.len() as u64,
            });
        }
        let of = Of { object: self.stream, id: self.runtime.env.random_u64(), upto };
        let entry = Chunk { of, number: 0, data }.encode();
        let placed = self.runtime.client.append_to(&[self.stream], entry).await?;
        let is_early = self.runtime.options.planted.is(PlantedBug::CatalogCutAtItself);
        let below = if is_early { Some(placed.pos) } else { before };
        let (mut next, end) = (LogPos(0), below.unwrap_or_default());
        while next < end {
            let bytes = self.runtime.options.read_bytes;
            let part = self.runtime.client.read_stream(self.stream, next..end, bytes).await?;
            let data = part.entries.iter().filter(|entry| entry.kind == EntryKind::Data);
            self.backing.trim_all(&data.map(|entry| entry.pos).collect::<Vec<_>>()).await?;
            next = part.upto;
        }
        Ok(())
    }
}
