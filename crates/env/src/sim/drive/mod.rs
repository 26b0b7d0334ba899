//! Simulated drives: files and devices on simulated machines, with a crash model, faults and a speed.
//!
//! * A durable write is stable when it completes; a volatile one when a sync that started after its completion does.
//! * At a power cut, of every write that is not stable any part may be there, in pieces of 512 bytes.
//! * A drive belongs to a machine and outlives its processes. One process at a time may have it open for writing.
//!
//! * How long requests take is a [`SpeedModel`]'s matter.
//!
//! What is not modelled: the file system below (names, metadata), and a size that a crash takes back.

mod atlas;
mod control;
mod device;
mod doubt;
mod fate;
mod fault;
mod image;
mod io;
mod speed;
mod stats;

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use slab::Slab;

use crate::Time;
use crate::drive::DriveError;

use super::process::{Death, Life, ProcessId};
use super::random::Domain;
use super::world::World;

pub use atlas::{Atlas, Harm, HarmKind};
pub(super) use device::open;
pub use doubt::{Content, Doubt, Kept};
pub use fault::{Budget, DriveFault};
pub(super) use io::wake;
pub use speed::{
    Access, Agenda, Array, ArrayOptions, Disk, DiskOptions, Lanes, LanesOptions, MediaStats, RequestKey,
    Speed, SpeedModel, SpeedRequest, Ssd, SsdOptions,
};
pub use stats::{DriveStats, KindStats};

use fate::Fates;
use fault::Armed;
use image::Image;
pub(super) use io::complete;
use io::{Op, Request};
use stats::Meter;

/// A drive of a simulation, whether it exists yet or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub(super) u32);

/// Who has a drive open for writing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder {
    process: ProcessId,
    life: Life,
    /// Told apart from another opening in the same life.
    opening: u64,
}

struct DriveState {
    id: DriveId,
    name: String,
    machine: IpAddr,
    /// `None` until it is created.
    size_bytes: Option<u64>,
    image: Image,
    in_flight: Slab<Request>,
    holder: Option<Holder>,
    speed: Box<dyn SpeedModel>,
    /// What the model decided and is not carried out yet.
    agenda: Agenda,
    /// A number of this drive's own for its model.
    phase: u64,
    meter: Meter,
    armed: Armed,
    /// Slower by this many percent until then.
    slow: Option<(u32, Time)>,
    stuck_until: Time,
    gone: bool,
    /// How often it was replaced; what was opened before a replacement works no more.
    replaced: u32,
    /// Requests so far, which number the decisions about them.
    requests: u64,
    /// Completed writes, which orders them for syncs.
    writes_done: u64,
    /// Crashes and failed requests, which number the fates.
    accidents: u64,
}

/// Every drive of the world.
#[derive(Default)]
pub(super) struct Drives {
    list: Vec<DriveState>,
    by_name: BTreeMap<(IpAddr, String), DriveId>,
}

impl Drives {
    fn state(&mut self, id: DriveId) -> &mut DriveState {
        &mut self.list[id.0 as usize]
    }

    /// Bytes that the files of a machine take.
    fn used_bytes(&self, machine: IpAddr) -> u64 {
        let on_machine = self.list.iter().filter(|drive| drive.machine == machine);
        on_machine.filter_map(|drive| drive.size_bytes).sum()
    }

    fn find_or_add(&mut self, world: &World, machine: IpAddr, name: &str) -> DriveId {
        if let Some(&id) = self.by_name.get(&(machine, name.to_owned())) {
            return id;
        }
        let id = DriveId(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
        // Requests are numbered from 1: decision 0 is about the drive itself.
        let phase = world.dice.draw(Domain::DriveTime, u64::from(id.0), 0);
        self.list.push(DriveState {
            id,
            name: name.to_owned(),
            machine,
            size_bytes: None,
            image: Image::default(),
            in_flight: Slab::new(),
            holder: None,
            speed: world.options.drive_speed.model(),
            agenda: Agenda::default(),
            phase,
            meter: Meter::default(),
            armed: Armed::default(),
            slow: None,
            stuck_until: Time::ZERO,
            gone: false,
            replaced: 0,
            requests: 0,
            writes_done: 0,
            accidents: 0,
        });
        self.by_name.insert((machine, name.to_owned()), id);
        id
    }

    /// Ends what slows drives and takes back the faults that wait for a request.
    pub(super) fn calm(&mut self) {
        for drive in &mut self.list {
            drive.armed = Armed::default();
            drive.slow = None;
            drive.stuck_until = Time::ZERO;
        }
    }

    /// What the end of a process does to the drives that it has open.
    pub(super) fn bury(&mut self, world: &World, process: ProcessId, life: Life, death: Death) {
        for drive in &mut self.list {
            let mut cut_off: Vec<Request> = Vec::new();
            drive.in_flight.retain(|_, request| {
                let is_its = request.owner == process && request.life == life;
                if is_its {
                    cut_off.push(request.clone());
                }
                !is_its
            });
            cut_off.sort_by_key(|request| request.number);
            drive.meter.depth_is(world.now.get(), drive.in_flight.len());
            let held = drive.holder.is_some_and(|holder| holder.process == process && holder.life == life);
            if death != Death::Kill && (held || !cut_off.is_empty()) {
                // Without power nothing begins any more; after a kill the drive does what it was given.
                drive.speed.cut_power(&cut_off.iter().map(|request| request.key).collect());
            }
            if held {
                drive.holder = None;
                drive.crash(world, death, &cut_off);
            }
        }
    }
}

impl DriveState {
    fn fates(&mut self, world: &World, whole_blocks: bool) -> Fates {
        self.accidents += 1;
        Fates::new(world.dice, self.id, self.accidents, whole_blocks)
    }

    /// Decides what is left of the writes that are not stable.
    fn crash(&mut self, world: &World, death: Death, cut_off: &[Request]) {
        let fates = self.fates(world, death == Death::Kill);
        world.note(super::trace::Kind::DriveCrash, u64::from(self.id.0), cut_off.len() as u64);
        if death != Death::Kill {
            self.image.settle(u64::MAX, |done, piece| fates.mask(done, piece), |_| ());
        }
        for request in cut_off {
            // Counted apart from completed writes, so that the fates of the two are independent.
            let number = u64::MAX - request.number;
            match &request.op {
                Op::Write { data, .. } if death == Death::Kill => {
                    self.writes_done += 1;
                    let kept = |piece| fates.mask(number, piece) != 0;
                    self.image.write_volatile_parts(self.writes_done, request.offset, data, kept);
                }
                Op::Write { data, .. } => self.overlay(request.offset, data, &fates, number),
                Op::Grow { size_bytes } if fates.coin(number) => {
                    self.resize(self.size_bytes.unwrap_or(0).max(*size_bytes));
                }
                Op::Grow { .. } | Op::Read { .. } | Op::Sync { .. } | Op::Discard { .. } => {}
            }
        }
    }

    /// Puts the part of a write that `fates` keeps on the stable image.
    fn overlay(&mut self, offset: u64, data: &Bytes, fates: &Fates, number: u64) {
        for (piece, block, data) in image::pieces(offset, data) {
            self.image.overlay(block, &data, fates.mask(number, piece));
        }
    }

    fn io_error(&self, operation: &'static str, offset: u64, message: &str) -> DriveError {
        DriveError::Io { path: self.name.clone(), operation, offset, message: message.to_owned() }
    }
}
