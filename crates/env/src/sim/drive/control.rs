//! Drives from the outside: faults, speeds, and a look at their bytes.

use std::cell::Ref;
use std::net::IpAddr;

use bytes::Bytes;

use crate::Time;
use crate::limits::BLOCK_BYTES;
use crate::sim::driver::Sim;
use crate::sim::trace::Kind;
use crate::sim::world::World;

use super::fault::trace_number;
use super::image::Image;
use super::{Atlas, DriveFault, DriveId, DriveState, DriveStats, HarmKind, SpeedModel};

impl Sim {
    /// The drive called `name` on a machine, whether it exists yet or not.
    pub fn drive(&self, machine: IpAddr, name: &str) -> DriveId {
        self.world.drives.borrow_mut().find_or_add(&self.world, machine, name)
    }

    /// Its size in bytes; `None` if it does not exist.
    pub fn drive_size_bytes(&self, drive: DriveId) -> Option<u64> {
        self.world.drives.borrow_mut().state(drive).size_bytes
    }

    /// Does something to a drive, at once.
    pub fn fault_drive(&self, drive: DriveId, fault: DriveFault) {
        self.world.note(Kind::DriveFault, u64::from(drive.0), trace_number(drive, &fault));
        let mut drives = self.world.drives.borrow_mut();
        drives.state(drive).suffer(&self.world, fault);
    }

    /// Gives the drive another speed, from its next request on; what waits in a queue of the present model moves to
    /// that of the next. What the drive's parts did so far is counted no more.
    pub fn set_drive_speed(&self, drive: DriveId, speed: Box<dyn SpeedModel>) {
        let mut drives = self.world.drives.borrow_mut();
        let state = drives.state(drive);
        state.speed = speed;
        if let Some(size_bytes) = state.size_bytes {
            state.speed.install(size_bytes, state.phase);
        }
        state.submit_again(&self.world);
    }

    /// What the drive did until now.
    pub fn drive_stats(&self, drive: DriveId) -> DriveStats {
        let mut drives = self.world.drives.borrow_mut();
        let state = drives.state(drive);
        state.meter.depth_is(self.world.now.get(), state.in_flight.len());
        DriveStats { media: state.speed.media(), ..state.meter.stats }
    }

    /// Whole blocks as a reader would see them, without a request: for oracles and for tests that harm bytes of their
    /// choice.
    pub fn peek_drive(&self, drive: DriveId, offset: u64, len: usize) -> Bytes {
        self.world.drives.borrow_mut().state(drive).image.read(offset, len)
    }

    /// What was harmed so far.
    pub fn atlas(&self) -> Ref<'_, Atlas> {
        self.world.atlas.borrow()
    }
}

impl DriveState {
    fn suffer(&mut self, world: &World, fault: DriveFault) {
        let now = world.now.get();
        let mut atlas = world.atlas.borrow_mut();
        match fault {
            DriveFault::FailWrites { count } => self.armed.fail_writes += count,
            DriveFault::FailSyncs { count } => self.armed.fail_syncs += count,
            DriveFault::FailReads { count } => self.armed.fail_reads += count,
            DriveFault::NoSpace { count } => self.armed.no_space += count,
            DriveFault::LoseWrites { count } => self.armed.lose_writes += count,
            DriveFault::MisdirectWrites { count } => self.armed.misdirect_writes += count,
            DriveFault::Unreadable { offset } => {
                let block = offset / BLOCK_BYTES as u64;
                self.image.spoil(block);
                atlas.record(now, self.id, block * BLOCK_BYTES as u64, BLOCK_BYTES, HarmKind::Unreadable);
            }
            DriveFault::BitRot { offset, bit } => {
                self.image.flip(offset, bit);
                let block = offset - offset % BLOCK_BYTES as u64;
                atlas.record(now, self.id, block, BLOCK_BYTES, HarmKind::BitRot);
            }
            DriveFault::Slow { percent, span } => self.slow = Some((percent, now + span)),
            DriveFault::Stuck { span } => self.stuck_until = self.stuck_until.max(now + span),
            DriveFault::Gone => {
                self.gone = true;
                atlas.record_gone(now, self.id);
            }
            DriveFault::Replace => {
                self.replace();
                self.submit_again(world);
                atlas.heal_drive(self.id);
            }
        }
    }

    pub(super) fn replace(&mut self) {
        self.gone = false;
        self.replaced += 1;
        self.size_bytes = None;
        self.image = Image::default();
        self.speed.replace();
        self.holder = None;
        self.armed = super::Armed::default();
        self.slow = None;
        self.stuck_until = Time::ZERO;
    }
}
