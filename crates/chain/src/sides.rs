//! What a link is made of: one drive, or several sides that hold the same.
//!
//! ```text
//!   write ──► every live side ──► all have it ────────────────────────────────► done
//!                             └─► one failed ──► marked as stale, durably ──► done without it
//!   read  ──► one live side in turn ──► failed, or not what was written ──► the others (read::mend)
//! ```
//!
//! * A write is done when every live side has it. A side that fails one is given up before the write is done, in the
//!   superblocks of all other drives, so that no later open believes it. Without another live side the write fails.
//! * It does not know what it reads and writes; whoever does asks another side if a checksum does not match.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, Pieces};
use ithaca_env::task::gather;

use crate::claims::{Claim, Claims};
use crate::core::GrowthRefused;
use crate::load::Queue;
use crate::membership::DriveId;
use crate::registry::Registry;
use crate::watch::Pulse;

/// So many requests that wait for the side that is awake wake the others.
const WAKE_AT_WAITING: usize = 8;

/// A drive of a link.
#[derive(Clone)]
pub(crate) struct Side {
    /// Which one it is.
    pub(crate) id: DriveId,
    /// What it is read from and written to.
    pub(crate) drive: Drive,
}

/// The sides of a link as one device. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sides {
    inner: Rc<Inner>,
}

struct Inner {
    /// All that were given, in the order of the members.
    sides: RefCell<Vec<Side>>,
    /// Stale ones that take writes along because they are being rebuilt.
    following: RefCell<Vec<DriveId>>,
    /// Says which of them are live, and is told of those that fail. Without it all are, and a failure is the link's.
    registry: Option<Rc<Registry>>,
    /// Keeps copies between the sides apart from writes.
    claims: Claims,
    /// Counts reads, so that each goes to another side.
    turn: Cell<usize>,
    /// What each is doing, if they are watched.
    pulse: Option<Pulse>,
    /// Live sides that are not read while another can serve.
    asleep: RefCell<Vec<DriveId>>,
    /// Something has happened since [`Sides::rest`] that needs all sides.
    is_busy: Cell<bool>,
}

impl Sides {
    /// The sides of a link whose drives `registry` knows.
    pub(crate) fn new(sides: Vec<Side>, registry: &Rc<Registry>, pulse: Option<&Pulse>) -> Self {
        assert!(!sides.is_empty(), "a link has a side");
        Self::over(sides, Some(Rc::clone(registry)), pulse.cloned())
    }

    /// The same sides over the drives that `read_by` gives for them, for a while in which they are only read.
    pub(crate) fn read_by(&self, read_by: impl Fn(&Side) -> Drive) -> Self {
        let side = |side: &Side| Side { id: side.id, drive: read_by(side) };
        let sides = self.inner.sides.borrow().iter().map(side).collect();
        Self::over(sides, self.inner.registry.clone(), None)
    }

    fn over(sides: Vec<Side>, registry: Option<Rc<Registry>>, pulse: Option<Pulse>) -> Self {
        let inner = Inner {
            sides: RefCell::new(sides),
            following: RefCell::default(),
            registry,
            claims: Claims::default(),
            turn: Cell::new(0),
            pulse,
            asleep: RefCell::default(),
            is_busy: Cell::new(true),
        };
        Self { inner: Rc::new(inner) }
    }

    /// Whether the first write to a place takes longer than those after it, on any of them.
    pub(crate) fn allocates(&self) -> bool {
        self.inner.sides.borrow().iter().any(|side| side.drive.allocates())
    }

    /// Adds one, which is stale.
    pub(crate) fn add(&self, side: Side) {
        self.inner.sides.borrow_mut().push(side);
    }

    /// The sides that are there and have not everything.
    pub(crate) fn stale(&self) -> Vec<Side> {
        self.inner.sides.borrow().iter().filter(|side| !self.is_live(side.id)).cloned().collect()
    }

    /// Lets a stale side take writes along from now on, or no more.
    pub(crate) fn follow(&self, id: DriveId, follows: bool) {
        let mut following = self.inner.following.borrow_mut();
        following.retain(|other| *other != id);
        if follows {
            following.push(id);
        }
    }

    /// Whether a stale side has taken all writes along since it was let: none has failed on it.
    pub(crate) fn follows(&self, id: DriveId) -> bool {
        self.inner.following.borrow().contains(&id)
    }

    /// The sides that have everything that was acknowledged. There is at least one, until the link is removed.
    pub(crate) fn live(&self) -> Vec<Side> {
        self.inner.sides.borrow().iter().filter(|side| self.is_live(side.id)).cloned().collect()
    }

    /// The drives of the live sides.
    pub(crate) fn live_drives(&self) -> Vec<Drive> {
        self.live().into_iter().map(|side| side.drive).collect()
    }

    /// The sides to be read. Of a link that was removed after a reader had found it all of them, as of a single drive: what
    /// lies there is nothing that anybody needs, and the reader finds that the segment is in another use.
    fn readable(&self) -> Vec<Side> {
        let live = self.live();
        if live.is_empty() { self.inner.sides.borrow().clone() } else { live }
    }

    /// The drives to be read, beginning with the one that comes first: awake, and of those that have the least to do the one whose
    /// turn it is. There is at least one.
    pub(crate) fn in_turn(&self) -> Vec<Drive> {
        let mut sides = self.readable();
        let turn = self.inner.turn.get();
        self.inner.turn.set(turn.wrapping_add(1));
        let first = turn % sides.len();
        sides.rotate_left(first);
        let waiting = |id| self.inner.pulse.as_ref().map_or(0, |pulse| pulse.waiting(id));
        if sides.iter().all(|side| self.is_asleep(side.id) || waiting(side.id) >= WAKE_AT_WAITING) {
            self.wake();
        }
        sides.sort_by_key(|side| (self.is_asleep(side.id), waiting(side.id)));
        sides.into_iter().map(|side| side.drive).collect()
    }

    /// The side that a read would go to now, as far as that does not depend on whose turn it is, and what it has to do.
    pub(crate) fn next_to_read(&self) -> Option<(DriveId, Queue)> {
        let pulse = self.inner.pulse.as_ref()?;
        let sides = self.inner.sides.borrow();
        if let [only] = &sides[..] {
            return Some((only.id, pulse.queue(only.id)));
        }
        let live = sides.iter().filter(|side| self.is_live(side.id));
        let queues = live.map(|side| (side.id, pulse.queue(side.id)));
        queues.min_by_key(|&(id, queue)| (self.is_asleep(id), queue.len()))
    }

    /// Whether this side is left alone.
    pub(crate) fn is_asleep(&self, id: DriveId) -> bool {
        self.inner.asleep.borrow().contains(&id)
    }

    /// Uses all live sides from now on.
    pub(crate) fn wake(&self) {
        self.inner.asleep.borrow_mut().clear();
        self.inner.is_busy.set(true);
    }

    /// Leaves all live sides but one alone if nothing has needed them since the last call.
    pub(crate) fn rest(&self) {
        if !self.inner.is_busy.replace(false) {
            let others = self.live().into_iter().skip(1).map(|side| side.id);
            self.inner.asleep.replace(others.collect());
        }
    }

    /// Whether this side has everything that was acknowledged.
    pub(crate) fn is_live(&self, id: DriveId) -> bool {
        self.inner.registry.as_ref().is_none_or(|registry| registry.is_live(id))
    }

    /// Bytes that every live side has.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.live().iter().map(|side| side.drive.size_bytes()).min().unwrap_or(0)
    }

    /// The names of the live sides.
    pub(crate) fn name(&self) -> String {
        self.live().iter().map(|side| side.drive.name()).collect::<Vec<_>>().join("+")
    }

    /// Reads `[offset, offset + len)` of the live side whose turn it is. Starts at once. Whoever can tell what should be
    /// there asks the others if that fails.
    pub(crate) fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        if let [only] = &self.inner.sides.borrow()[..] {
            return only.drive.read(offset, len);
        }
        self.in_turn()[0].read(offset, len)
    }

    /// Whether a side takes nothing for now, because it has not answered earlier requests: it has what it had, whatever that is. Whoever
    /// would write to it what it seems to lack leaves that be, as it would be given up for a write that does not begin.
    pub(crate) fn is_silent(&self, id: DriveId) -> bool {
        self.inner.pulse.as_ref().is_some_and(|pulse| pulse.is_silent(id))
    }

    /// How many requests to these sides failed so far because they did not answer. While that stays the same they have answered whatever is
    /// read of them: what they could not read then is harmed. Else they may have it.
    pub(crate) fn unanswered<'s>(&self, sides: impl IntoIterator<Item = &'s Side>) -> u64 {
        let Some(pulse) = &self.inner.pulse else { return 0 };
        sides.into_iter().map(|side| pulse.unanswered(side.id)).sum()
    }

    /// Whether there is another side to ask.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.inner.sides.borrow().len() > 1
    }

    /// Keeps writes away from these bytes until the claim is dropped; waits for those that are under way.
    pub(crate) async fn claim(&self, range: Range<u64>) -> Claim {
        self.inner.claims.copy(range).await
    }

    /// Waits until every write has ended that began before this was called.
    pub(crate) async fn end_of_earlier_writes(&self) {
        self.inner.claims.end_of_earlier_writes().await;
    }

    /// Writes `data` to every live side. Starts at once; with [`Durability::Durable`] it is on stable storage of every
    /// side that is live when the future is ready.
    pub(crate) fn write(
        &self,
        offset: u64,
        data: impl Into<Pieces>,
        durability: Durability,
    ) -> DriveFuture<()> {
        let data = data.into();
        let range = offset..offset + data.len() as u64;
        let start = move |this: &Self| this.on_every(|drive| drive.write(offset, data.clone(), durability));
        let this = self.clone();
        if let Some(claim) = self.inner.claims.try_write(range.clone()) {
            let written = start(self);
            return Box::pin(async move {
                let result = written.await;
                drop(claim);
                result
            });
        }
        Box::pin(async move {
            let _claim = this.inner.claims.write(range).await;
            start(&this).await
        })
    }

    /// Writes to one side what it lacks, durably. A live one that fails this is given up, as by any write: what it has there is not known
    /// any more. Errors: it has failed; if it is live still, its link has no other side.
    pub(crate) async fn write_lacking(
        &self,
        side: &Side,
        offset: u64,
        right: Bytes,
    ) -> Result<(), DriveError> {
        let Err(error) = side.drive.write(offset, right, Durability::Durable).await else { return Ok(()) };
        if let Some(registry) = self.inner.registry.as_ref().filter(|_| self.is_live(side.id)) {
            registry.give_up(vec![side.id], &error).await?;
        }
        Err(error)
    }

    /// The same, but a side that takes nothing for now is left as it is, and is not given up. Errors: that too.
    pub(crate) async fn mend(&self, side: &Side, offset: u64, right: Bytes) -> Result<(), DriveError> {
        match self.is_silent(side.id) {
            // It fails at once.
            true => side.drive.write(offset, right, Durability::Durable).await,
            false => self.write_lacking(side, offset, right).await,
        }
    }

    /// Puts every write that has completed on stable storage of every live side.
    pub(crate) fn sync(&self) -> DriveFuture<()> {
        self.on_every(Drive::sync)
    }

    /// Makes every live side at least this long, and those that take writes along. A side that fails is given up as by a write.
    /// Errors: one of them cannot grow, for which none is given up: see [`growth_refused`]; no live side is left that has not failed.
    pub(crate) fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        let sides = self.inner.sides.borrow();
        let grows = |side: &&Side| self.is_live(side.id) || self.follows(side.id);
        let grown: Vec<_> = sides
            .iter()
            .filter(grows)
            .map(|side| (side.id, self.is_live(side.id), side.drive.grow(size_bytes)))
            .collect();
        let this = self.clone();
        Box::pin(async move {
            let mut refused = Ok(());
            let (mut live, mut following) = (Vec::new(), Vec::new());
            for (id, is_live, grown) in grown {
                let mut answer = grown.await;
                if answer.as_ref().is_err_and(|error| growth_refused(error).is_some()) {
                    refused = refused.and(std::mem::replace(&mut answer, Ok(())));
                }
                if is_live { live.push((id, answer)) } else { following.push((id, answer)) }
            }
            this.let_go(following).await?;
            this.all_have(live).await?;
            refused
        })
    }

    fn on_every(&self, start: impl Fn(&Drive) -> DriveFuture<()>) -> DriveFuture<()> {
        self.wake();
        let mut live = self.live();
        let is_following = |side: &Side| self.follows(side.id) && !self.is_live(side.id);
        let following: Vec<Side> =
            self.inner.sides.borrow().iter().filter(|side| is_following(side)).cloned().collect();
        if live.len() == 1 && following.is_empty() {
            return start(&live.remove(0).drive);
        }
        let start = |side: Side| {
            let request = start(&side.drive);
            async move { (side.id, request.await) }
        };
        let count = live.len();
        let started: Vec<_> = live.into_iter().chain(following).map(start).collect();
        let this = self.clone();
        Box::pin(async move {
            // Together, so that one that answers is not taken for a silent one because another is waited for.
            let mut ended: Vec<_> = gather(started, |_| false).await.into_iter().flatten().collect();
            this.let_go(ended.split_off(count)).await?;
            this.all_have(ended).await?;
            match (this.inner.pulse.as_ref().and_then(Pulse::take_slow), &this.inner.registry) {
                (Some(slow), Some(registry)) => registry.leave_behind(slow).await,
                _ => Ok(()),
            }
        })
    }

    /// Lets those that failed take no more writes along.
    async fn let_go(&self, following: Vec<(DriveId, Result<(), DriveError>)>) -> Result<(), DriveError> {
        for (id, result) in following {
            if let Err(error) = result {
                self.follow(id, false);
                // It may have become live meanwhile.
                if let Some(registry) = &self.inner.registry {
                    registry.give_up(vec![id], &error).await?;
                }
            }
        }
        Ok(())
    }

    /// Gives up the sides that failed, if another one has it.
    async fn all_have(&self, ended: Vec<(DriveId, Result<(), DriveError>)>) -> Result<(), DriveError> {
        let mut have = Vec::new();
        let mut failed = Vec::new();
        let mut first = None;
        for (id, result) in ended {
            match result {
                Ok(()) => have.push(id),
                Err(error) => {
                    failed.push(id);
                    first.get_or_insert(error);
                }
            }
        }
        let Some(first) = first else { return Ok(()) };
        let Some(registry) = self.inner.registry.as_ref() else { return Err(first) };
        // A side that has it may have failed another write meanwhile.
        let has_live = || have.iter().any(|&id| self.is_live(id));
        if has_live() {
            registry.give_up(failed, &first).await?;
        }
        if has_live() { Ok(()) } else { Err(first) }
    }
}

/// Why a drive did not grow, if it is as it was. If not, what was written to it may be gone: a growth syncs it, and one sync alone
/// tells of that.
pub(crate) fn growth_refused(error: &DriveError) -> Option<GrowthRefused> {
    match error {
        DriveError::NoSpace { .. } => Some(GrowthRefused::NoRoom),
        DriveError::CannotGrow { .. } => Some(GrowthRefused::Fixed),
        _ => None,
    }
}
