//! Requests of a drive from their start to their completion.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::Time;
use crate::drive::{DriveError, Durability};
use crate::limits::{BLOCK_BYTES, IO_QUEUE_MAX};
use crate::sim::process::{Life, ProcessId};
use crate::sim::queue::Event;
use crate::sim::random::{Domain, scale};
use crate::sim::trace::{Kind, sample};
use crate::sim::world::World;

use super::atlas::{Atlas, HarmKind};
use super::fault::Verdict;
use super::image::blocks;
use super::speed::{Access, RequestKey, SpeedRequest};
use super::{DriveId, DriveState};

#[derive(Clone)]
pub(super) enum Op {
    Read {
        len: usize,
    },
    Write {
        data: Bytes,
        durability: Durability,
    },
    /// Covers the writes that were done when it started.
    Sync {
        covers: u64,
    },
    Grow {
        size_bytes: u64,
    },
    Discard {
        len: usize,
    },
}

impl Op {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Sync { .. } => "sync",
            Op::Grow { .. } => "grow",
            Op::Discard { .. } => "discard",
        }
    }

    fn access(&self) -> (Access, usize) {
        match self {
            Op::Read { len } => (Access::Read, *len),
            Op::Write { data, durability: Durability::Durable } => (Access::DurableWrite, data.len()),
            Op::Write { data, durability: Durability::Volatile } => (Access::Write, data.len()),
            Op::Sync { .. } | Op::Grow { .. } => (Access::Sync, 0),
            Op::Discard { len } => (Access::Discard, *len),
        }
    }
}

#[derive(Clone)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) owner: ProcessId,
    pub(super) life: Life,
    /// Its name for the model.
    pub(super) key: RequestKey,
    started: Time,
    /// The model has said when it ends.
    pub(super) is_decided: bool,
    /// The drive's count of requests: what is decided about this one does not depend on other drives.
    pub(super) number: u64,
    /// Replacements of the drive when it started: it has no effect on a later drive.
    replaced: u32,
    verdict: Verdict,
    slot: Rc<Slot>,
}

/// Where the answer to a request goes. Its future may be gone.
#[derive(Default)]
pub(super) struct Slot {
    answer: RefCell<Option<Result<Bytes, DriveError>>>,
    waker: Cell<Option<Waker>>,
}

impl Slot {
    pub(super) fn fill(&self, answer: Result<Bytes, DriveError>) -> Option<Waker> {
        *self.answer.borrow_mut() = Some(answer);
        self.waker.take()
    }
}

/// The future of an answer.
pub(super) struct Answer<T> {
    pub(super) slot: Rc<Slot>,
    pub(super) convert: fn(Bytes) -> T,
}

impl<T> Future for Answer<T> {
    type Output = Result<T, DriveError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.slot.answer.take() {
            Some(answer) => Poll::Ready(answer.map(self.convert)),
            None => {
                self.slot.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Starts a request of `life` on the drive as it was after `replaced` replacements.
pub(super) fn start(
    world: &Rc<World>,
    drive: DriveId,
    replaced: u32,
    (owner, life): (ProcessId, Life),
    op: Op,
    offset: u64,
) -> Rc<Slot> {
    let slot = Rc::new(Slot::default());
    if !world.is_alive(owner, life) {
        return slot;
    }
    let mut drives = world.drives.borrow_mut();
    let state = drives.state(drive);
    if let Err(refused) = state.check(replaced, &op, offset) {
        slot.fill(Err(refused));
        return slot;
    }
    let serial = world.serial();
    let (access, len) = op.access();
    let touched = match &op {
        Op::Write { data, .. } => sample(data),
        _ => len as u64,
    };
    world.note(Kind::DriveStart, u64::from(drive.0) << 3 ^ access as u64, offset ^ touched);
    let op = match op {
        Op::Sync { .. } => Op::Sync { covers: state.writes_done },
        op => op,
    };
    let verdict = match op {
        Op::Read { .. } => state.armed.meet_read(),
        Op::Write { .. } => state.armed.meet_write(),
        Op::Sync { .. } => state.armed.meet_sync(),
        Op::Grow { .. } => state.armed.meet_grow(),
        Op::Discard { .. } => Verdict::Good,
    };
    state.requests += 1;
    let number = state.requests;
    let entry = state.in_flight.vacant_entry();
    let key = RequestKey { serial, slot: entry.key() as u32 };
    let (started, answer) = (world.now.get(), Rc::clone(&slot));
    let is_decided = false;
    entry.insert(Request {
        op,
        offset,
        owner,
        life,
        key,
        started,
        is_decided,
        number,
        replaced,
        verdict,
        slot: answer,
    });
    state.meter.depth_is(started, state.in_flight.len());
    state.submit(world, SpeedRequest { key, access, offset, len: len as u64 });
    drop(drives);
    // Dies with the request on its way, if this is where.
    world.io_point(owner);
    slot
}

/// It is the time that the drive's model asked for.
pub(in crate::sim) fn wake(world: &World, drive: u32) {
    let mut drives = world.drives.borrow_mut();
    let state = drives.state(DriveId(drive));
    state.speed.wake(world.now.get(), &mut state.agenda);
    state.carry_out(world);
}

/// A request is over, unless its process died meanwhile.
pub(in crate::sim) fn complete(world: &Rc<World>, drive: u32, key: u32, serial: u64) {
    let mut drives = world.drives.borrow_mut();
    let state = drives.state(DriveId(drive));
    let key = key as usize;
    if state.in_flight.get(key).is_none_or(|request| request.key.serial != serial) {
        return;
    }
    if state.stuck_until > world.now.get() {
        let event = Event::Io { drive, slot: key as u32, serial };
        world.schedule(state.stuck_until, event);
        return;
    }
    let request = state.in_flight.remove(key);
    state.meter.depth_is(world.now.get(), state.in_flight.len());
    world.note(Kind::DriveDone, u64::from(drive), serial);
    let room = match request.op {
        Op::Grow { size_bytes } => {
            let machine = drives.state(DriveId(drive)).machine;
            let grown = size_bytes.saturating_sub(drives.state(DriveId(drive)).size_bytes.unwrap_or(0));
            drives.used_bytes(machine).saturating_add(grown) <= world.options.machine_capacity_bytes
        }
        _ => true,
    };
    let state = drives.state(DriveId(drive));
    let answer = state.apply(world, &mut world.atlas.borrow_mut(), &request, room);
    if answer.is_ok() && !matches!(request.op, Op::Grow { .. }) {
        let (access, len) = request.op.access();
        state.meter.done(access, len, world.now.get().since(request.started));
    }
    drop(drives);
    if world.io_point(request.owner) {
        return;
    }
    if let Some(waker) = request.slot.fill(answer) {
        world.wake(request.owner, waker);
    }
}

impl DriveState {
    /// The drive has that many bytes from now on.
    pub(super) fn resize(&mut self, size_bytes: u64) {
        self.size_bytes = Some(size_bytes);
        self.speed.install(size_bytes, self.phase);
    }

    fn check(&self, replaced: u32, op: &Op, offset: u64) -> Result<(), DriveError> {
        let name = op.name();
        let Some(size) = self.size_bytes.filter(|_| !self.gone && self.replaced == replaced) else {
            return Err(self.io_error(name, offset, "no such device"));
        };
        if matches!(op, Op::Read { .. } | Op::Discard { .. }) && self.in_flight.len() >= IO_QUEUE_MAX {
            return Err(DriveError::Busy { path: self.name.clone() });
        }
        let len = op.access().1;
        if offset.saturating_add(len as u64) > size {
            return Err(DriveError::PastEnd { path: self.name.clone(), offset, len, size });
        }
        Ok(())
    }

    fn submit(&mut self, world: &World, request: SpeedRequest) {
        self.speed.submit(world.now.get(), request, &mut self.agenda);
        self.carry_out(world);
    }

    /// Gives what waits for a decision of an earlier model to the present one.
    pub(super) fn submit_again(&mut self, world: &World) {
        let mut waiting: Vec<_> = self.in_flight.iter().filter(|(_, request)| !request.is_decided).collect();
        waiting.sort_by_key(|(_, request)| request.number);
        let requests = waiting.into_iter().map(|(_, request)| {
            let (access, len) = request.op.access();
            SpeedRequest { key: request.key, access, offset: request.offset, len: len as u64 }
        });
        let requests: Vec<SpeedRequest> = requests.collect();
        requests.into_iter().for_each(|request| self.submit(world, request));
    }

    /// Schedules what the model decided.
    fn carry_out(&mut self, world: &World) {
        while let Some((key, at)) = self.agenda.take_end() {
            assert!(at >= world.now.get(), "a model that ends a request in the past");
            let Some(request) = self.in_flight.get_mut(key.slot as usize) else { continue };
            if request.key != key {
                // Its process is gone, and another request has its slot.
                continue;
            }
            request.is_decided = true;
            let number = request.number;
            let at = self.disturbed(world, at, number);
            world.schedule(at, Event::Io { drive: self.id.0, slot: key.slot, serial: key.serial });
        }
        if let Some(at) = self.agenda.take_wake() {
            world.schedule(at, Event::DriveWake { drive: self.id.0 });
        }
    }

    /// When a request ends that by its model ends at `at`: jitter and slowness stretch the time from now on.
    fn disturbed(&self, world: &World, at: Time, number: u64) -> Time {
        let now = world.now.get();
        let mut span = at.0 - now.0;
        let jitter = u64::from(world.options.drive_jitter_percent);
        if jitter > 0 {
            let bits = world.dice.draw(Domain::DriveTime, u64::from(self.id.0), number);
            span += scale(bits, span * jitter / 100 + 1);
        }
        if let Some((percent, _)) = self.slow.filter(|&(_, until)| until > now) {
            span = span.saturating_mul(u64::from(percent)) / 100;
        }
        Time(now.0.saturating_add(span))
    }

    /// Does what the request asks, as far as its verdict lets it.
    fn apply(
        &mut self,
        world: &World,
        atlas: &mut Atlas,
        request: &Request,
        room: bool,
    ) -> Result<Bytes, DriveError> {
        let (name, offset) = (request.op.name(), request.offset);
        if self.gone || self.replaced != request.replaced {
            return Err(self.io_error(name, offset, "no such device"));
        }
        if request.verdict == Verdict::NoSpace || !room {
            return Err(DriveError::NoSpace { path: self.name.clone(), operation: name, offset });
        }
        let failed = request.verdict == Verdict::Fail;
        match &request.op {
            Op::Read { len } => {
                if failed {
                    return Err(self.io_error(name, offset, "input/output error"));
                }
                if let Some(block) = self.image.unreadable(offset, *len) {
                    let at = block * BLOCK_BYTES as u64;
                    return Err(self.io_error(name, at, "unreadable sector"));
                }
                Ok(self.image.read(offset, *len))
            }
            Op::Write { data, durability } => self.apply_write(world, atlas, request, data, *durability),
            Op::Sync { covers } if failed => {
                let fates = self.fates(world, false);
                let (id, now) = (self.id, world.now.get());
                let dropped = |block| {
                    let at = block * BLOCK_BYTES as u64;
                    atlas.record(now, id, at, BLOCK_BYTES, HarmKind::FailedWrite);
                };
                self.image.settle(*covers, |done, piece| fates.mask(done, piece), dropped);
                Err(self.io_error(name, offset, "input/output error"))
            }
            Op::Sync { covers } => {
                let id = self.id;
                self.image.sync(*covers, |block| atlas.heal(id, block));
                Ok(Bytes::new())
            }
            Op::Grow { size_bytes } => {
                self.resize(self.size_bytes.unwrap_or(0).max(*size_bytes));
                Ok(Bytes::new())
            }
            Op::Discard { len } => {
                let fates = self.fates(world, true);
                let number = request.number;
                for (index, block) in blocks(offset, *len).enumerate() {
                    if fates.coin(number + ((index as u64) << 32)) {
                        self.image.clear(block);
                    }
                }
                Ok(Bytes::new())
            }
        }
    }

    fn apply_write(
        &mut self,
        world: &World,
        atlas: &mut Atlas,
        request: &Request,
        data: &Bytes,
        durability: Durability,
    ) -> Result<Bytes, DriveError> {
        let (offset, now) = (request.offset, world.now.get());
        match request.verdict {
            Verdict::Fail => {
                let fates = self.fates(world, false);
                self.overlay(offset, data, &fates, request.number);
                atlas.record(now, self.id, offset, data.len(), HarmKind::FailedWrite);
                return Err(self.io_error("write", offset, "input/output error"));
            }
            Verdict::Lose => self.lose(atlas, now, offset, data.len(), HarmKind::LostWrite),
            Verdict::Misdirect => {
                self.lose(atlas, now, offset, data.len(), HarmKind::MisdirectedFrom);
                self.misdirect(world, atlas, request, data);
            }
            Verdict::Good | Verdict::NoSpace if durability == Durability::Durable => {
                self.image.write_stable(offset, data);
                blocks(offset, data.len()).for_each(|block| atlas.heal(self.id, block));
            }
            Verdict::Good | Verdict::NoSpace => {
                self.writes_done += 1;
                self.image.write_volatile(self.writes_done, offset, data);
            }
        }
        Ok(Bytes::new())
    }

    /// Leaves the blocks as they were, and says so in the atlas.
    fn lose(&mut self, atlas: &mut Atlas, now: Time, offset: u64, len: usize, kind: HarmKind) {
        // Older volatile writes become stable now, lest a later sync of them pass for a repair of this loss.
        blocks(offset, len).for_each(|block| self.image.sync_block(block));
        atlas.record(now, self.id, offset, len, kind);
    }

    fn misdirect(&mut self, world: &World, atlas: &mut Atlas, request: &Request, data: &Bytes) {
        let size_blocks = self.size_bytes.unwrap_or(0) / BLOCK_BYTES as u64;
        let places = size_blocks.saturating_sub((data.len() / BLOCK_BYTES) as u64) + 1;
        let place = world.dice.below(Domain::DriveFault, u64::from(self.id.0), request.number, places);
        let target = place * BLOCK_BYTES as u64;
        if target == request.offset {
            return;
        }
        self.image.write_stable(target, data);
        atlas.record(world.now.get(), self.id, target, data.len(), HarmKind::MisdirectedTo);
    }
}
