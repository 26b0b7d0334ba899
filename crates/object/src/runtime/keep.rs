//! Making checkpoints, forgetting, and holding: what is done about an object's past.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::task::gather;
use ithaca_log::client::{EntryKind, Placed};
use ithaca_log::pos::{LogPos, StreamPos};

use super::backing::{Backing, Newest};
use super::restore::Named;
use super::slot::{Later, Slot};
use super::{Handle, Runtime};
use crate::checkpoint::catalog::{Begin, Clean, Forget, HoldFrom, Keep, LetGo, Store};
use crate::checkpoint::chunk::{Chunk, Directory, Of, Unusable};
use crate::checkpoint::{Begun, Catalog, Forgot, Hold, HoldRefused, Last, Policy, Stored, chunks_of};
use crate::error::ObjectError;
use crate::limits;
use crate::object::{Object, dropped};
use crate::planted::{Planted, PlantedBug};
use crate::view::View;

/// Directories that are cleaned away in one go.
const CLEANED_MAX_COUNT: usize = 64;

/// What was forgotten of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// States below this position are gone; this one and all later ones can be read.
    pub earliest: LogPos,
    /// The pin or lease that has kept some of what was to be forgotten, if one has.
    pub held_by: Option<String>,
}

impl<O: Object> Handle<O> {
    /// Makes a checkpoint of the newest state and gives the position below which it reflects everything. On return it is on
    /// stable storage, and whoever opens this object needs nothing of the log below that position but what the state points to, as a
    /// [`Store`](crate::store::Store)'s does. If nothing was called since the last one that one serves. What is older than the object is to keep
    /// ([`keep_history`](Self::keep_history)) is forgotten. Dropped, it may leave chunks that the next one trims.
    ///
    /// Errors: `TooLarge`; `Call` if the state cannot be encoded, or if other programs have written fields that this one does not know: they
    /// would be missing in it for everybody, so one is to be made by a program that knows them; those of any call.
    pub async fn checkpoint(&self) -> Result<LogPos, ObjectError> {
        self.slot.sync().await?;
        let upto = self.slot.make(None).await?;
        self.slot.backing.store_catalog().await?;
        Ok(upto)
    }

    /// The same of what is left of an object that has lost calls ([`Trimmed`](ObjectError::Trimmed)) or checkpoints ([`Unusable`](ObjectError::Unusable)):
    /// it is as if what is gone had never been called, and from then on everybody has it so, programs too that have it in memory as it was: a
    /// [`checkpoint`](Self::checkpoint) of one of these has everything, and is better. States of the past between the loss and this checkpoint are
    /// refused still. Dropped in the middle it may leave the object refused, until it is called again.
    ///
    /// Errors: those of `checkpoint`; `Stopped` if a call that is left cannot be applied without those that are gone.
    pub async fn checkpoint_what_is_left(&self) -> Result<LogPos, ObjectError> {
        let catalog = self.slot.backing.kept()?.slot;
        if matches!(catalog.sync().await, Err(ObjectError::Trimmed { .. })) {
            catalog.what_is_left().await?.shorten().await?;
        }
        match self.checkpoint().await {
            Err(ObjectError::Trimmed { .. } | ObjectError::Unusable { .. } | ObjectError::Stopped { .. }) => {
            }
            made => return made,
        }
        // That it can be made is found out before anything is changed.
        self.slot.what_is_left().await?;
        let stream = self.slot.stream;
        self.slot.runtime.client.append_to(&[stream], Chunk::break_of(stream).encode()).await?;
        let left = self.slot.what_is_left().await?;
        let upto = left.write().await?;
        left.backing.store_catalog().await?;
        Ok(upto)
    }

    /// The positions of the checkpoints that there are, the oldest first: each reflects everything below its position.
    pub async fn checkpoints(&self) -> Result<Vec<LogPos>, ObjectError> {
        self.slot.backing.uptos().await
    }

    /// Gives up, for ever, the calls below the newest checkpoint that reflects nothing at or above `before`, as far as no pin
    /// and no lease needs them: the state at `before` and all later ones can still be read. On return that is durable, and what no other
    /// object needs is trimmed. Without such a checkpoint nothing is forgotten.
    ///
    /// Errors: `Unusable` if the checkpoint cannot be read back, and then nothing is trimmed; those of any call. After an error
    /// what was decided to be forgotten is, and the next call trims it.
    pub async fn forget(&self, before: LogPos) -> Result<Forgotten, ObjectError> {
        self.slot.forget(before).await
    }

    /// The same below the newest checkpoint that was made before the last `span`: every state of that time can still be read. By the wall
    /// clocks of whoever made it and of this program, which may be 5 seconds apart. [`keep_history`](Self::keep_history) and
    /// [`Policy::history`] have that done by itself.
    ///
    /// Errors: those of [`forget`](Self::forget).
    pub async fn forget_older(&self, span: Duration) -> Result<Forgotten, ObjectError> {
        let before = self.slot.backing.older(span).await?;
        self.slot.forget(before.unwrap_or(LogPos(0))).await
    }

    /// Has every program and node that makes a checkpoint of this object, from now on, forget what [`forget_older`](Self::forget_older)
    /// does with this span, whatever its own [`Policy::history`] says; `None` leaves that to each. On return it is on stable storage.
    ///
    /// Errors: those of any call. A program of an earlier version, which does not know this setting, can make no checkpoint of the object and begin
    /// at none any more.
    pub async fn keep_history(&self, history: Option<Duration>) -> Result<(), ObjectError> {
        self.slot.backing.keep_history(history).await
    }

    /// The span that [`keep_history`](Self::keep_history) was told last.
    pub async fn history(&self) -> Result<Option<Duration>, ObjectError> {
        self.slot.backing.history().await
    }

    /// Keeps the state that reflects every position below `pos`, and all later ones, from being forgotten, until
    /// [`let_go`](Self::let_go). A pin or lease of the same name takes its place.
    ///
    /// Errors: `Hold` if it is forgotten already, the name is empty or too long, or too much is held.
    pub async fn pin(&self, name: &str, pos: LogPos) -> Result<(), ObjectError> {
        self.slot.backing.hold(name, Hold { pos: pos.0, until_ms: None }).await
    }

    /// The same for `span` from now on, for a reader that may end without a word. It is renewed by the same name. It ends by the
    /// wall clock of whoever forgets, which may be 5 seconds ahead.
    pub async fn lease(&self, name: &str, pos: LogPos, span: Duration) -> Result<(), ObjectError> {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let until = self.slot.runtime.env.wall_clock_ms().saturating_add(span_ms);
        self.slot.backing.hold(name, Hold { pos: pos.0, until_ms: Some(until) }).await
    }

    /// Ends a pin or a lease; gives whether there was one.
    pub async fn let_go(&self, name: &str) -> Result<bool, ObjectError> {
        self.slot.backing.let_go(name).await
    }

    /// Looks at the state as far as it is in memory; asks nobody.
    pub(crate) fn in_memory<T>(&self, look: impl FnOnce(&O) -> T) -> Result<T, ObjectError> {
        self.slot.newest(|state, _| look(state))
    }
}

impl Runtime {
    /// A random number.
    pub(crate) fn draw(&self) -> u64 {
        self.inner.env.random_u64()
    }
}

/// A checkpoint that stands in the log: its chunks and their directory, or one chunk alone.
struct Written {
    chunks: Vec<Placed>,
    named: Placed,
}

impl Written {
    fn all(&self) -> impl Iterator<Item = &Placed> {
        self.chunks.iter().chain([&self.named])
    }

    /// Everything that was written, in order.
    fn positions(&self) -> Vec<LogPos> {
        self.all().map(|placed| placed.pos).collect()
    }

    /// Whether nobody else's chunk stands between them.
    fn is_in_a_row(&self) -> bool {
        let all: Vec<&Placed> = self.all().collect();
        all.windows(2).all(|two| Self::before(two[1]) == Some(two[0].pos))
    }

    /// Nothing of the stream stands between this position and the first of them.
    fn previous(&self) -> Option<LogPos> {
        self.all().next().and_then(Self::before)
    }

    fn before(placed: &Placed) -> Option<LogPos> {
        placed.places.first()?.end_before().bound()
    }
}

/// Below which position an object's calls can be released where `state`, of a checkpoint at `earliest`, is the earliest that can be read.
/// Later states point to no entry below it that this one does not point to.
fn released_below<O: Object>(state: &O, earliest: LogPos, planted: Planted) -> LogPos {
    match state.needs_from() {
        Some(needed) if !planted.is(PlantedBug::ForgetIgnoresValues) => earliest.min(needed),
        _ => earliest,
    }
}

impl<O: Object> Slot<O> {
    /// Has a checkpoint made if it is time for one, by the counts of this view.
    pub(super) fn consider(&self) {
        let is_author = self.is_author.take();
        if self.is_making.get() {
            return;
        }
        if Self::is_alone() {
            if is_author {
                self.begin_making(async |slot| slot.shorten().await);
            }
            return;
        }
        let now = self.begun();
        let last = self.view.borrow().due_after(self.reviewed.get());
        let policy = self.runtime.options.checkpoints;
        if !policy.is_due(now, &last, is_author) || self.view.borrow().fault().is_some() {
            return;
        }
        self.reviewed.set(Last { at: now, ..last });
        if self.backing.has_catalog() {
            self.begin_making(async move |slot| slot.make(Some((policy, is_author))).await.map(drop));
        }
    }

    /// Has a checkpoint made in the background, by this program alone.
    fn begin_making(&self, make: impl AsyncFnOnce(Rc<Self>) -> Result<(), ObjectError> + 'static) {
        let Some(slot) = self.me.upgrade() else { return };
        slot.is_making.set(true);
        self.runtime.env.spawn(async move {
            // It is tried again after as many calls; what was left is trimmed by whoever makes the next one.
            match make(Rc::clone(&slot)).await {
                // As a rule it will be the same the next time.
                Err(error @ ObjectError::Call(_)) if !slot.has_warned.replace(true) => {
                    tracing::warn!(object = slot.backing.name, %error, "no checkpoint was made: programs read all calls");
                }
                Err(error) => tracing::debug!(object = slot.backing.name, %error, "no checkpoint was made"),
                Ok(()) => {}
            }
            slot.is_making.set(false);
        });
    }

    /// How far the view is.
    fn begun(&self) -> Begun {
        let view = self.view.borrow();
        let (count, bytes) = view.progress();
        Begun { upto: view.upto().0, count, bytes }
    }

    /// Makes a checkpoint of the view as it is: if one is due, where there is a policy, and nobody else has begun it. With the policy comes
    /// whether this program is the one to think of it first. Then forgets what is older than is to be kept.
    pub(super) async fn make(self: &Rc<Self>, policy: Option<(Policy, bool)>) -> Result<LogPos, ObjectError> {
        let newest = self.backing.newest().await?;
        let history = newest.history.or(policy.and_then(|(policy, _)| policy.history));
        let upto = self.make_after(newest, policy).await?;
        if let Some(span) = history
            && let Some(before) = self.backing.older(span).await?
        {
            self.forget(before).await?;
        }
        Ok(upto)
    }

    /// The same after a look at the catalog, and forgets nothing.
    async fn make_after(
        self: &Rc<Self>,
        Newest { stored: newest, last, .. }: Newest,
        policy: Option<(Policy, bool)>,
    ) -> Result<LogPos, ObjectError> {
        let others = newest.as_ref().filter(|(_, stored)| self.made.get() != Some(stored.id));
        if let Some((upto, stored)) = others {
            self.view.borrow_mut().compare_with_checkpoint(*upto, stored.digest);
        }
        self.state()?;
        let begun = self.begun();
        if let Some((upto, _)) = newest.as_ref().filter(|(_, stored)| begun.count <= stored.count) {
            return Ok(*upto);
        }
        // Nor is it the one that is told to go on: then nobody else would be, before another is due. What comes with fields that it does not
        // know while it is being told still does that, once.
        if self.view.borrow().drops() {
            return Err(dropped("checkpoint").into());
        }
        if let Some((policy, is_author)) = policy {
            let is_due = policy.is_due(begun, &self.view.borrow().due_after(last), is_author);
            // Whoever looked at the same moment may be told to go on; then nobody else is.
            let calls = begun.count.saturating_sub(last.at.count);
            if !is_due || !self.backing.begin_checkpoint(Begin { begun, calls, bytes: policy.bytes }).await? {
                self.reviewed.set(last);
                return Ok(newest.map_or(LogPos(0), |(upto, _)| upto));
            }
        }
        self.write().await
    }

    /// Writes the state as it is, and tells the catalog.
    async fn write(&self) -> Result<LogPos, ObjectError> {
        let id = self.runtime.env.random_u64();
        let (upto, all, stored) = {
            let mut view = self.view.borrow_mut();
            let all = view.checkpoint().map_err(|error| self.failed(error))?;
            let digest = view.digest_to_compare();
            let ((count, bytes), len) = (view.progress(), all.len() as u64);
            let made_ms = self.runtime.env.wall_clock_ms();
            (view.upto(), all, Stored { id, directory: 0, len, count, bytes, digest, made_ms })
        };
        let at = Begun { upto: upto.0, count: stored.count, bytes: stored.bytes };
        let len = stored.len;
        let refused = self.backing.store(upto, all, stored).await?;
        self.reviewed.set(Last { at, len });
        self.made.set(Some(id));
        self.backing.trim_all(&refused).await?;
        self.backing.clean().await?;
        Ok(upto)
    }

    /// Has the catalog forget what it may below `before`, and trims that.
    async fn forget(&self, before: LogPos) -> Result<Forgotten, ObjectError> {
        let newest = self.backing.candidates(before, false).await?.stored.into_iter().next();
        // What was decided to be forgotten is, also if what takes its place cannot be read.
        let mut loaded = None;
        if let Some((upto, stored)) = newest {
            match self.load(upto, &stored).await? {
                Err(reason) if self.backing.is_stored(upto, &stored).await? => {
                    return Err(ObjectError::Unusable { object: self.backing.name.clone(), upto, reason });
                }
                // Somebody has forgotten more meanwhile.
                found => loaded = found.ok(),
            }
        }
        let Forgot { below, held_by } = self.backing.forget(before).await?;
        let earliest = LogPos(below);
        if earliest > LogPos(0) {
            self.trim_below(earliest, loaded).await?;
        }
        self.backing.clean().await?;
        Ok(Forgotten { earliest, held_by })
    }

    /// Releases the calls below `earliest`, which the catalog has forgotten, if the checkpoint that takes their place can be read; but not
    /// those that its state points to, nor what comes after them.
    async fn trim_below(&self, earliest: LogPos, loaded: Option<View<O>>) -> Result<(), ObjectError> {
        let loaded = match loaded.filter(|view| view.upto() == earliest) {
            Some(view) => Ok(view),
            None => match self.backing.stored_at(earliest).await? {
                Some(stored) => self.load(earliest, &stored).await?,
                None => Err(Unusable::State("it is not in the catalog".to_owned())),
            },
        };
        let view = match loaded {
            Ok(view) => view,
            // Somebody has forgotten more meanwhile, and trims that.
            Err(_) if self.backing.forgotten().await? > earliest => return Ok(()),
            Err(reason) => {
                return Err(ObjectError::Unusable {
                    object: self.backing.name.clone(),
                    upto: earliest,
                    reason,
                });
            }
        };
        let below = match view.state() {
            Ok(state) => released_below(state, earliest, self.runtime.options.planted),
            Err(fault) => return Err(self.stopped(fault)),
        };
        self.backing.release_below(below).await
    }
}

impl Backing {
    /// Whether a catalog can be asked.
    fn has_catalog(&self) -> bool {
        self.kept().is_ok()
    }

    /// The positions of the checkpoints, the oldest first.
    fn uptos(&self) -> Later<'_, Result<Vec<LogPos>, ObjectError>> {
        Box::pin(self.look(|catalog| catalog.stored().keys().copied().map(LogPos).collect()))
    }

    /// The checkpoint at `upto`, if the catalog has it.
    fn stored_at(&self, upto: LogPos) -> Later<'_, Result<Option<Stored>, ObjectError>> {
        Box::pin(self.look(move |catalog| catalog.stored().get(&upto.0).cloned()))
    }

    /// Whether the catalog has a checkpoint still.
    pub(super) fn is_stored<'b>(
        &'b self,
        upto: LogPos,
        stored: &'b Stored,
    ) -> Later<'b, Result<bool, ObjectError>> {
        Box::pin(async move { Ok(self.stored_at(upto).await?.is_some_and(|now| now.id == stored.id)) })
    }

    /// The newest checkpoint that was made before the last `span`, if more can be forgotten up to it.
    fn older(&self, span: Duration) -> Later<'_, Result<Option<LogPos>, ObjectError>> {
        let now_ms = self.runtime.env.wall_clock_ms();
        Box::pin(self.look(move |catalog| catalog.older(span, now_ms)))
    }

    /// The span of the past that the object's catalog says.
    fn history(&self) -> Later<'_, Result<Option<Duration>, ObjectError>> {
        Box::pin(self.look(Catalog::history))
    }

    /// Has the catalog say another one.
    fn keep_history(&self, history: Option<Duration>) -> Later<'_, Result<(), ObjectError>> {
        let history_ms = history.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        Box::pin(async move { self.kept()?.call(Keep { history_ms }).await })
    }

    /// Has the catalog forget what it may.
    fn forget(&self, before: LogPos) -> Later<'_, Result<Forgot, ObjectError>> {
        let now_ms = self.runtime.env.wall_clock_ms();
        Box::pin(async move { self.kept()?.call(Forget { before: before.0, now_ms }).await })
    }

    /// Takes or renews a pin or a lease. Errors: `Hold` if it is refused.
    fn hold(&self, name: &str, hold: Hold) -> Later<'_, Result<(), ObjectError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let kept = self.kept()?;
            let mut held = kept.call(HoldFrom { name: name.clone(), hold }).await?;
            if held == Err(HoldRefused::TooMany) {
                // Leases that have ended are there until somebody forgets something.
                self.forget(LogPos(0)).await?;
                held = kept.call(HoldFrom { name, hold }).await?;
            }
            held.map_err(|refused| ObjectError::Hold { object: self.name.clone(), refused })
        })
    }

    /// Ends one; gives whether there was one.
    fn let_go(&self, name: &str) -> Later<'_, Result<bool, ObjectError>> {
        let name = name.to_owned();
        Box::pin(async move { self.kept()?.call(LetGo { name }).await })
    }

    /// Says that a checkpoint is begun; gives whether this program is to go on.
    fn begin_checkpoint(&self, begin: Begin) -> Later<'_, Result<bool, ObjectError>> {
        Box::pin(async move { self.kept()?.call(begin).await })
    }

    /// Writes a checkpoint at `upto`, its chunks and their directory, and tells the catalog, where it is `stored`. Gives what was written in vain
    /// because the catalog did not take it.
    fn store(&self, upto: LogPos, all: Bytes, stored: Stored) -> Later<'_, Result<Vec<LogPos>, ObjectError>> {
        Box::pin(async move {
            let chunk_bytes = self.runtime.options.checkpoints.chunk_bytes.clamp(1, limits::CHUNK_MAX_BYTES);
            let is_too_large = all.len() as u64 > limits::CHECKPOINT_MAX_BYTES
                || all.len().div_ceil(chunk_bytes) > limits::CHUNKS_MAX_COUNT;
            if is_too_large {
                return Err(ObjectError::TooLarge { object: self.name.clone(), bytes: all.len() as u64 });
            }
            let of = Of { object: self.stream, id: stored.id, upto };
            let written = self.write_chunks(of, &all, chunk_bytes).await?;
            let stored = Stored { directory: written.named.pos.0, ..stored };
            let swept = self.sweep_before(&written).await?.0;
            let is_taken = self.kept()?.call(Store { upto: upto.0, stored, swept }).await?;
            Ok(if is_taken { Vec::new() } else { written.positions() })
        })
    }

    /// Stores the catalog in its stream, unless that was done since it was told something last. One that is too large for that stays as it is.
    fn store_catalog(&self) -> Later<'_, Result<(), ObjectError>> {
        Box::pin(async move {
            let catalog = self.kept()?.slot;
            let is_due = catalog.view.borrow().has_unstored();
            if !is_due {
                return Ok(());
            }
            match catalog.shorten().await {
                Err(ObjectError::TooLarge { .. }) => Ok(()),
                stored => stored,
            }
        })
    }

    async fn write_chunks(&self, of: Of, all: &Bytes, chunk_bytes: usize) -> Result<Written, ObjectError> {
        let stream = [chunks_of(self.stream)];
        let client = &self.runtime.client;
        if all.len() <= chunk_bytes {
            let chunk = Chunk { of, number: 0, data: all.clone() };
            return Ok(Written {
                chunks: Vec::new(),
                named: client.append_to(&stream, chunk.encode()).await?,
            });
        }
        let mut chunks: Vec<Placed> = Vec::new();
        let pieces: Vec<usize> = (0..all.len()).step_by(chunk_bytes).collect();
        for some in pieces.chunks(limits::CHUNKS_AT_ONCE) {
            let appends = some.iter().map(|start| {
                let data = all.slice(*start..(start + chunk_bytes).min(all.len()));
                let chunk = Chunk { of, number: (start / chunk_bytes) as u32, data };
                client.append_to(&stream, chunk.encode())
            });
            for placed in gather(appends.collect(), Result::is_err).await.into_iter().flatten() {
                chunks.push(placed?);
            }
        }
        let positions = chunks.iter().map(|placed| placed.pos).collect();
        let directory = Directory { of, len: all.len() as u64, chunks: positions };
        let named = client.append_to(&stream, directory.encode()).await?;
        Ok(Written { chunks, named })
    }

    /// Releases the calls below `below`, which are forgotten.
    fn release_below(&self, below: LogPos) -> Later<'_, Result<(), ObjectError>> {
        Box::pin(async move {
            let client = &self.runtime.client;
            let Some(last) = client.last_before(self.stream, below).await? else { return Ok(()) };
            let Some(place) = last.place_in(self.stream) else { return Ok(()) };
            assert!(last.pos < below, "position {} is not forgotten: {below} is the earliest", last.pos);
            Ok(client.trim_stream(self.stream, StreamPos(place.position.0 + 1)).await?)
        })
    }

    /// Trims the chunks of checkpoints that are in the catalog no more.
    fn clean(&self) -> Later<'_, Result<(), ObjectError>> {
        Box::pin(self.clean_some())
    }

    async fn clean_some(&self) -> Result<(), ObjectError> {
        let dropped = |catalog: &Catalog| catalog.dropped().iter().copied().take(CLEANED_MAX_COUNT).collect();
        let dropped: Vec<u64> = self.look(dropped).await?;
        for &directory in &dropped {
            // What has no directory any more was trimmed by somebody who did not come to say so.
            if let Ok(found) = self.named(LogPos(directory)).await? {
                if let Named::Directory(found) = found {
                    self.trim_all(&found.chunks).await?;
                }
                self.trim_all(&[LogPos(directory)]).await?;
            }
        }
        if !dropped.is_empty() {
            self.kept()?.send(Clean { dropped }).await?;
        }
        Ok(())
    }

    /// Trims torn checkpoints before one that was just written, as far as nobody has; gives the position below which there is none.
    async fn sweep_before(&self, written: &Written) -> Result<LogPos, ObjectError> {
        let swept = self.look(Catalog::swept).await?;
        let first = written.chunks.first().unwrap_or(&written.named).pos;
        let lowest = match written.previous().is_some_and(|previous| previous >= swept) {
            true => self.sweep(swept, first).await?,
            false => first,
        };
        let is_all = lowest == first && written.is_in_a_row();
        Ok(if is_all { LogPos(written.named.pos.0 + 1) } else { lowest })
    }

    /// Trims what is left of torn checkpoints between two positions of the log; gives the lowest position of one that may still become
    /// whole, or `to`.
    async fn sweep(&self, from: LogPos, to: LogPos) -> Result<LogPos, ObjectError> {
        let (mut next, mut lowest) = (from, to);
        while next < to {
            let client = &self.runtime.client;
            let found =
                client.read_stream(chunks_of(self.stream), next..to, self.runtime.options.read_bytes).await?;
            let of = |data: &Bytes| {
                let chunk = Chunk::decode(data).map(|chunk| chunk.of);
                chunk.or_else(|_| Directory::decode(data).map(|directory| directory.of)).ok()
            };
            let all: Vec<(LogPos, Of)> = found
                .entries
                .iter()
                .filter(|entry| entry.kind == EntryKind::Data)
                .filter_map(|entry| Some((entry.pos, of(&entry.data)?)))
                .collect();
            let (torn, open) = self
                .look(|catalog| {
                    let torn = all.iter().filter(|(_, of)| catalog.is_torn(of.id, of.upto));
                    let newest = catalog.newest().map_or(LogPos(0), |(upto, _)| upto);
                    let open = all.iter().filter(|(_, of)| of.upto > newest).map(|(pos, _)| *pos).min();
                    (torn.map(|(pos, _)| *pos).collect::<Vec<_>>(), open)
                })
                .await?;
            self.trim_all(&torn).await?;
            lowest = open.map_or(lowest, |open| open.min(lowest));
            next = found.upto;
        }
        Ok(lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::{Blob, MapState};
    use crate::object::Mutator;
    use crate::store::{MultiPut, StoreState};

    #[test]
    fn entries_that_the_earliest_state_points_to_are_not_released() {
        // A value that is trimmed is lost, however whole the checkpoint is that points to it.
        let mut state = StoreState::<u8>::default();
        for (key, pos) in [(1, 5), (2, 6), (1, 8)] {
            let put = MultiPut { expected: Vec::new(), puts: vec![(key, Some(Blob::default()))] };
            put.apply(&mut state, LogPos(pos), &mut Vec::new()).expect("put");
        }
        assert_eq!(released_below(&state, LogPos(9), Planted::NONE), LogPos(6));
        assert_eq!(released_below(&MapState::<u8, u8>::default(), LogPos(9), Planted::NONE), LogPos(9));
        let fault = Planted::bug(PlantedBug::ForgetIgnoresValues);
        assert_eq!(released_below(&state, LogPos(9), fault), LogPos(9), "the fault releases a value");
    }
}
