//! A simulated drive as a process sees it.

use std::rc::Rc;

use bytes::Bytes;

use crate::drive::{Device, Drive, DriveError, DriveFuture, Durability, OpenDrive, Pieces};
use crate::limits::BLOCK_BYTES;
use crate::sim::process::{Life, ProcessId};
use crate::sim::world::World;

use super::io::{Answer, Op, Slot, start};
use super::{DriveId, Holder};

struct SimDevice {
    world: Rc<World>,
    drive: DriveId,
    replaced: u32,
    name: String,
    owner: ProcessId,
    life: Life,
    /// `None` if it was opened for reading only.
    opening: Option<u64>,
}

/// Opens or creates a drive on the machine of `owner`.
pub(in crate::sim) fn open(
    world: &Rc<World>,
    owner: ProcessId,
    life: Life,
    open: &OpenDrive,
) -> Result<Drive, DriveError> {
    let machine = world.processes.borrow()[owner.0 as usize].machine;
    let name = open.path.display().to_string();
    let mut drives = world.drives.borrow_mut();
    let drive = drives.find_or_add(world, machine, &name);
    let used_bytes = drives.used_bytes(machine);
    let state = drives.state(drive);
    if state.gone {
        return Err(state.io_error("open", 0, "no such device"));
    }
    match (state.size_bytes, open.create_bytes.filter(|_| !open.read_only)) {
        (Some(_), _) => {}
        (None, None) => return Err(DriveError::NotFound { path: name }),
        (None, Some(size)) => {
            if used_bytes.saturating_add(size) > world.options.machine_capacity_bytes {
                return Err(DriveError::NoSpace { path: name, operation: "open", offset: 0 });
            }
            state.resize(size - size % BLOCK_BYTES as u64);
        }
    }
    let opening = (!open.read_only).then(|| world.serial());
    if let Some(opening) = opening {
        if state.holder.is_some() {
            return Err(DriveError::InUse { path: name });
        }
        state.holder = Some(Holder { process: owner, life, opening });
    }
    let replaced = state.replaced;
    drop(drives);
    let world = Rc::clone(world);
    Ok(Drive::new(Rc::new(SimDevice { world, drive, replaced, name, owner, life, opening })))
}

impl SimDevice {
    fn start(&self, op: Op, offset: u64) -> Rc<Slot> {
        start(&self.world, self.drive, self.replaced, (self.owner, self.life), op, offset)
    }

    fn change(&self, op: Op, offset: u64) -> DriveFuture<()> {
        let slot = if self.opening.is_some() {
            self.start(op, offset)
        } else {
            let slot = Rc::new(Slot::default());
            let (path, message) = (self.name.clone(), "opened for reading only".to_owned());
            slot.fill(Err(DriveError::Io { path, operation: op.name(), offset, message }));
            slot
        };
        Box::pin(Answer { slot, convert: |_| () })
    }
}

impl Device for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.world.drives.borrow_mut().state(self.drive).size_bytes.unwrap_or(0)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn allocates(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let slot = self.start(Op::Read { len }, offset);
        Box::pin(Answer { slot, convert: |bytes| bytes })
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        self.change(Op::Write { data: data.joined(), durability }, offset)
    }

    fn sync(&self) -> DriveFuture<()> {
        self.change(Op::Sync { covers: 0 }, 0)
    }

    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        self.change(Op::Grow { size_bytes }, 0)
    }

    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        self.change(Op::Discard { len }, offset)
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        let mut drives = self.world.drives.borrow_mut();
        let state = drives.state(self.drive);
        let holder = state.holder.map(|holder| holder.opening);
        if holder.is_some() && holder == self.opening {
            state.holder = None;
        }
    }
}
