//! A small value that survives crashes, and harm to either of its copies: two slots on a drive, the newest valid one counts.
//!
//! Each slot begins on a block: `magic "ITRG"`, `version u16 (1)`, `reserved u16 (0)`, `sequence u64`, `length u32`,
//! `crc32c u32` of the header without it and of the value, then the value, padded with zeros to a block. A write goes to
//! the slot that does not count, so a crash leaves the old value or the new one; a copy makes both the same, since an acceptor may not
//! forget a promise.
//! (docs/format/log.md)

use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::ChainId;
use ithaca_env::Env;
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::drive::{Drive, DriveError, Durability, OpenDrive, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use thiserror::Error;

use super::remembered;
use crate::limits;
use crate::pos::NodeId;

const MAGIC: [u8; 4] = *b"ITRG";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;

/// What a register is for, and how large its values may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The layouts that were decided: the record of an acceptor.
    Layouts,
    /// Where the units' drives are.
    Drives,
}

impl Purpose {
    /// The name of its file in a data directory.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Layouts => "layout.register",
            Self::Drives => "drives.register",
        }
    }

    /// The purpose of a register, by the name of its file: what is damaged may not say itself what it is. `None` if it is none.
    pub fn of(file: &Path) -> Option<Self> {
        let is_of_drives = file.ends_with(Self::Drives.file_name());
        let is_register = file.extension().is_some_and(|extension| extension == "register");
        is_register.then_some(if is_of_drives { Self::Drives } else { Self::Layouts })
    }

    /// Its file in the data directory `data`, made if it is not there.
    pub(super) fn in_directory(self, data: &Path) -> OpenDrive {
        let create_bytes = Some(self.register_bytes());
        OpenDrive { path: data.join(self.file_name()), create_bytes, read_only: false }
    }

    /// Bytes of the largest value.
    pub const fn value_max_bytes(self) -> usize {
        match self {
            Self::Layouts => limits::ACCEPTOR_MAX_BYTES,
            Self::Drives => limits::DRIVES_RECORD_MAX_BYTES,
        }
    }

    /// Bytes of a slot.
    pub const fn slot_bytes(self) -> u64 {
        (self.value_max_bytes() + BLOCK_BYTES) as u64
    }

    /// Bytes of the whole register.
    pub const fn register_bytes(self) -> u64 {
        2 * self.slot_bytes()
    }
}

/// Why a register cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// The drive failed, is not there, or is in use.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// It was written by a newer version of this program.
    #[error("{drive}: format version {found}, this program knows up to {known}")]
    NewerFormat {
        /// The drive.
        drive: String,
        /// The version that was found.
        found: u16,
        /// The newest that is known.
        known: u16,
    },
    /// The drive is shorter than a register: some of it is missing.
    #[error("{drive}: damaged: it has {bytes} bytes of {needed}")]
    Cut {
        /// The drive.
        drive: String,
        /// Bytes that it has.
        bytes: u64,
        /// Bytes of a register.
        needed: u64,
    },
    /// No slot is valid and they are not blank: the value is lost.
    #[error("{drive}: both copies are damaged: {error}")]
    Damaged {
        /// The drive.
        drive: String,
        /// What is wrong with the first.
        error: DecodeError,
    },
}

/// An open register.
pub struct Register {
    drive: Drive,
    purpose: Purpose,
    /// That of the last write, also if it failed.
    sequence: u64,
    /// The slot whose value counts.
    valid: u64,
    /// What the other slot lacks.
    lacks: Option<Bytes>,
}

/// What a slot holds.
enum Slot {
    Blank,
    Value { sequence: u64, value: Bytes },
    Newer { version: u16 },
}

impl Register {
    /// Opens the register, created if `open` says so and it is not there, and returns its value; `None` if it never had one. The value
    /// is on stable storage, in both slots; with `open` read-only it is what the drive reads now, and nothing is asked to be written.
    pub async fn open(
        env: &Env,
        open: OpenDrive,
        purpose: Purpose,
    ) -> Result<(Self, Option<Bytes>), RegisterError> {
        let read_only = open.read_only;
        let drive = env.open_drive(open).await?;
        if drive.size_bytes() == 0 && !read_only {
            // Whoever made it was killed before it had its size.
            drive.grow(purpose.register_bytes()).await?;
        }
        let (bytes, needed) = (drive.size_bytes(), purpose.register_bytes());
        if bytes < needed {
            return Err(RegisterError::Cut { drive: drive.name(), bytes, needed });
        }
        let slot_bytes = purpose.slot_bytes();
        let mut found = Vec::new();
        let mut fault = None;
        for slot in 0..2 {
            let bytes = drive.read(slot * slot_bytes, slot_bytes as usize).await?;
            match decode_slot(&bytes) {
                Ok(Slot::Blank) => {}
                Ok(Slot::Value { sequence, value }) => found.push((sequence, slot, value)),
                Ok(Slot::Newer { version }) => {
                    return Err(RegisterError::NewerFormat {
                        drive: drive.name(),
                        found: version,
                        known: VERSION,
                    });
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        let is_in_both = matches!(&found[..], [(one, ..), (other, ..)] if one == other);
        let newest = found.into_iter().max_by_key(|&(sequence, ..)| sequence);
        match (newest, fault) {
            (Some((sequence, valid, value)), _) => {
                // A writer that was killed may have left it in a volatile cache only, and what follows is built on it. Who only reads builds
                // nothing, and a file system that lets nobody write refuses it.
                if !read_only {
                    drive.sync().await?;
                }
                let lacks = (!is_in_both && !read_only).then(|| encode_slot(sequence, &value));
                let mut register = Self { drive, purpose, sequence, valid, lacks };
                register.copy().await?;
                Ok((register, Some(value)))
            }
            // A first write that was torn was never acknowledged, but then the other slot is blank and so was this one:
            // only a register whose slots are both harmed has lost something. One harmed slot beside a blank one is the
            // torn first write.
            (None, Some(error)) if !one_is_blank(&drive, slot_bytes).await? => {
                Err(RegisterError::Damaged { drive: drive.name(), error })
            }
            (None, _) => Ok((Self { drive, purpose, sequence: 0, valid: 0, lacks: None }, None)),
        }
    }

    /// Replaces the value. On return it is on stable storage, in one slot until [`Register::copy`]. After an error it is the new one or still
    /// the one before, and may be written again: the slot that counts is left alone. Panics if it is too long for its purpose.
    pub async fn write(&mut self, value: &[u8]) -> Result<(), DriveError> {
        assert!(value.len() <= self.purpose.value_max_bytes(), "a value of {} bytes", value.len());
        // Each attempt has its own: what a failed one has left must not pass for a copy of what the next one writes.
        self.sequence += 1;
        let bytes = encode_slot(self.sequence, value);
        self.store(1 - self.valid, bytes.clone()).await?;
        self.valid = 1 - self.valid;
        self.lacks = Some(bytes);
        Ok(())
    }

    /// Writes the value to the other slot, if that lacks it, so that it survives harm to either. After an error it counts as before.
    pub async fn copy(&mut self) -> Result<(), DriveError> {
        match self.lacks.take() {
            Some(bytes) => self.store(1 - self.valid, bytes).await,
            None => Ok(()),
        }
    }

    /// Both: on return the value is on stable storage in either slot. Errors and panics: as of [`Register::write`].
    pub async fn write_twice(&mut self, value: &[u8]) -> Result<(), DriveError> {
        self.write(value).await?;
        self.copy().await
    }

    async fn store(&self, slot: u64, bytes: Bytes) -> Result<(), DriveError> {
        self.drive.write(slot * self.purpose.slot_bytes(), bytes, Durability::Durable).await
    }
}

async fn one_is_blank(drive: &Drive, slot_bytes: u64) -> Result<bool, DriveError> {
    for slot in 0..2 {
        let bytes = drive.read(slot * slot_bytes, BLOCK_BYTES).await?;
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn encode_slot(sequence: u64, value: &[u8]) -> Bytes {
    let mut header = BytesMut::with_capacity(HEADER_BYTES);
    header.put_slice(&MAGIC);
    header.put_u16_le(VERSION);
    header.put_u16_le(0);
    header.put_u64_le(sequence);
    header.put_u32_le(value.len() as u32);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), value);
    header.put_u32_le(checksum);
    let mut slot = PageBuf::with_capacity(HEADER_BYTES + value.len());
    slot.extend(&header);
    slot.extend(value);
    slot.freeze()
}

fn decode_slot(bytes: &Bytes) -> Result<Slot, DecodeError> {
    if bytes[..HEADER_BYTES].iter().all(|&byte| byte == 0) {
        return Ok(Slot::Blank);
    }
    let mut decoder = Decoder::new(bytes);
    let magic = decoder.bytes("register magic", 4)?;
    if magic != MAGIC {
        let found = u64::from(u32::from_le_bytes([magic[0], magic[1], magic[2], magic[3]]));
        return Err(DecodeError::Invalid { field: "register magic", found, expected: "ITRG" });
    }
    let version = decoder.u16("register version")?;
    decoder.u16("register reserved")?;
    let sequence = decoder.u64("register sequence")?;
    let length = decoder.u32("register length")?;
    let found = decoder.u32("register checksum")?;
    let value = decoder.bytes("register value", length as usize)?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..HEADER_BYTES - 4]), value);
    if computed != found {
        return Err(DecodeError::Checksum { field: "register", found, computed });
    }
    // Only now: a harmed slot must not pass for one of a newer program, and hide the other one.
    if version > VERSION {
        return Ok(Slot::Newer { version });
    }
    Ok(Slot::Value { sequence, value: bytes.slice(HEADER_BYTES..HEADER_BYTES + length as usize) })
}

/// What a register's file holds, for people: a line a slot.
pub fn describe(bytes: &Bytes, purpose: Purpose) -> Vec<String> {
    let slot_bytes = purpose.slot_bytes() as usize;
    let slots = bytes.len() / slot_bytes;
    let line = |slot: usize| match decode_slot(&bytes.slice(slot * slot_bytes..(slot + 1) * slot_bytes)) {
        Ok(Slot::Blank) => format!("slot {slot}: blank"),
        Ok(Slot::Value { sequence, value }) => {
            format!("slot {slot}: sequence {sequence}, {} bytes", value.len())
        }
        Ok(Slot::Newer { version }) => {
            format!("slot {slot}: format version {version}, newer than this program")
        }
        Err(error) => format!("slot {slot}: damaged: {error}"),
    };
    (0..slots).map(line).collect()
}

/// What the newest value of a register's file says, for people: of drives a line a unit, of layouts nothing.
pub fn describe_value(bytes: &Bytes, purpose: Purpose) -> Vec<String> {
    match (purpose, newest(bytes, purpose)) {
        (Purpose::Drives, Some(value)) => remembered::describe(&value),
        _ => Vec::new(),
    }
}

/// Where the drives of each unit are, by the newest value of the file in the directory `data` that remembers them; of none if it is harmed.
pub fn drives_in(bytes: &Bytes, data: &Path) -> Vec<(NodeId, Vec<PathBuf>)> {
    newest(bytes, Purpose::Drives).map(|value| remembered::drives_in(&value, data)).unwrap_or_default()
}

/// The highest generation that the drives of each unit's chain have come to, by the same; of none if it is harmed.
pub fn generations_in(bytes: &Bytes) -> Vec<(ChainId, u64)> {
    newest(bytes, Purpose::Drives).map(|value| remembered::generations_in(&value)).unwrap_or_default()
}

fn newest(bytes: &Bytes, purpose: Purpose) -> Option<Bytes> {
    let slots = bytes.chunks_exact(purpose.slot_bytes() as usize).map(|slot| bytes.slice_ref(slot));
    let values = slots.filter_map(|slot| match decode_slot(&slot) {
        Ok(Slot::Value { sequence, value }) => Some((sequence, value)),
        _ => None,
    });
    values.max().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ithaca_env::real;
    use ithaca_env::sim::{DriveFault, Sim};

    fn open(dir: &tempfile::TempDir) -> OpenDrive {
        let create_bytes = Some(Purpose::Layouts.register_bytes());
        OpenDrive { path: dir.path().join("register"), create_bytes, read_only: false }
    }

    #[test]
    fn one_whose_maker_was_killed_before_it_had_its_size_is_empty() {
        // Every later start would fail at the end of the file.
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(|env| async move {
            real::files::write(&open(&dir).path, b"").expect("made");
            let opened = Register::open(&env, open(&dir), Purpose::Layouts).await;
            assert_eq!(opened.map(|(_, value)| value), Ok(None));
        });
    }

    #[test]
    fn who_only_reads_asks_for_nothing_to_be_written() {
        // A file system that has turned read-only refuses a sync, and what is on it could not be looked at.
        let machine = "192.0.2.1".parse().expect("an address");
        let sim = Sim::new(1);
        let node = sim.process("node", machine);
        let env = sim.env(node);
        let open = |read_only| {
            let create_bytes = Some(Purpose::Drives.register_bytes());
            OpenDrive { path: "register".into(), create_bytes, read_only }
        };
        let first = env.clone();
        sim.block_on(node, async move {
            let opened = Register::open(&first, open(false), Purpose::Drives).await;
            let (mut register, _) = opened.expect("created");
            register.write_twice(b"value").await.expect("written");
        });
        sim.fault_drive(sim.drive(machine, "register"), DriveFault::FailSyncs { count: 1 });
        sim.block_on(node, async move {
            let read = Register::open(&env, open(true), Purpose::Drives).await;
            assert_eq!(read.map(|(_, value)| value), Ok(Some(Bytes::from("value"))));
            let opened = Register::open(&env, open(false), Purpose::Drives).await;
            assert!(matches!(
                opened.err(),
                Some(RegisterError::Drive(DriveError::Io { operation: "sync", .. }))
            ));
        });
    }

    #[test]
    fn a_version_counts_only_with_its_checksum() {
        let whole = encode_slot(7, b"value");
        let mut header = whole[..HEADER_BYTES - 4].to_vec();
        header[4] = 2;
        let harmed = [&header, &whole[HEADER_BYTES - 4..]].concat();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), b"value");
        let newer = [&header, &checksum.to_le_bytes()[..], b"value"].concat();
        assert!(matches!(decode_slot(&harmed.into()), Err(DecodeError::Checksum { .. })));
        assert!(matches!(decode_slot(&newer.into()), Ok(Slot::Newer { version: 2 })));
    }

    /// Writes what is no slot over the beginning of each of `slots` of the register in `dir`.
    async fn harm(env: &Env, dir: &tempfile::TempDir, slots: &[u64]) {
        let drive = env.open_drive(open(dir)).await.expect("opened");
        for slot in slots {
            let mut page = PageBuf::zeroed(BLOCK_BYTES);
            page.as_mut_slice().fill(0xff);
            let at = slot * Purpose::Layouts.slot_bytes();
            drive.write(at, page.freeze(), Durability::Durable).await.expect("harmed");
        }
    }

    #[test]
    fn the_last_value_written_is_the_one_that_is_read_whichever_slot_is_harmed() {
        // An acceptor that went back to the value before would have forgotten a promise.
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(|env| async move {
            let reopened = async || Register::open(&env, open(&dir), Purpose::Layouts).await;
            let (mut register, none) = reopened().await.expect("created");
            assert_eq!(none, None);
            for value in ["one", "two", "three"] {
                register.write(value.as_bytes()).await.expect("written");
            }
            register.copy().await.expect("written");
            drop(register);
            for slot in [0, 1, 0] {
                harm(&env, &dir, &[slot]).await;
                let (_, value) = reopened().await.expect("one copy is left, and becomes two again");
                assert_eq!(value, Some(Bytes::from("three")), "slot {slot}");
            }
            harm(&env, &dir, &[0, 1]).await;
            let lost = reopened().await.err();
            assert!(matches!(lost, Some(RegisterError::Damaged { .. })), "{lost:?}");
        });
    }
}
