//! A volume as a file: what the kernel asks for programs and their threads, and what comes of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::fuse::{Channel, FuseError, Kernel};
use ithaca_env::sim::Death;
use ithaca_env::sync::Notify;
use ithaca_volume::fuse::{Server, ServerOptions};
use ithaca_volume::limits::RELEASED_MAX;
use ithaca_volume::{Planted, Region, Volume};

use crate::world::{BLOCKS, World, create, small_options, within};

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
pub const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;
const ENOTTY: i32 = 25;
const ENAMETOOLONG: i32 = 36;
const ECANCELED: i32 = 125;

pub const BEGIN: u32 = 0x4008_b101;
pub const END: u32 = 0x8008_b102;
const ABORT: u32 = 0xb103;
const RELEASE: u32 = 0xc018_b104;
const TAKE_OVER: u32 = 0x4010_b105;
const MARK: u32 = 0x4010_b106;

/// Transactions within each other, at the most.
const DEPTH_MAX: usize = 1000;
/// Of a read: a call asks, and the kernel says whose; it does not of a page that it keeps.
const LOCK_OWNER: u32 = 0b10;
const O_DSYNC: u32 = 0o10_000;
const O_SYNC: u32 = 0o4_010_000;

/// What kernel and programs share.
#[derive(Default)]
struct Shared {
    asked: RefCell<Vec<Bytes>>,
    answers: RefCell<BTreeMap<u64, Bytes>>,
    changed: Notify,
    /// When the threads that there are were started.
    threads: RefCell<BTreeMap<u32, u64>>,
    next: Cell<u64>,
    is_unmounted: Cell<bool>,
    /// It does not say of any thread whether it is there.
    is_short: Cell<bool>,
}

struct Memory(Rc<Shared>);

impl Kernel for Memory {
    fn receive(&self) -> Pin<Box<dyn Future<Output = Result<Option<Bytes>, FuseError>> + '_>> {
        let next = || match self.0.asked.borrow_mut() {
            asked if asked.is_empty() => self.0.is_unmounted.get().then_some(None),
            mut asked => Some(Some(asked.remove(0))),
        };
        Box::pin(async move { Ok(self.0.changed.until(next).await) })
    }

    fn send(&self, message: &[&[u8]]) -> Result<(), FuseError> {
        let message = Bytes::from(message.concat());
        assert_eq!(message.len(), u32::from_le_bytes(message[..4].try_into().expect("4 bytes")) as usize);
        let unique = u64::from_le_bytes(message[8..16].try_into().expect("8 bytes"));
        let before = self.0.answers.borrow_mut().insert(unique, message);
        assert!(before.is_none(), "a request is answered once");
        self.0.changed.ring();
        Ok(())
    }

    fn thread_started(&self, thread: u32) -> Result<Option<u64>, FuseError> {
        let (path, operation, message) = Default::default();
        match self.0.is_short.get() {
            true => Err(FuseError::Io { path, operation, message }),
            false => Ok(self.0.threads.borrow().get(&thread).copied()),
        }
    }
}

/// Programs of a user.
#[derive(Clone)]
pub struct Programs {
    shared: Rc<Shared>,
    user: u32,
}

impl Programs {
    pub fn start(env: &Env, volume: &Volume, is_folder: bool, planted: Planted) -> (Self, Server) {
        Self::start_with(env, volume, is_folder, None, planted)
    }

    /// The same with what the file shows.
    pub fn start_with(
        env: &Env,
        volume: &Volume,
        is_folder: bool,
        region: Option<Region>,
        planted: Planted,
    ) -> (Self, Server) {
        let shared = Rc::new(Shared::default());
        shared.threads.borrow_mut().extend((1..=20).map(|thread| (thread, 1000)));
        let channel = Channel::new(Box::new(Memory(Rc::clone(&shared))), is_folder);
        let options = ServerOptions { name: "disk".to_owned(), region, group: 0, planted };
        (Self { shared, user: 0 }, Server::start(env, channel, volume, options))
    }

    async fn ask(&self, thread: u32, opcode: u32, node: u64, body: &[u8]) -> Result<Bytes, i32> {
        let unique = self.shared.next.get() + 1;
        self.shared.next.set(unique);
        let mut message = BytesMut::new();
        message.put_u32_le(40 + body.len() as u32);
        message.put_u32_le(opcode);
        message.put_u64_le(unique);
        message.put_u64_le(node);
        [self.user, 0, thread, 0].into_iter().for_each(|it| message.put_u32_le(it));
        message.put_slice(body);
        self.shared.asked.borrow_mut().push(message.freeze());
        self.shared.changed.ring();
        let answer = self.shared.changed.until(|| self.shared.answers.borrow_mut().remove(&unique)).await;
        match i32::from_le_bytes(answer[4..8].try_into().expect("4 bytes")) {
            0 => Ok(answer.slice(16..)),
            error => Err(-error),
        }
    }

    /// As by a call: with the owner of the program's descriptors.
    pub async fn read(&self, thread: u32, offset: u64, size: u32) -> Result<Bytes, i32> {
        self.read_flagged(thread, offset, size, LOCK_OWNER).await
    }

    /// With the flags of a read.
    async fn read_flagged(&self, thread: u32, offset: u64, size: u32, flags: u32) -> Result<Bytes, i32> {
        let mut body = BytesMut::zeroed(40);
        body[8..16].copy_from_slice(&offset.to_le_bytes());
        body[16..20].copy_from_slice(&size.to_le_bytes());
        body[20..24].copy_from_slice(&flags.to_le_bytes());
        self.ask(thread, 15, 1, &body).await
    }

    pub async fn write(&self, thread: u32, offset: u64, data: &[u8]) -> Result<(), i32> {
        self.write_opened(thread, offset, data, 0).await
    }

    /// Through a file that was opened with these flags.
    async fn write_opened(&self, thread: u32, offset: u64, data: &[u8], flags: u32) -> Result<(), i32> {
        let mut body = BytesMut::zeroed(40);
        body[8..16].copy_from_slice(&offset.to_le_bytes());
        body[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
        body[32..36].copy_from_slice(&flags.to_le_bytes());
        body.put_slice(data);
        let answer = self.ask(thread, 16, 1, &body).await?;
        assert_eq!(answer[..4], (data.len() as u32).to_le_bytes());
        Ok(())
    }

    pub async fn control(&self, thread: u32, command: u32, data: &[u8]) -> Result<Bytes, i32> {
        let out_bytes = if command >> 31 == 1 { command >> 16 & 0x3fff } else { 0 };
        let mut body = BytesMut::zeroed(32);
        body[12..16].copy_from_slice(&command.to_le_bytes());
        body[24..28].copy_from_slice(&(data.len() as u32).to_le_bytes());
        body[28..32].copy_from_slice(&out_bytes.to_le_bytes());
        body.put_slice(data);
        Ok(self.ask(thread, 39, 1, &body).await?.slice(16..))
    }

    async fn begin(&self, thread: u32) -> Result<(), i32> {
        self.control(thread, BEGIN, &[0; 8]).await.map(drop)
    }

    async fn end(&self, thread: u32) -> Result<u64, i32> {
        let version = self.control(thread, END, &[]).await?;
        Ok(u64::from_le_bytes(version[..].try_into().expect("8 bytes")))
    }

    async fn hole(&self, thread: u32, offset: u64, length: u64) -> Result<(), i32> {
        self.allocate(thread, offset, length, 0b11).await
    }

    async fn allocate(&self, thread: u32, offset: u64, length: u64, mode: u32) -> Result<(), i32> {
        let mut body = BytesMut::zeroed(32);
        body[8..16].copy_from_slice(&offset.to_le_bytes());
        body[16..24].copy_from_slice(&length.to_le_bytes());
        body[24..28].copy_from_slice(&mode.to_le_bytes());
        self.ask(thread, 43, 1, &body).await.map(drop)
    }

    async fn mark(&self, thread: u32, block: u64, bytes: std::ops::Range<u32>) -> Result<(), i32> {
        let mut data = block.to_le_bytes().to_vec();
        data.extend_from_slice(&bytes.start.to_le_bytes());
        data.extend_from_slice(&bytes.end.to_le_bytes());
        self.control(thread, MARK, &data).await.map(drop)
    }
}

/// A test with a served volume.
fn served(seed: u64, test: impl AsyncFnOnce(Env, Volume, Programs) + 'static) {
    within(seed, async move |env| {
        let volume = create(&env, small_options(0)).await;
        let (programs, server) = Programs::start(&env, &volume, false, Planted::default());
        test(env, volume, programs).await;
        server.stop().await;
    });
}

#[test]
fn a_thread_sees_what_it_has_written_and_others_when_it_has_ended() {
    served(1, async |_, _, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 4090, b"over the edge").await.expect("written");
        assert_eq!(all.read(1, 4090, 13).await.expect("read")[..], b"over the edge"[..]);
        assert_eq!(all.read(2, 4090, 13).await.expect("read")[..], [0; 13]);
        assert_eq!(all.end(1).await, Ok(1));
        assert_eq!(all.read(2, 4090, 13).await.expect("read")[..], b"over the edge"[..]);
        assert_eq!(all.end(1).await, Err(EINVAL), "it is in none");
    });
}

#[test]
fn of_two_threads_that_change_the_same_bytes_one_is_told_to_try_again() {
    served(2, async |_, _, all| {
        for thread in [1, 2] {
            all.begin(thread).await.expect("begun");
            all.read(thread, 0, 8).await.expect("read");
            all.write(thread, 0, &[thread as u8; 8]).await.expect("written");
        }
        assert_eq!(all.end(1).await, Ok(1));
        assert_eq!(all.end(2).await, Err(EAGAIN));
        assert_eq!(all.read(3, 0, 8).await.expect("read")[..], [1; 8]);
        all.begin(2).await.expect("it has ended, and begins again");
        assert_eq!(all.end(2).await, Ok(1), "its snapshot, since nothing was written");
    });
}

#[test]
fn of_blocks_that_are_marked_only_the_marked_bytes_are_in_conflict() {
    served(3, async |_, _, all| {
        for thread in [1, 2] {
            all.begin(thread).await.expect("begun");
            let mut block = all.read(thread, 0, 4096).await.expect("read").to_vec();
            let bytes = 64 * thread..64 * thread + 16;
            all.mark(thread, 0, bytes.clone()).await.expect("it was read");
            block[bytes.start as usize..bytes.end as usize].fill(thread as u8);
            all.write(thread, 0, &block).await.expect("written");
            all.mark(thread, 0, bytes).await.expect("it was written");
        }
        assert_eq!((all.end(1).await, all.end(2).await), (Ok(1), Ok(2)));
        let block = all.read(3, 0, 4096).await.expect("read");
        assert_eq!((block[64], block[128], block[0]), (1, 2, 0), "both are there");
        assert_eq!(all.mark(3, 0, 0..16).await, Err(EINVAL), "outside of a transaction");
    });
}

#[test]
fn a_transaction_within_one_that_is_aborted_ends_all_of_it() {
    served(4, async |_, _, all| {
        all.begin(1).await.expect("begun");
        all.begin(1).await.expect("within");
        all.write(1, 0, b"x").await.expect("written");
        assert_eq!(all.end(1).await, Ok(u64::MAX), "of the inner one");
        all.begin(1).await.expect("within");
        all.control(1, ABORT, &[]).await.expect("aborted");
        assert_eq!(all.read(1, 0, 1).await, Err(ECANCELED));
        assert_eq!(all.end(1).await, Err(ECANCELED));
        assert_eq!(all.read(1, 0, 1).await.expect("outside")[..], [0]);
    });
}

#[test]
fn a_released_transaction_goes_on_in_the_thread_that_takes_it_over() {
    served(5, async |_, _, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, b"handed on").await.expect("written");
        let released = all.control(1, RELEASE, &[0; 24]).await.expect("released");
        assert_eq!(all.read(1, 0, 9).await.expect("outside of it")[..], [0; 9]);
        let stranger = Programs { user: 77, ..all.clone() };
        assert_eq!(stranger.control(2, TAKE_OVER, &released[..16]).await, Err(ENOENT));
        all.control(2, TAKE_OVER, &released[..16]).await.expect("taken over");
        assert_eq!(all.read(2, 0, 9).await.expect("within it")[..], b"handed on"[..]);
        assert_eq!(all.control(2, TAKE_OVER, &released[..16]).await, Err(EBUSY));
        assert_eq!(all.control(3, TAKE_OVER, &released[..16]).await, Err(ENOENT), "once");
        assert_eq!(all.end(2).await, Ok(1));
    });
}

#[test]
fn a_transaction_that_cannot_be_released_goes_on_in_its_thread() {
    // A thread that is in none, and does not know it, writes at once and for good what was to be done as a whole or not at all.
    served(15, async |_, volume, all| {
        for nth in 0..RELEASED_MAX as u32 {
            all.begin(10 + nth % 5).await.expect("begun");
            all.control(10 + nth % 5, RELEASE, &[0; 24]).await.expect("released");
        }
        all.begin(1).await.expect("begun");
        all.write(1, 0, b"half").await.expect("written");
        assert_eq!(all.control(1, RELEASE, &[0; 24]).await, Err(EMFILE), "more wait than may");
        all.write(1, 4, b"more").await.expect("written");
        assert_eq!(all.read(2, 0, 8).await.expect("outside")[..], [0; 8]);
        assert_eq!(volume.info().version.0, 0, "nothing is written yet");
        assert_eq!(all.end(1).await, Ok(1));
        assert_eq!(all.read(2, 0, 8).await.expect("read")[..], b"halfmore"[..]);
    });
}

/// Whether the transaction of a thread that dies is aborted.
pub fn a_dead_thread_takes_its_transaction_along(planted: Planted) -> bool {
    let (told, is_aborted) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let over = Rc::clone(&is_aborted);
    within(6, async move |env| {
        let volume = create(&env, small_options(0)).await;
        let (all, server) = Programs::start(&env, &volume, false, planted);
        for thread in [1, 2] {
            all.begin(thread).await.expect("begun");
            all.write(thread, 4096 * u64::from(thread), b"x").await.expect("written");
        }
        all.shared.threads.borrow_mut().remove(&1);
        env.sleep(Duration::from_millis(250)).await;
        is_aborted.set(volume.info().transactions == 1);
        assert_eq!(all.end(2).await, Ok(1), "another thread's goes on");
        server.stop().await;
        told.set(true);
    });
    over.get()
}

#[test]
fn the_transaction_of_a_thread_that_dies_is_aborted() {
    assert!(a_dead_thread_takes_its_transaction_along(Planted::default()));
}

#[test]
fn a_thread_stays_in_its_transaction_while_the_system_does_not_say_whether_it_is_there() {
    // Taken for another one, it would write at once and for good what was to be done as a whole or not at all.
    served(16, async |env, volume, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, b"half").await.expect("written");
        all.shared.is_short.set(true);
        env.sleep(Duration::from_millis(250)).await;
        all.write(1, 4, b"more").await.expect("written");
        assert_eq!(all.read(2, 0, 8).await.expect("outside")[..], [0; 8]);
        all.begin(1).await.expect("within");
        assert_eq!(all.end(1).await, Ok(u64::MAX));
        assert_eq!(all.begin(2).await, Err(EPERM), "whose it would be is not known");
        assert_eq!(volume.info().version.0, 0, "nothing is written yet");
        all.shared.is_short.set(false);
        assert_eq!(all.end(1).await, Ok(1));
        assert_eq!(all.read(2, 0, 8).await.expect("read")[..], b"halfmore"[..]);
    });
}

#[test]
fn a_thread_that_gets_the_number_of_a_dead_one_does_not_get_its_transaction() {
    served(7, async |_, _, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, b"left behind").await.expect("written");
        all.shared.threads.borrow_mut().insert(1, 2000);
        assert_eq!(all.read(1, 0, 11).await.expect("it is in none")[..], [0; 11]);
        all.begin(1).await.expect("its own");
        all.write(1, 0, b"left again").await.expect("written");
        all.shared.threads.borrow_mut().insert(1, 3000);
        all.begin(1).await.expect("another thread's own");
        all.write(1, 4096, b"mine").await.expect("written");
        assert_eq!(all.end(1).await, Ok(1));
        assert_eq!(all.read(2, 0, 11).await.expect("read")[..], [0; 11]);
    });
}

#[test]
fn what_cannot_be_done_is_refused_and_the_rest_goes_on() {
    served(8, async |_, _, all| {
        let end = BLOCKS * 4096;
        assert_eq!(all.write(1, end - 2, b"four").await, Err(ENOSPC));
        assert_eq!(all.read(1, end - 2, 100).await.expect("up to the end").len(), 2);
        assert_eq!(all.read(1, end + 5, 100).await.expect("behind it").len(), 0);
        assert_eq!(all.read(1, u64::MAX - 3, 100).await.expect("far behind it").len(), 0);
        assert_eq!(all.control(1, 0x5401, &[]).await, Err(ENOTTY));
        assert_eq!(all.control(99, BEGIN, &[0; 8]).await, Err(EPERM), "there is no such thread");
        assert_eq!(all.ask(1, 9999, 1, &[]).await, Err(38));
        assert_eq!(all.ask(1, 3, 77, &[0; 16]).await, Err(ENOENT), "no such node");
        // Too short for what they say that they are: they are left out.
        for garbage in [&[1u8, 2, 3][..], &[0; 40], &[41; 41]] {
            all.shared.asked.borrow_mut().push(Bytes::copy_from_slice(garbage));
        }
        all.write(1, end - 2, b"ok").await.expect("written");
        // A hole of parts of blocks, exact.
        all.hole(1, end - 8192 - 1, 8192).await.expect("a hole");
        assert_eq!(all.read(1, end - 2, 2).await.expect("read")[..], *b"\0k");
        for (offset, length) in [(end, 4096), (end + 4096, 4096), (u64::MAX / 2, 1)] {
            all.hole(1, offset, length).await.expect("there is nothing there");
        }
    });
}

#[test]
fn a_folder_has_the_file_and_nothing_else() {
    within(9, async |env| {
        let volume = create(&env, small_options(0)).await;
        let (all, server) = Programs::start(&env, &volume, true, Planted::default());
        let init = [[7u32, 45, 1 << 17, u32::MAX].map(u32::to_le_bytes).concat(), vec![0; 48]].concat();
        assert_eq!(all.ask(0, 26, 0, &init).await.expect("it is spoken").len(), 64);
        let found = all.ask(1, 1, 1, b"disk\0").await.expect("it is there");
        assert_eq!((found[0], found.len()), (2, 128));
        let size = u64::from_le_bytes(found[48..56].try_into().expect("8 bytes"));
        assert_eq!(size, BLOCKS * 4096);
        assert_eq!(all.ask(1, 1, 1, b"other\0").await, Err(ENOENT));
        let mut read = BytesMut::zeroed(40);
        read[16..20].copy_from_slice(&4096u32.to_le_bytes());
        let entries = all.ask(1, 28, 1, &read).await.expect("a folder");
        assert_eq!(entries.len(), 3 * 32);
        assert!(entries.windows(4).any(|bytes| bytes == b"disk"));
        assert_eq!(all.ask(1, 15, 1, &read).await, Err(EINVAL), "a folder is not read");
        all.shared.is_unmounted.set(true);
        all.shared.changed.ring();
        server.ended().await.expect("unmounted");
        server.stop().await;
    });
}

#[test]
fn what_nobody_can_change_of_the_file_and_its_folder_is_not_answered_as_done() {
    // Who is told that only he may read it now would trust in that.
    within(17, async |env| {
        let volume = create(&env, small_options(0)).await;
        let (all, server) = Programs::start(&env, &volume, true, Planted::default());
        // Which fields count; size, mode, user and group.
        let set = |valid: u32, size: u64, mode: u32, owners: [u32; 2]| {
            let mut body = [0; 88];
            body[..4].copy_from_slice(&valid.to_le_bytes());
            body[16..24].copy_from_slice(&size.to_le_bytes());
            body[68..72].copy_from_slice(&mode.to_le_bytes());
            body[76..80].copy_from_slice(&owners[0].to_le_bytes());
            body[80..84].copy_from_slice(&owners[1].to_le_bytes());
            body
        };
        let user = env.user();
        let (mode, sized, timed) = (0o100_600, 1 << 3, 1 << 5);
        let same = set(0b1111 | timed, 7, mode, [user, 0]);
        let told = all.ask(1, 4, 2, &same).await.expect("all but the size is as it is");
        assert_eq!(told[24..32], (BLOCKS * 4096).to_le_bytes(), "the size stays");
        assert!(all.ask(1, 4, 2, &set(sized | timed, 0, 0, [9, 9])).await.is_ok(), "others do not count");
        for other in [
            set(1, 0, 0o100_644, [0, 0]),
            set(1 << 1, 0, 0, [user + 1, 0]),
            set(1 << 2, 0, 0, [user, 1]),
            set(0b111, 0, 0o100_400, [user, 0]),
        ] {
            assert_eq!(all.ask(1, 4, 2, &other).await, Err(EPERM));
        }
        // SYMLINK to LINK but for what needs none, CREATE, RENAME2.
        for opcode in [6, 8, 9, 10, 11, 12, 13, 35, 45] {
            assert_eq!(all.ask(1, opcode, 1, b"name\0other\0").await, Err(EPERM), "{opcode}");
        }
        let name = |len| [vec![b'x'; len], vec![0]].concat();
        assert_eq!(all.ask(1, 1, 1, &name(255)).await, Err(ENOENT));
        assert_eq!(all.ask(1, 1, 1, &name(256)).await, Err(ENAMETOOLONG));
        server.stop().await;
    });
}

#[test]
fn a_page_that_the_kernel_keeps_has_nothing_of_a_transaction() {
    served(11, async |_, _, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, b"not yet").await.expect("written");
        assert_eq!(all.read_flagged(1, 0, 7, 0).await.expect("a page")[..], [0; 7]);
        assert_eq!(all.read(1, 0, 7).await.expect("a call")[..], b"not yet"[..]);
        all.end(1).await.expect("committed");
        assert_eq!(all.read_flagged(2, 0, 7, 0).await.expect("a page")[..], b"not yet"[..]);
    });
}

#[test]
fn a_transaction_of_which_a_write_was_refused_does_not_end_well() {
    served(12, async |_, volume, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, &[1; 5 * 4096]).await.expect("written");
        assert_eq!(all.write(1, 10 * 4096, &[2; 5 * 4096]).await, Err(ENOSPC), "9 blocks are the most");
        assert_eq!(all.end(1).await, Err(ECANCELED));
        all.begin(1).await.expect("begun");
        all.write(1, 0, &[1; 4096]).await.expect("written");
        let zeros = all.allocate(1, (BLOCKS - 1) * 4096, 8192, 0b1_0000).await;
        assert_eq!(zeros, Err(ENOSPC), "zeros past the end");
        assert_eq!(all.end(1).await, Err(ECANCELED));
        assert_eq!(volume.info().version.0, 0, "nothing is there");
    });
}

#[test]
fn a_transaction_within_which_none_could_begin_does_not_end_well() {
    served(14, async |_, volume, all| {
        all.begin(1).await.expect("begun");
        all.write(1, 0, &[1; 4096]).await.expect("written");
        assert_eq!(all.control(1, BEGIN, &[9; 8]).await, Err(EINVAL), "what it is held to is none");
        assert_eq!(all.end(1).await, Err(ECANCELED), "that of the inner one is taken for its own");
        all.begin(1).await.expect("begun");
        all.write(1, 0, &[1; 4096]).await.expect("written");
        for _ in 0..DEPTH_MAX {
            all.begin(1).await.expect("within");
        }
        assert_eq!(all.begin(1).await, Err(EMFILE));
        for _ in 0..DEPTH_MAX {
            assert_eq!(all.end(1).await, Ok(u64::MAX));
        }
        assert_eq!(all.end(1).await, Err(ECANCELED));
        assert_eq!(volume.info().version.0, 0, "nothing is there");
        // Of a thread that is in none nothing is lacking.
        assert_eq!(all.control(1, BEGIN, &[9; 8]).await, Err(EINVAL));
        all.begin(1).await.expect("begun");
        assert_eq!(all.end(1).await, Ok(0));
    });
}

#[test]
fn a_write_through_a_file_that_is_opened_for_it_is_durable_when_it_is_answered() {
    for flags in [O_DSYNC, O_SYNC] {
        let world = World::new(13);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let volume = create(&env, small_options(0)).await;
            let (all, _server) = Programs::start(&env, &volume, false, Planted::default());
            all.write_opened(1, 100, b"stays", flags).await.expect("written");
        });
        world.sim.end(world.process, Death::PowerCut);
        world.sim.restart(world.process);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let drive = crate::world::open_drive(&env).await;
            let volume = Volume::open(&env, &drive, small_options(0).settings).await.expect("it opens");
            assert_eq!(volume.read(0, 1).await.expect("read")[100..105], b"stays"[..], "{flags:o}");
        });
    }
}

#[test]
fn what_was_synced_is_there_after_a_power_cut() {
    let world = World::new(10);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let volume = create(&env, small_options(0)).await;
        let (all, _server) = Programs::start(&env, &volume, false, Planted::default());
        all.write(1, 100, b"plain").await.expect("written");
        all.ask(1, 20, 1, &[0; 16]).await.expect("synced");
        all.begin(2).await.expect("begun");
        all.write(2, 8192, b"transaction").await.expect("written");
        all.end(2).await.expect("committed");
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = crate::world::open_drive(&env).await;
        let volume = Volume::open(&env, &drive, small_options(0).settings).await.expect("it opens");
        let data = volume.read(0, 3).await.expect("read");
        assert_eq!((&data[100..105], &data[8192..8203]), (&b"plain"[..], &b"transaction"[..]));
    });
}
