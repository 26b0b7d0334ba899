//! Bytes between the kernel and a file system that a process serves: what `linux/fuse.h` says of version 7.31, as much of it as one
//! file needs. All numbers are the machine's own, which is little-endian wherever this is built.

use bytes::{Buf, Bytes};

/// Version 7, which has been the only one for ever; its minor number is negotiated.
pub(super) const MAJOR: u32 = 7;
/// What is spoken. The kernel takes a lower one than its own as it is.
pub(super) const MINOR: u32 = 31;
/// The lowest that has messages of these lengths.
pub(super) const MINOR_MIN: u32 = 23;

/// Bytes of the head of a request.
const HEAD_BYTES: usize = 40;
/// Reads that are begun before earlier ones are done.
pub(super) const ASYNC_READ: u32 = 1 << 0;
/// Writes of more than 4 KiB.
pub(super) const BIG_WRITES: u32 = 1 << 5;
/// Long direct reads and writes in several requests at a time.
pub(super) const ASYNC_DIRECT: u32 = 1 << 15;
/// Requests of more than 32 pages.
pub(super) const MAX_PAGES: u32 = 1 << 22;
/// Of an open file: nothing of it is kept in the kernel, so that every read and write comes here, from the thread that asks.
pub(super) const OPEN_DIRECT: u32 = 1 << 0;
/// Of an open file: writes of several threads do not wait for each other.
pub(super) const OPEN_PARALLEL_WRITES: u32 = 1 << 6;

/// Of attributes that are set: these are given.
const SET_MODE: u32 = 1 << 0;
const SET_USER: u32 = 1 << 1;
const SET_GROUP: u32 = 1 << 2;
/// Of a read: it says whose the descriptor is, as calls do that go around the kernel's pages, and nothing else.
const READ_LOCK_OWNER: u32 = 1 << 1;
/// Of a write, among the flags of the open file: it was opened with `O_DSYNC`, or this one write is to be so. `O_SYNC` has this bit too.
const OPEN_DSYNC: u32 = 0o10_000;

/// Why a request is not done, in the system's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub i32);

impl Errno {
    pub(super) const PERM: Self = Self(1);
    pub(super) const NOENT: Self = Self(2);
    pub(super) const AGAIN: Self = Self(11);
    pub(super) const BUSY: Self = Self(16);
    pub(super) const INVAL: Self = Self(22);
    pub(super) const MFILE: Self = Self(24);
    pub(super) const NOTTY: Self = Self(25);
    pub(super) const NOSPC: Self = Self(28);
    pub(super) const NAMETOOLONG: Self = Self(36);
    pub(super) const NOSYS: Self = Self(38);
    pub(super) const PROTO: Self = Self(71);
    pub(super) const OPNOTSUPP: Self = Self(95);
    pub(super) const CANCELED: Self = Self(125);
}

/// Who asks, and for the answer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) user: u32,
    /// The thread that asks; 0 if it is none that this process could know of.
    pub(super) thread: u32,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Init {
        major: u32,
        minor: u32,
        read_ahead: u32,
        flags: u32,
    },
    Lookup {
        name: Bytes,
    },
    Attributes,
    /// What is to be another one; times and the size are left out.
    SetAttributes {
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
    },
    /// Makes, removes or renames something.
    ChangeFolder,
    Open,
    OpenFolder,
    Release,
    ReadFolder {
        offset: u64,
        size: u32,
    },
    Read {
        offset: u64,
        size: u32,
        /// By a call of the thread, and not for a page that the kernel keeps and shows to others.
        is_call: bool,
    },
    Write {
        offset: u64,
        data: Bytes,
        /// To be durable when it is answered.
        stable: bool,
    },
    Sync,
    StatFs,
    Control {
        command: u32,
        data: Bytes,
        out_size: u32,
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// The end, which is answered.
    Destroy,
    /// Something that no answer is expected to.
    Told,
    /// Something that is not done here.
    Other,
}

/// Reads a request. `None` if it is none: too short for what it says it is.
pub(super) fn decode(message: &Bytes) -> Option<(Head, Operation)> {
    let mut rest = message.clone();
    if rest.len() < HEAD_BYTES || rest.get_u32_le() as usize != message.len() {
        return None;
    }
    let opcode = rest.get_u32_le();
    let (unique, node, user) = (rest.get_u64_le(), rest.get_u64_le(), rest.get_u32_le());
    let (_group, thread, _) = (rest.get_u32_le(), rest.get_u32_le(), rest.get_u32_le());
    let operation = operation(opcode, rest)?;
    Some((Head { unique, node, user, thread }, operation))
}

fn operation(opcode: u32, mut rest: Bytes) -> Option<Operation> {
    let body_bytes = match opcode {
        26 => 16,
        15 | 16 | 28 => 40,
        39 | 43 => 32,
        4 => 88,
        _ => 0,
    };
    if rest.len() < body_bytes {
        return None;
    }
    Some(match opcode {
        1 => Operation::Lookup { name: name_of(&rest)? },
        2 | 36 | 42 => Operation::Told,
        3 => Operation::Attributes,
        4 => set_attributes(rest),
        6 | 8..=13 | 35 | 45 => Operation::ChangeFolder,
        14 => Operation::Open,
        15 | 28 => {
            let _handle = rest.get_u64_le();
            let (offset, size) = (rest.get_u64_le(), rest.get_u32_le());
            if opcode == 15 {
                let is_call = rest.get_u32_le() & READ_LOCK_OWNER != 0;
                Operation::Read { offset, size, is_call }
            } else {
                Operation::ReadFolder { offset, size }
            }
        }
        16 => {
            let _handle = rest.get_u64_le();
            let (offset, size) = (rest.get_u64_le(), rest.get_u32_le() as usize);
            let (_flags, _owner) = (rest.get_u32_le(), rest.get_u64_le());
            let stable = rest.get_u32_le() & OPEN_DSYNC != 0;
            let _padding = rest.get_u32_le();
            Operation::Write { offset, data: (rest.len() == size).then_some(rest)?, stable }
        }
        17 => Operation::StatFs,
        18 | 29 => Operation::Release,
        20 | 30 => Operation::Sync,
        26 => {
            let (major, minor) = (rest.get_u32_le(), rest.get_u32_le());
            Operation::Init { major, minor, read_ahead: rest.get_u32_le(), flags: rest.get_u32_le() }
        }
        27 => Operation::OpenFolder,
        38 => Operation::Destroy,
        39 => {
            let (_handle, _flags) = (rest.get_u64_le(), rest.get_u32_le());
            let (command, _argument) = (rest.get_u32_le(), rest.get_u64_le());
            let (in_size, out_size) = (rest.get_u32_le() as usize, rest.get_u32_le());
            Operation::Control { command, data: (rest.len() == in_size).then_some(rest)?, out_size }
        }
        43 => {
            let _handle = rest.get_u64_le();
            let (offset, length) = (rest.get_u64_le(), rest.get_u64_le());
            Operation::Allocate { offset, length, mode: rest.get_u32_le() }
        }
        _ => Operation::Other,
    })
}

/// What is given of attributes, in a body that is long enough.
fn set_attributes(mut rest: Bytes) -> Operation {
    let which = rest.get_u32_le();
    // Padding, the handle, the size, the owner of locks, three times and parts of seconds of them.
    rest.advance(64);
    let mode = rest.get_u32_le();
    let _unused = rest.get_u32_le();
    let (user, group) = (rest.get_u32_le(), rest.get_u32_le());
    let given = |flag, value| (which & flag != 0).then_some(value);
    Operation::SetAttributes {
        mode: given(SET_MODE, mode),
        user: given(SET_USER, user),
        group: given(SET_GROUP, group),
    }
}

/// A name that ends with a zero.
fn name_of(rest: &Bytes) -> Option<Bytes> {
    let (last, name) = rest.split_last()?;
    (*last == 0 && !name.contains(&0)).then(|| rest.slice(..name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};
    use ithaca_env::sim::Random;

    fn message(opcode: u32, body: &[u8]) -> Bytes {
        let mut message = BytesMut::new();
        message.put_u32_le((HEAD_BYTES + body.len()) as u32);
        message.put_u32_le(opcode);
        message.put_u64_le(7);
        message.put_u64_le(1);
        [1000, 1001, 42, 0].into_iter().for_each(|it| message.put_u32_le(it));
        message.put_slice(body);
        message.freeze()
    }

    #[test]
    fn a_request_says_who_asks_and_for_what() {
        let mut write = vec![0; 40];
        write[8..16].copy_from_slice(&4096u64.to_le_bytes());
        write[16] = 3;
        write.extend_from_slice(b"abc");
        let (head, operation) = decode(&message(16, &write)).expect("a write");
        assert_eq!(head, Head { unique: 7, node: 1, user: 1000, thread: 42 });
        let data = Bytes::from_static(b"abc");
        assert_eq!(operation, Operation::Write { offset: 4096, data: data.clone(), stable: false });
        for flags in [0o10_001_u32, 0o4_010_001] {
            write[32..36].copy_from_slice(&flags.to_le_bytes());
            let (_, operation) = decode(&message(16, &write)).expect("a write");
            assert_eq!(operation, Operation::Write { offset: 4096, data: data.clone(), stable: true });
        }
        for (flags, is_call) in [(0, false), (2, true)] {
            let mut read = [0; 40];
            (read[16], read[20]) = (9, flags);
            let (_, operation) = decode(&message(15, &read)).expect("a read");
            assert_eq!(operation, Operation::Read { offset: 0, size: 9, is_call });
        }
        let name = decode(&message(1, b"disk\0")).expect("a lookup").1;
        assert_eq!(name, Operation::Lookup { name: Bytes::from_static(b"disk") });
    }

    #[test]
    fn what_is_shorter_or_longer_than_it_says_is_no_request() {
        let mut write = [0; 40];
        write[16] = 200;
        for (opcode, body) in [
            (4, &write[..]),
            (16, &write[..]),
            (15, &write[..39]),
            (39, &write[..31]),
            (1, b"disk"),
            (1, b""),
        ] {
            assert_eq!(decode(&message(opcode, body)), None, "{opcode}");
        }
        let whole = message(3, &[0; 16]);
        assert_eq!(decode(&whole.slice(..whole.len() - 1)), None);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let len = random.below(120) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            if len >= 8 {
                bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
                bytes[4..8].copy_from_slice(&(random.below(50) as u32).to_le_bytes());
            }
            // Whatever it is taken for.
            let _ = decode(&Bytes::from(bytes));
        }
    }
}
