//! Sides of a mirrored link that are not waited for without end.
//!
//! ```text
//!   request ──► answer within `patience` ───────────────────────────────────────► as the drive says
//!          └─► none, but another side has answered since the request began ─────► failed: "no answer", and until the
//!                                                                                 drive does answer everything fails
//!          └─► none from any side: it is waited for
//! ```
//!
//! * What fails so is treated as if the drive had failed: a write gives the side up, a read goes to another side.
//! * A request that was given up may still be done by the drive. So that it never comes after a later one, the drive takes
//!   nothing until it has answered all of them.
//! * Only sides that are live are a reason to give another one up.
//! * A live side whose writes take many times as long as those of another is given up too, because every append waits for
//!   the slowest side. Medians are compared: one long rest of all of them says nothing.
//! * A side that was given up is told so, and not waited for longer than that whether another answers or not.
//! * A drive that is alone on its link is asked as if this were not there.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, Pieces, Wrapper};
use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};

use crate::load::{Load, Queue, counted};
use crate::membership::DriveId;
use crate::options::ChainOptions;

/// Writes are compared over so long a time.
const WINDOW: Duration = Duration::from_secs(2);
/// A side is not compared before it has ended so many writes in a window.
const WINDOW_WRITES: usize = 16;
/// So many writes of a window are looked at.
const WINDOW_WRITES_MAX: usize = 512;
/// However fast another is, writes that take so long are fast enough.
const FAST_ENOUGH: Duration = Duration::from_millis(20);
/// Two sides of a link are not given up for slowness within this time of each other.
const VERDICT_REST: Duration = Duration::from_secs(10);

/// What the sides of one link are doing. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pulse {
    inner: Rc<PulseInner>,
}

struct PulseInner {
    env: Env,
    /// How long a side may be silent while another answers.
    patience: Duration,
    /// How many times as long as another's the writes of a side may take; 0: any.
    slow_factor: u32,
    sides: RefCell<Vec<SidePulse>>,
    window_began: Cell<Time>,
    /// The side that was found to be slow, until somebody acts on it.
    slow: Cell<Option<DriveId>>,
    last_verdict: Cell<Option<Time>>,
    /// How often a side has answered all that was given up, ever.
    returns: Cell<u64>,
    /// Rings when one does.
    changed: Rc<Notify>,
}

struct SidePulse {
    id: DriveId,
    is_live: bool,
    /// Requests that it has not answered.
    waiting: usize,
    answered: Time,
    /// How long the writes took that ended in this window.
    writes: Vec<Duration>,
    /// Requests that were given up and that it has not answered yet.
    overdue: usize,
    /// Requests that failed because it did not answer, ever.
    unanswered: u64,
    /// All requests, those of a drive that is alone on its link too.
    load: Load,
}

impl SidePulse {
    /// The median of the writes in this window, if there were enough.
    fn median(&mut self) -> Option<Duration> {
        self.writes.sort_unstable();
        let is_enough = self.is_live && self.writes.len() >= WINDOW_WRITES;
        is_enough.then(|| self.writes[self.writes.len() / 2])
    }
}

/// What a request does, for the comparison and for errors.
#[derive(Clone, Copy)]
struct Request {
    operation: &'static str,
    offset: u64,
    is_write: bool,
}

impl Pulse {
    /// Of a link that nothing was asked of yet. Rings `changed` when a side that did not answer does.
    pub(crate) fn new(env: &Env, options: &ChainOptions, changed: &Rc<Notify>) -> Self {
        let inner = PulseInner {
            env: env.clone(),
            patience: options.side_patience,
            slow_factor: options.slow_side_factor,
            sides: RefCell::default(),
            window_began: Cell::new(env.now()),
            slow: Cell::new(None),
            last_verdict: Cell::new(None),
            returns: Cell::new(0),
            changed: Rc::clone(changed),
        };
        Self { inner: Rc::new(inner) }
    }

    /// `drive` as a side of this link.
    pub(crate) fn watch(&self, id: DriveId, drive: Drive) -> Drive {
        let (drive, load) = counted(drive);
        let side = SidePulse {
            id,
            load,
            is_live: false,
            waiting: 0,
            answered: self.inner.env.now(),
            writes: Vec::new(),
            overdue: 0,
            unanswered: 0,
        };
        self.inner.sides.borrow_mut().push(side);
        Drive::new(Rc::new(Watched { id, drive, pulse: self.clone() }))
    }

    /// Requests that a side has not answered.
    pub(crate) fn waiting(&self, id: DriveId) -> usize {
        self.inner.sides.borrow().iter().find(|side| side.id == id).map_or(0, |side| side.waiting)
    }

    /// Whether a side takes nothing until it has answered what was given up.
    pub(crate) fn is_silent(&self, id: DriveId) -> bool {
        self.inner.sides.borrow().iter().any(|side| side.id == id && side.overdue > 0)
    }

    /// Requests to a side that failed because it did not answer, ever.
    pub(crate) fn unanswered(&self, id: DriveId) -> u64 {
        self.inner.sides.borrow().iter().find(|side| side.id == id).map_or(0, |side| side.unanswered)
    }

    /// How often a side has answered again, ever: what could not be read before may be readable since.
    pub(crate) fn returns(&self) -> u64 {
        self.inner.returns.get()
    }

    /// What a side has to do.
    pub(crate) fn queue(&self, id: DriveId) -> Queue {
        let sides = self.inner.sides.borrow();
        sides.iter().find(|side| side.id == id).map_or_else(Queue::default, |side| side.load.queue())
    }

    /// Says which sides are live.
    pub(crate) fn set_live(&self, is_live: impl Fn(DriveId) -> bool) {
        self.inner.sides.borrow_mut().iter_mut().for_each(|side| side.is_live = is_live(side.id));
    }

    /// A side that is far slower than another, once.
    pub(crate) fn take_slow(&self) -> Option<DriveId> {
        self.inner.slow.take()
    }

    /// Waits for what is asked of a side that the others do not need, for `patience` at the most whatever they do. What is given up so
    /// goes on by itself, and until it has ended the side takes nothing.
    pub(crate) async fn bounded<T: 'static>(
        &self,
        id: DriveId,
        asked: impl Future<Output = Result<T, DriveError>> + 'static,
    ) -> Result<T, DriveError> {
        let PulseInner { env, patience, .. } = &*self.inner;
        let mut asked = Box::pin(asked);
        if let Ok(answer) = env.timeout(*patience, &mut asked).await {
            return answer;
        }
        self.leave_overdue(id, asked);
        let (path, message) = (id.to_string(), format!("no answer within {patience:?}"));
        Err(DriveError::Io { path, operation: "write", offset: 0, message })
    }

    /// Lets a request go on that nobody waits for any more.
    fn leave_overdue(&self, id: DriveId, asked: impl Future + 'static) {
        self.with(id, |side| {
            side.overdue += 1;
            side.unanswered += 1;
        });
        let pulse = self.clone();
        self.inner.env.spawn(async move {
            // Whatever it is, the drive is done with this request.
            let _ = asked.await;
            let overdue = pulse.with(id, |side| {
                side.overdue -= 1;
                side.overdue
            });
            if overdue == 0 {
                pulse.inner.returns.set(pulse.inner.returns.get() + 1);
                pulse.inner.changed.ring();
            }
        });
    }

    fn with<T>(&self, id: DriveId, change: impl FnOnce(&mut SidePulse) -> T) -> T {
        let mut sides = self.inner.sides.borrow_mut();
        change(sides.iter_mut().find(|side| side.id == id).expect("a side that is watched"))
    }

    /// Whether a live side has answered something since then and does not hang, or seem to, itself.
    fn has_other_answered(&self, id: DriveId, since: Time) -> bool {
        let (now, half) = (self.inner.env.now(), self.inner.patience / 2);
        let is_well =
            |side: &SidePulse| side.overdue == 0 && (side.waiting == 0 || now.since(side.answered) < half);
        let sides = self.inner.sides.borrow();
        sides.iter().any(|side| side.id != id && side.is_live && side.answered >= since && is_well(side))
    }

    /// Notes an answer to what was asked at `began`.
    fn answered(&self, id: DriveId, began: Time, is_write: bool) {
        let now = self.inner.env.now();
        self.with(id, |side| {
            side.answered = now;
            if is_write && side.writes.len() < WINDOW_WRITES_MAX {
                side.writes.push(now.since(began));
            }
        });
        if now.since(self.inner.window_began.get()) >= WINDOW {
            self.inner.window_began.set(now);
            self.compare(now);
        }
    }

    /// Finds the side that is far slower than another, and begins a new window.
    fn compare(&self, now: Time) {
        let factor = self.inner.slow_factor;
        let rests = self.inner.last_verdict.get().is_some_and(|last| now.since(last) < VERDICT_REST);
        let mut sides = self.inner.sides.borrow_mut();
        let medians: Vec<(Duration, DriveId)> =
            sides.iter_mut().filter_map(|side| Some((side.median()?, side.id))).collect();
        sides.iter_mut().for_each(|side| side.writes.clear());
        let (Some((fastest, _)), Some((slowest, id))) = (medians.iter().min(), medians.iter().max()) else {
            return;
        };
        if factor > 0 && !rests && *slowest > FAST_ENOUGH && *slowest >= *fastest * factor {
            tracing::error!(side = %id, ?slowest, ?fastest, "a side is far slower than another");
            self.inner.slow.set(Some(*id));
            self.inner.last_verdict.set(Some(now));
        }
    }
}

/// A drive that is a side of a link.
struct Watched {
    id: DriveId,
    drive: Drive,
    pulse: Pulse,
}

impl Watched {
    fn failed(&self, request: Request, message: String) -> DriveError {
        let Request { operation, offset, .. } = request;
        DriveError::Io { path: self.drive.name(), operation, offset, message }
    }

    fn ask<T: 'static>(
        &self,
        request: Request,
        start: impl FnOnce(&Drive) -> DriveFuture<T>,
    ) -> DriveFuture<T> {
        let inner = &self.pulse.inner;
        if inner.sides.borrow().len() == 1 {
            return start(&self.drive);
        }
        let overdue = self.pulse.with(self.id, |side| {
            side.unanswered += u64::from(side.overdue > 0);
            side.overdue
        });
        if overdue > 0 {
            let message = format!("it has not answered {overdue} earlier requests");
            return Box::pin(ready(Err(self.failed(request, message))));
        }
        let late = self.failed(request, format!("no answer within {:?}", inner.patience));
        let waiting = Waiting::begin(&self.pulse, self.id);
        Box::pin(waiting.answer(request, start(&self.drive), late))
    }
}

/// A request that is under way, until it is dropped.
struct Waiting {
    pulse: Pulse,
    id: DriveId,
    began: Time,
}

impl Waiting {
    fn begin(pulse: &Pulse, id: DriveId) -> Self {
        pulse.with(id, |side| side.waiting += 1);
        Self { pulse: pulse.clone(), id, began: pulse.inner.env.now() }
    }

    /// Waits for the answer as long as the others of the link give no reason to give it up; then fails with `late`.
    async fn answer<T: 'static>(
        self,
        request: Request,
        mut asked: DriveFuture<T>,
        late: DriveError,
    ) -> Result<T, DriveError> {
        let (env, half) = (self.pulse.inner.env.clone(), self.pulse.inner.patience / 2);
        let mut is_behind = false;
        // Behind twice: when the whole process, or what all sides stand on, has rested, one of them answers first.
        loop {
            if let Ok(answer) = env.timeout(half, &mut asked).await {
                self.pulse.answered(self.id, self.began, request.is_write);
                return answer;
            }
            let was_behind =
                std::mem::replace(&mut is_behind, self.pulse.has_other_answered(self.id, self.began));
            if was_behind && is_behind {
                break;
            }
        }
        self.pulse.leave_overdue(self.id, asked);
        Err(late)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pulse.with(self.id, |side| side.waiting -= 1);
    }
}

/// To grow takes as long as it takes: a file system may have much to allocate.
impl Wrapper for Watched {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let request = Request { operation: "read", offset, is_write: false };
        self.ask(request, |drive| drive.read(offset, len))
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        let request = Request { operation: "write", offset, is_write: true };
        self.ask(request, |drive| drive.write(offset, data, durability))
    }

    fn sync(&self) -> DriveFuture<()> {
        let request = Request { operation: "sync", offset: 0, is_write: true };
        self.ask(request, Drive::sync)
    }

    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        let request = Request { operation: "discard", offset, is_write: false };
        self.ask(request, |drive| drive.discard(offset, len))
    }
}
