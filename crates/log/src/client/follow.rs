//! Following the log: units push what becomes readable, and the follower puts it in order.
//!
//! The last replica of each stripe pushes its addresses in order up to its watermark; the follower merges the stripes by
//! position, one range of the layout after the other. A stripe whose next address stays unwritten although the log's tail has
//! passed it has a hole: the follower waits `hole_wait`, then fills it, and the stripe goes on. What a unit may push ahead is
//! bounded by its credit.
//!
//! While nothing is pushed of what certainly is there, because the last replica is gone or its epoch is over, the follower reads on by
//! itself, which another replica may answer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::sync::queue;

use super::Inner;
use super::connection::{CallError, Connection, open_reply};
use super::error::{ClientError, Phase};
use super::read::{Entry, Origin, UnitRuns};
use super::view::View;
use crate::pos::{Addr, AddrRange, LogPos, NodeId, RequestId};
use crate::wire::{Credit, Frame, Refusal, Subscribe, Unsubscribe};

/// Bytes that a unit may push ahead of the follower.
const CREDIT_BYTES: u64 = 4 << 20;
/// Entries that one call of [`Tailing::next`] returns at the most.
const PIECE_MAX_COUNT: usize = 16_384;
/// How often a follower that is shown nothing looks whether the tail has passed it.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// The wait before a lost subscription is made again.
const RESUME_WAIT: Duration = Duration::from_millis(20);

/// Entries in order as they become readable. Dropping it ends its subscriptions.
pub struct Tailing {
    inner: Rc<Inner>,
    next: LogPos,
    view: Option<View>,
    /// The range that `next` is in, as an index into the view's layout, once it is subscribed to.
    range: Option<usize>,
    /// By the number of the stripe.
    stripes: BTreeMap<u64, Subscription>,
    /// When the follower lost its subscriptions and has not been shown anything since.
    lost_since: Option<Time>,
}

struct Subscription {
    unit: NodeId,
    /// The stripe's addresses on the unit.
    extent: AddrRange,
    connection: Connection,
    id: RequestId,
    frames: queue::Receiver<Frame>,
    /// Entries that are not the next yet.
    ready: VecDeque<Entry>,
    view: View,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.connection.tell(self.id, self.view.layout.epoch, &Unsubscribe);
        self.connection.forget(self.id);
    }
}

enum Woken {
    Pushed(Frame),
    Ended,
    /// Nothing was pushed for a while of what certainly is there.
    Late,
    Nothing,
}

/// What a follower that waits has done about it.
#[derive(Clone, Copy, Default)]
struct Waiting {
    /// The log's tail has passed the next position.
    stalled: bool,
    /// It has read on by itself, and there was nothing.
    looked: bool,
}

impl Tailing {
    pub(super) fn new(inner: Rc<Inner>, from: LogPos) -> Self {
        Self { inner, next: from, view: None, range: None, stripes: BTreeMap::new(), lost_since: None }
    }

    /// The position that comes next.
    pub fn position(&self) -> LogPos {
        self.next
    }

    /// Waits for the next entries: at least one, in order, without gaps. Waits for ever if nothing is appended; an error
    /// if the cluster cannot be reached for the client's timeout, or an entry is damaged. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Vec<Entry>, ClientError> {
        let mut waiting = Waiting::default();
        loop {
            if let Err(error) = self.subscribe().await {
                let entries = self.lost(error).await?;
                if entries.is_empty() {
                    continue;
                }
                return Ok(entries);
            }
            let entries = self.take_ready();
            if !entries.is_empty() {
                self.lost_since = None;
                return Ok(entries);
            }
            let entries = match self.wait(waiting).await {
                Woken::Pushed(frame) => {
                    waiting = Waiting::default();
                    match self.accept(frame) {
                        Ok(()) => Vec::new(),
                        Err(ClientError::Damaged { pos }) if pos >= self.next => self.read_to(pos).await?,
                        Err(error) => self.lost(error).await?,
                    }
                }
                Woken::Ended => {
                    let error = self.ended();
                    self.lost(error).await?
                }
                Woken::Late => {
                    waiting.looked = true;
                    self.read_on(self.view.clone()).await
                }
                Woken::Nothing => {
                    waiting = Waiting { stalled: self.fill_holes(waiting.stalled).await?, looked: false };
                    Vec::new()
                }
            };
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// Subscribes to every stripe of the range that comes next, if it is not done.
    async fn subscribe(&mut self) -> Result<(), ClientError> {
        let deadline = self.inner.deadline();
        let view = match &self.view {
            Some(view) if self.range == view.layout.range_index(self.next) => return Ok(()),
            Some(view) => view.clone(),
            None => self.inner.view_by(deadline).await?,
        };
        self.stripes.clear();
        // Kept from here on: if a unit cannot be reached, `lost` gives this view up and the next try learns a newer one.
        self.view = Some(view.clone());
        self.range = None;
        let Some(index) = view.layout.range_index(self.next) else { return Ok(()) };
        let range = &view.layout.ranges[index];
        // One position a stripe is enough to find where each begins.
        let count = range.stripes.len() as u64;
        let ahead = LogPos(self.next.0.saturating_add(count)).min(range.end);
        for piece in view.layout.pieces(self.next, ahead) {
            let number = (piece.first.0 - range.start.0) % count;
            let unit = *piece.replicas.last().expect("a stripe has replicas");
            let connection = self.inner.connection(&view, unit, deadline).await?;
            let subscribe = Subscribe { addr: piece.addrs.start, credit_bytes: CREDIT_BYTES };
            let (id, frames) = connection.subscribe(view.layout.epoch, &subscribe);
            let extent = range.addresses(number as usize).unwrap_or_default();
            let (ready, view) = (VecDeque::new(), view.clone());
            self.stripes.insert(number, Subscription { unit, extent, connection, id, frames, ready, view });
        }
        self.range = Some(index);
        Ok(())
    }

    /// The number of the stripe that the next position lies on, if its range is subscribed to.
    fn stripe(&self) -> Option<u64> {
        let view = self.view.as_ref()?;
        let range = &view.layout.ranges[self.range?];
        let is_in = range.start <= self.next && self.next < range.end;
        is_in.then(|| (self.next.0 - range.start.0) % range.stripes.len() as u64)
    }

    /// Entries that come next and are here.
    fn take_ready(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let start = self.view.as_ref().map_or(LogPos(0), |view| view.layout.start());
        while self.next < start && entries.len() < PIECE_MAX_COUNT {
            entries.push(Entry::trimmed(self.next));
            self.next.0 += 1;
        }
        while entries.len() < PIECE_MAX_COUNT {
            let Some(subscription) = self.stripe().and_then(|number| self.stripes.get_mut(&number)) else {
                break;
            };
            // What was read on meanwhile is pushed once more.
            while subscription.ready.pop_front_if(|entry| entry.pos < self.next).is_some() {}
            // With one stripe everything that is ready is next.
            let before = entries.len();
            while let Some(entry) = subscription.ready.pop_front_if(|entry| entry.pos == self.next) {
                self.next.0 += 1;
                entries.push(entry);
                if entries.len() >= PIECE_MAX_COUNT {
                    break;
                }
            }
            if entries.len() == before {
                break;
            }
        }
        entries
    }

    /// Reads what comes next up to a damaged position, which another replica may have, and subscribes anew after it.
    async fn read_to(&mut self, damaged: LogPos) -> Result<Vec<Entry>, ClientError> {
        self.stripes.clear();
        self.range = None;
        let entries = self.inner.read_range(self.next, LogPos(damaged.0 + 1)).await?;
        self.next.0 += entries.len() as u64;
        self.lost_since = None;
        Ok(entries)
    }

    /// Reads what comes next without a subscription, as far as it is there and soon. Nothing may come of it.
    async fn read_on(&mut self, view: Option<View>) -> Vec<Entry> {
        let Some(view) = view else { return Vec::new() };
        let to = LogPos(self.next.0.saturating_add(PIECE_MAX_COUNT as u64));
        let span = self.inner.patience() * 2;
        let Ok(Ok((entries, _))) = self.inner.env.timeout(span, self.inner.scan(&view, self.next, to)).await
        else {
            return Vec::new();
        };
        if !entries.is_empty() {
            self.next.0 += entries.len() as u64;
            self.lost_since = None;
        }
        entries
    }

    /// Whether something certainly is there that was not shown yet: the log went on after the next position.
    fn is_behind(&self, view: &View) -> bool {
        let tail = self.inner.tail_in(view);
        let is_ready = |stripe: &Subscription| stripe.ready.iter().any(|entry| entry.pos > self.next);
        self.next < tail || self.stripes.values().any(is_ready)
    }

    /// Waits for the unit that holds the next position.
    async fn wait(&mut self, waiting: Waiting) -> Woken {
        let is_behind = self.view.as_ref().is_some_and(|view| self.is_behind(view));
        let Some(subscription) = self.stripe().and_then(|number| self.stripes.get_mut(&number)) else {
            return Woken::Ended;
        };
        let hole_wait = self.inner.options.hole_wait;
        let span = if waiting.stalled { hole_wait } else { IDLE_LOOK.max(hole_wait) };
        let (span, then) = match is_behind && !waiting.looked {
            true => (span.min(self.inner.patience()), Woken::Late),
            false => (span, Woken::Nothing),
        };
        match self.inner.env.timeout(span, subscription.frames.recv()).await {
            Ok(Some(frame)) => Woken::Pushed(frame),
            Ok(None) => Woken::Ended,
            Err(_) => then,
        }
    }

    fn accept(&mut self, frame: Frame) -> Result<(), ClientError> {
        let Some((number, range)) = self.stripe().zip(self.range) else { return Ok(()) };
        let Some(subscription) = self.stripes.get_mut(&number) else { return Ok(()) };
        let Subscription { unit, extent, ref view, .. } = *subscription;
        let range = &view.layout.ranges[range];
        let (start, stride) = (range.start.0 + number, range.stripes.len() as u64);
        // A unit that pushes past the stripe's addresses has come to those of another.
        let position = |addr: Addr| {
            let is_in = extent.start <= addr && addr < extent.end;
            is_in.then(|| LogPos(start.saturating_add((addr.0 - extent.start.0).saturating_mul(stride))))
        };
        let bytes = (frame.body.len() + frame.data.len()) as u64;
        let epoch = view.layout.epoch;
        let origin = Origin { addr: view.addr(unit), epoch, phase: Phase::Follow };
        // The unit names an address; its reader knows positions.
        let (runs, data, _) = open_reply(frame).map_err(|error| match error {
            CallError::Refused(Refusal::Damaged { addr }) if let Some(pos) = position(addr) => {
                ClientError::Damaged { pos }
            }
            error => origin.failed(error),
        })?;
        let next = self.next;
        let ready = &mut subscription.ready;
        UnitRuns { origin, runs, data }.each(|run| {
            run.take(position, |entry| {
                if entry.pos >= next {
                    ready.push_back(entry);
                }
            })
        })?;
        subscription.connection.tell(subscription.id, epoch, &Credit { credit_bytes: bytes });
        Ok(())
    }

    fn ended(&self) -> ClientError {
        let Some(view) = &self.view else { return ClientError::Closed };
        let addr = match view.place(self.next) {
            Ok((unit, _)) => view.addr(unit),
            Err(error) => return error,
        };
        let error = CallError::Lost(ithaca_env::net::NetError::Closed { addr });
        ClientError::Node { addr, epoch: view.layout.epoch, phase: Phase::Follow, error }
    }

    /// Gives the subscriptions up, to make them again with a newer view; what is there meanwhile all the same is read. An error once that
    /// has gone on for too long, or would not help.
    async fn lost(&mut self, error: ClientError) -> Result<Vec<Entry>, ClientError> {
        let view = self.view.clone();
        self.give_up(error)?;
        let entries = self.read_on(view).await;
        if entries.is_empty() {
            self.inner.env.sleep(RESUME_WAIT).await;
        }
        Ok(entries)
    }

    fn give_up(&mut self, error: ClientError) -> Result<(), ClientError> {
        let now = self.inner.env.now();
        let since = *self.lost_since.get_or_insert(now);
        let deadline = since + self.inner.options.timeout;
        if !self.inner.worth_retrying(&error, deadline) {
            return Err(error);
        }
        self.stripes.clear();
        self.range = None;
        self.inner.forget_view(&self.view.take());
        Ok(())
    }

    /// Nothing was pushed for a while: if the tail has passed the next position there is a hole. The first time it is only
    /// noticed, so that its writer has `hole_wait` to come; then it is filled, with every other hole up to the tail.
    /// Returns whether there is a hole.
    async fn fill_holes(&mut self, stalled: bool) -> Result<bool, ClientError> {
        let tail = self.inner.tail().await?;
        if tail <= self.next {
            return Ok(false);
        }
        if !stalled {
            return Ok(true);
        }
        let Some(view) = self.view.clone() else { return Ok(false) };
        let to = tail.min(LogPos(self.next.0.saturating_add(PIECE_MAX_COUNT as u64)));
        let filled = match self.inner.scan(&view, self.next, to).await {
            Ok((_, holes)) => self.inner.fill_holes(&view, &holes, self.inner.deadline()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = filled {
            self.give_up(error)?;
            self.inner.env.sleep(RESUME_WAIT).await;
            return Ok(false);
        }
        Ok(true)
    }
}
