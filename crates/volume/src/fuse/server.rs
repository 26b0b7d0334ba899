//! The server: a thin shell. One task takes requests from the kernel, each request has one that carries it out, and one looks whether
//! threads with transactions live.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::fuse::{Channel, FuseError};
use ithaca_env::sync::{Count, Notify};
use ithaca_env::task::TaskHandle;

use super::limits::{LOOK_EVERY, NAME_MAX_BYTES, REQUESTS_MAX, WRITE_MAX_BYTES};
use super::reply::{self, Body};
use super::threads::Threads;
use super::tree::{Node, Tree};
use super::wire::{self, Errno, Head, MAJOR, MINOR_MIN, Operation};
use crate::nbd::export::{Disk, Export};
use crate::planted::PlantedBug;
use crate::{Planted, Region, Tx, Volume, nbd, parts};

/// A hole is made, and the size stays (`FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`).
const PUNCH: u32 = 0b11;
/// Zeros are made that are stored (`FALLOC_FL_ZERO_RANGE`), with or without the size as it is.
const ZERO: u32 = 0b1_0000;
const KEEP_SIZE: u32 = 0b1;

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The file's name, if what is mounted is a folder.
    pub name: String,
    /// The region that the file shows; all of the volume if none.
    pub region: Option<Region>,
    /// The group that the file belongs to; its user is the server's.
    pub group: u32,
    /// A deliberate fault; none in ordinary builds.
    pub planted: Planted,
}

/// Serves a volume as a file until it is stopped, dropped or unmounted.
pub struct Server {
    shared: Rc<Shared>,
    tasks: [TaskHandle<()>; 2],
}

/// What all tasks share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) channel: Channel,
    pub(super) volume: Volume,
    pub(super) export: Export,
    tree: Tree,
    planted: Planted,
    pub(super) threads: RefCell<Threads<Rc<Tx>>>,
    under_way: Count,
    /// How it has ended, if it has.
    ended: RefCell<Option<Result<(), FuseError>>>,
    /// Rings when it has ended, and when a thread has a transaction.
    pub(super) changed: Notify,
}

impl Server {
    /// Serves `volume` through `channel`. Returns at once.
    pub fn start(env: &Env, channel: Channel, volume: &Volume, options: ServerOptions) -> Self {
        let ServerOptions { name, region, group, planted } = options;
        let served = nbd::ServerOptions { planted, ..nbd::ServerOptions::new(&name) };
        let export = Rc::new(Disk::new(volume.clone(), served)).now(region.as_ref());
        let size_bytes = export.info().size_bytes;
        let shared = Rc::new(Shared {
            env: env.clone(),
            volume: volume.clone(),
            export,
            tree: Tree { in_folder: channel.is_folder(), name, size_bytes, user: env.user(), group },
            channel,
            planted,
            threads: RefCell::default(),
            under_way: Count::default(),
            ended: RefCell::default(),
            changed: Notify::default(),
        });
        let taking = env.spawn(Rc::clone(&shared).take_requests());
        let looking = env.spawn(Rc::clone(&shared).look_for_the_dead());
        Self { shared, tasks: [taking, looking] }
    }

    /// Waits until it is unmounted. Errors: nothing more comes from the kernel, for another reason.
    pub async fn ended(&self) -> Result<(), FuseError> {
        self.shared.changed.until(|| self.shared.ended.borrow().clone()).await
    }

    /// Takes no more requests, answers what is under way, aborts the transactions of all threads and unmounts the file. On return
    /// nobody uses the volume; nothing was flushed for that.
    pub async fn stop(self) {
        self.tasks.iter().for_each(TaskHandle::abort);
        self.shared.under_way.below(1).await;
        *self.shared.threads.borrow_mut() = Threads::default();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(TaskHandle::abort);
    }
}

impl Shared {
    async fn take_requests(self: Rc<Self>) {
        let ended = self.take_until_unmounted().await;
        *self.ended.borrow_mut() = Some(ended);
        self.changed.ring();
    }

    /// Errors: the channel is of no use any more.
    async fn take_until_unmounted(self: &Rc<Self>) -> Result<(), FuseError> {
        loop {
            self.under_way.below(REQUESTS_MAX).await;
            let Some(message) = self.channel.receive().await? else { return Ok(()) };
            let Some((head, operation)) = wire::decode(&message) else {
                tracing::warn!(bytes = message.len(), "fuse: a request that is none is left out");
                continue;
            };
            if operation == Operation::Told {
                continue;
            }
            let (shared, under_way) = (Rc::clone(self), self.under_way.one_more());
            self.env.spawn(async move {
                let answer = shared.carry_out(&head, operation).await;
                let bytes = reply::head(head.unique, &answer);
                let mut pieces: Vec<&[u8]> = vec![&bytes];
                pieces.extend(answer.iter().flatten().map(|piece| &piece[..]));
                if let Err(error) = shared.channel.send(&pieces) {
                    tracing::warn!("fuse: {error}");
                }
                drop(under_way);
            });
        }
    }

    /// Aborts what threads have that are not there any more.
    async fn look_for_the_dead(self: Rc<Self>) {
        loop {
            self.changed.until(|| (!self.threads.borrow().is_empty()).then_some(())).await;
            self.env.sleep(LOOK_EVERY).await;
            if self.planted.is(PlantedBug::DeadThreadKeeps) {
                continue;
            }
            let dead = self.threads.borrow_mut().take_dead(|thread| self.channel.thread_started(thread));
            for (thread, _tx) in dead {
                tracing::debug!(thread, "fuse: a thread has ended, and its transaction with it");
            }
        }
    }

    async fn carry_out(&self, head: &Head, operation: Operation) -> Result<Body, Errno> {
        let node = self.tree.node(head.node);
        let node_or_none = node.ok_or(Errno::NOENT);
        match operation {
            Operation::Init { major, minor, .. } if major != MAJOR || minor < MINOR_MIN => {
                tracing::warn!(major, minor, "fuse: the kernel is too old");
                Err(Errno::PROTO)
            }
            Operation::Init { read_ahead, flags, .. } => Ok(reply::init(read_ahead, flags)),
            Operation::Lookup { name } if name.len() > NAME_MAX_BYTES => Err(Errno::NAMETOOLONG),
            Operation::Lookup { name } => match node_or_none? {
                Node::Folder if name == self.tree.name => Ok(reply::entry(&self.tree, Node::File)),
                _ => Err(Errno::NOENT),
            },
            Operation::SetAttributes { mode, user, group } => {
                let (node, tree) = (node_or_none?, &self.tree);
                let stays = mode.is_none_or(|mode| reply::has_mode(node, mode))
                    && user.is_none_or(|user| user == tree.user)
                    && group.is_none_or(|group| group == tree.group);
                // A size that is asked for is not given, and no error: as that of any disk, it stays what it is.
                if stays { Ok(reply::attributes(tree, node)) } else { Err(Errno::PERM) }
            }
            Operation::Attributes => Ok(reply::attributes(&self.tree, node_or_none?)),
            Operation::ChangeFolder => Err(Errno::PERM),
            Operation::Open | Operation::OpenFolder => Ok(reply::opened(node_or_none?)),
            Operation::ReadFolder { offset, size } => Ok(reply::entries(&self.tree, offset, size)),
            Operation::StatFs => Ok(reply::statfs(&self.tree)),
            Operation::Release | Operation::Destroy => Ok(Body::new()),
            Operation::Sync => {
                self.export.flush().await?;
                Ok(Body::new())
            }
            Operation::Told | Operation::Other => Err(Errno::NOSYS),
            of_the_file if node == Some(Node::File) => self.of_the_file(head, of_the_file).await,
            _ => Err(Errno::INVAL),
        }
    }

    async fn of_the_file(&self, head: &Head, operation: Operation) -> Result<Body, Errno> {
        match operation {
            Operation::Read { offset, size, is_call } => {
                // Others see what the kernel keeps: it is of no transaction.
                let tx = if is_call { self.tx(head.thread) } else { None };
                self.read(tx, offset, size).await
            }
            Operation::Write { offset, data, stable } => self.write(head.thread, offset, data, stable).await,
            Operation::Allocate { offset, length, mode } => {
                self.allocate(head.thread, offset, length, mode).await
            }
            Operation::Control { command, data, out_size } => {
                self.control(head, command, data, out_size).await
            }
            _ => unreachable!("other requests are not about the file"),
        }
    }

    /// The transaction that the thread is in. It waits for an answer, so that who it is cannot change meanwhile.
    pub(super) fn tx(&self, thread: u32) -> Option<Rc<Tx>> {
        let started = || self.channel.thread_started(thread);
        self.threads.borrow_mut().get(thread, started).cloned()
    }

    async fn read(&self, tx: Option<Rc<Tx>>, offset: u64, size: u32) -> Result<Body, Errno> {
        let wanted = u64::from(size.min(WRITE_MAX_BYTES));
        let end = offset.saturating_add(wanted).min(self.tree.size_bytes);
        if offset >= end {
            return Ok(Body::new());
        }
        let range = offset..end;
        match tx {
            Some(tx) => Ok(vec![parts::read(&tx, &self.export.place(&range)).await?]),
            None => Ok(self.export.read_whole(range).await?),
        }
    }

    /// In a transaction it becomes durable with that, whatever `stable` says.
    async fn write(&self, thread: u32, offset: u64, data: Bytes, stable: bool) -> Result<Body, Errno> {
        let (tx, len) = (self.tx(thread), data.len());
        self.check_end(tx.as_deref(), offset, len as u64)?;
        match tx {
            Some(tx) => {
                let range = self.export.place(&(offset..offset + len as u64));
                parts::write(&tx, range.start, &data).await?;
            }
            None if len > 0 => self.export.write(offset, data, stable).await?,
            None => {}
        }
        Ok(reply::written(len))
    }

    /// Errors, after which the transaction that they are of cannot commit: `NOSPC` for bytes past the end, as any disk answers.
    fn check_end(&self, tx: Option<&Tx>, offset: u64, length: u64) -> Result<(), Errno> {
        if offset.checked_add(length).is_some_and(|end| end <= self.tree.size_bytes) {
            return Ok(());
        }
        // It may be the rest of a longer write, of which the program hears how much was written.
        tx.iter().for_each(|tx| tx.note_refused_write());
        Err(Errno::NOSPC)
    }

    /// Makes holes and zeros; in a transaction both are zeros that it writes.
    async fn allocate(&self, thread: u32, offset: u64, length: u64, mode: u32) -> Result<Body, Errno> {
        let is_stored = match mode {
            PUNCH => false,
            ZERO => true,
            _ if mode == ZERO | KEEP_SIZE => true,
            _ => return Err(Errno::OPNOTSUPP),
        };
        // A hole may reach past the end; there is nothing there.
        let length = if is_stored { length } else { length.min(self.tree.size_bytes.saturating_sub(offset)) };
        if length == 0 {
            return Ok(Body::new());
        }
        let tx = self.tx(thread);
        self.check_end(tx.as_deref(), offset, length)?;
        match tx {
            None => self.export.zero(offset..offset + length, false, is_stored).await?,
            Some(tx) => {
                let range = self.export.place(&(offset..offset + length));
                for start in range.clone().step_by(WRITE_MAX_BYTES as usize) {
                    let len = (range.end - start).min(u64::from(WRITE_MAX_BYTES)) as usize;
                    parts::write(&tx, start, &Bytes::from(vec![0; len])).await?;
                }
            }
        }
        Ok(Body::new())
    }
}
