//! What a link is made of: one drive, or several sides that hold the same.
//!
//! ```text
//!   write ──► every live side ──► all have it ────────────────────────────────► done
//!                             └─► one failed ──► marked as stale, durably ──► done without it
//!   read  ──► one live side in turn ──► failed ──► the next one
//! ```
//!
//! * A write is done when every live side has it. A side that fails one is given up before the write is done, in the
//!   superblocks of all other drives, so that no later open believes it. Without another live side the write fails.
//! * It does not know what it reads and writes; whoever does asks another side if a checksum does not match.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability};

use crate::membership::DriveId;
use crate::registry::Registry;

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
    sides: Vec<Side>,
    /// Says which of them are live, and is told of those that fail. Without it all are, and a failure is the link's.
    registry: Option<Rc<Registry>>,
    /// Counts reads, so that each goes to another side.
    turn: Cell<usize>,
}

impl Sides {
    /// The sides of a link whose drives `registry` knows.
    pub(crate) fn new(sides: Vec<Side>, registry: &Rc<Registry>) -> Self {
        assert!(!sides.is_empty(), "a link has a side");
        Self { inner: Rc::new(Inner { sides, registry: Some(Rc::clone(registry)), turn: Cell::new(0) }) }
    }

    /// One drive that is looked at by itself.
    pub(crate) fn single(drive: &Drive) -> Self {
        let side = Side { id: DriveId(0), drive: drive.clone() };
        Self { inner: Rc::new(Inner { sides: vec![side], registry: None, turn: Cell::new(0) }) }
    }

    /// The sides that have everything that was acknowledged. There is at least one.
    pub(crate) fn live(&self) -> Vec<Side> {
        self.inner.sides.iter().filter(|side| self.is_live(side.id)).cloned().collect()
    }

    /// The drives of the live sides.
    pub(crate) fn live_drives(&self) -> Vec<Drive> {
        self.live().into_iter().map(|side| side.drive).collect()
    }

    /// The same, beginning with the one whose turn it is to be read.
    pub(crate) fn in_turn(&self) -> Vec<Drive> {
        let mut drives = self.live_drives();
        let turn = self.inner.turn.get();
        self.inner.turn.set(turn.wrapping_add(1));
        let first = turn % drives.len();
        drives.rotate_left(first);
        drives
    }

    fn is_live(&self, id: DriveId) -> bool {
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

    /// Reads `[offset, offset + len)` of a live side; of another one if that fails. Starts at once. Errors: no side can
    /// read it.
    pub(crate) fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let live = self.in_turn();
        let read = live[0].read(offset, len);
        if live.len() == 1 {
            return read;
        }
        Box::pin(async move {
            let first = match read.await {
                Err(first) => first,
                answered => return answered,
            };
            for side in &live[1..] {
                if let Ok(bytes) = side.read(offset, len).await {
                    return Ok(bytes);
                }
            }
            Err(first)
        })
    }

    /// Writes `data` to every live side. Starts at once; with [`Durability::Durable`] it is on stable storage of every
    /// side that is live when the future is ready.
    pub(crate) fn write(&self, offset: u64, data: Bytes, durability: Durability) -> DriveFuture<()> {
        self.on_every(|drive| drive.write(offset, data.clone(), durability))
    }

    /// Puts every write that has completed on stable storage of every live side.
    pub(crate) fn sync(&self) -> DriveFuture<()> {
        self.on_every(Drive::sync)
    }

    /// Makes every live side at least this long. Errors: one of them cannot grow; none is given up for that.
    pub(crate) fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        let grown: Vec<_> = self.live().iter().map(|side| side.drive.grow(size_bytes)).collect();
        Box::pin(async move {
            let mut answer = Ok(());
            for one in grown {
                answer = answer.and(one.await);
            }
            answer
        })
    }

    fn on_every(&self, start: impl Fn(&Drive) -> DriveFuture<()>) -> DriveFuture<()> {
        let mut live = self.live();
        if live.len() == 1 {
            return start(&live.remove(0).drive);
        }
        let started: Vec<_> = live.into_iter().map(|side| (side.id, start(&side.drive))).collect();
        let this = self.clone();
        Box::pin(async move { this.all_have(started).await })
    }

    /// Waits for every side, and gives up those that failed.
    async fn all_have(&self, started: Vec<(DriveId, DriveFuture<()>)>) -> Result<(), DriveError> {
        let mut have = Vec::new();
        let mut failed = Vec::new();
        let mut first = None;
        for (id, request) in started {
            match request.await {
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
