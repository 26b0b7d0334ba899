//! What a drive has to do: requests that somebody waits for, counted where they are made.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveFuture, Durability, Pieces, Wrapper};

/// Requests that a drive has not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Reads.
    pub reads: u32,
    /// Writes and flushes.
    pub writes: u32,
}

impl Queue {
    /// All of them.
    pub fn len(self) -> u32 {
        self.reads + self.writes
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The queue of one drive, shared by whoever counts and whoever asks.
#[derive(Clone, Default)]
pub(crate) struct Load(Rc<Cell<Queue>>);

impl Load {
    /// As it is now.
    pub(crate) fn queue(&self) -> Queue {
        self.0.get()
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.0.get();
        change(&mut queue);
        self.0.set(queue);
    }

    /// `asked` counts until it is answered, or nobody waits for it any more.
    fn count<T: 'static>(&self, is_write: bool, asked: DriveFuture<T>) -> DriveFuture<T> {
        let under_way = UnderWay::begin(self, is_write);
        Box::pin(async move {
            let answer = asked.await;
            drop(under_way);
            answer
        })
    }
}

/// A request, until it is dropped.
struct UnderWay {
    load: Load,
    is_write: bool,
}

impl UnderWay {
    fn begin(load: &Load, is_write: bool) -> Self {
        load.change(|queue| *Self::counter(queue, is_write) += 1);
        Self { load: load.clone(), is_write }
    }

    fn counter(queue: &mut Queue, is_write: bool) -> &mut u32 {
        if is_write { &mut queue.writes } else { &mut queue.reads }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.load.change(|queue| *Self::counter(queue, self.is_write) -= 1);
    }
}

/// A drive whose requests are counted.
struct Counted {
    drive: Drive,
    load: Load,
}

/// `drive` with its queue, which counts what is asked of it from now on, by what is returned.
pub(crate) fn counted(drive: Drive) -> (Drive, Load) {
    let load = Load::default();
    (Drive::new(Rc::new(Counted { drive, load: load.clone() })), load)
}

/// Growing and discards are not counted: reads hardly wait for them.
impl Wrapper for Counted {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        self.load.count(false, self.drive.read(offset, len))
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        self.load.count(true, self.drive.write(offset, data, durability))
    }

    fn sync(&self) -> DriveFuture<()> {
        self.load.count(true, self.drive.sync())
    }
}
