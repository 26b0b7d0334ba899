//! A small value that survives crashes: two slots on a drive, written in turn, the newest valid one counts.
//!
//! Each slot begins on a block: `magic "ITRG"`, `version u16 (1)`, `reserved u16 (0)`, `sequence u64`, `length u32`,
//! `crc32c u32` of the header without it and of the value, then the value, padded with zeros to a block. A write goes to
//! the slot that does not hold the newest value, so a crash leaves the old value or the new one.
//! (docs/format/log.md)

use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::drive::{Drive, DriveError, Durability, OpenDrive, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use thiserror::Error;

use super::remembered;
use crate::limits;

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
    sequence: u64,
}

/// What a slot holds.
enum Slot {
    Blank,
    Value { sequence: u64, value: Bytes },
    Newer { version: u16 },
}

impl Register {
    /// Opens the register, created if `open` says so and it is not there, and returns its value; `None` if it never had one. The value
    /// is on stable storage.
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
        let slot_bytes = purpose.slot_bytes();
        let mut newest: Option<(u64, Bytes)> = None;
        let mut fault = None;
        for slot in 0..2 {
            let bytes = drive.read(slot * slot_bytes, slot_bytes as usize).await?;
            match decode_slot(&bytes) {
                Ok(Slot::Blank) => {}
                Ok(Slot::Value { sequence, value }) => {
                    if newest.as_ref().is_none_or(|&(known, _)| sequence > known) {
                        newest = Some((sequence, value));
                    }
                }
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
        match (newest, fault) {
            (Some((sequence, value)), _) => {
                // A writer that was killed may have left it in a volatile cache only, and what follows is built on it.
                drive.sync().await?;
                Ok((Self { drive, purpose, sequence }, Some(value)))
            }
            // A first write that was torn was never acknowledged, but then the other slot is blank and so was this one:
            // only a register whose slots are both harmed has lost something. One harmed slot beside a blank one is the
            // torn first write.
            (None, Some(error)) if !one_is_blank(&drive, slot_bytes).await? => {
                Err(RegisterError::Damaged { drive: drive.name(), error })
            }
            (None, _) => Ok((Self { drive, purpose, sequence: 0 }, None)),
        }
    }

    /// Replaces the value. On return it is on stable storage. After an error it is the new one or still the one before, and may be written
    /// again: the slot that counts is left alone. Panics if it is too long for its purpose.
    pub async fn write(&mut self, value: &[u8]) -> Result<(), DriveError> {
        assert!(value.len() <= self.purpose.value_max_bytes(), "a value of {} bytes", value.len());
        let sequence = self.sequence + 1;
        let slot = encode_slot(sequence, value);
        self.drive.write(sequence % 2 * self.purpose.slot_bytes(), slot, Durability::Durable).await?;
        self.sequence = sequence;
        Ok(())
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
    let slots = bytes.chunks_exact(purpose.slot_bytes() as usize).map(|slot| bytes.slice_ref(slot));
    let values = slots.filter_map(|slot| match decode_slot(&slot) {
        Ok(Slot::Value { sequence, value }) => Some((sequence, value)),
        _ => None,
    });
    match (purpose, values.max()) {
        (Purpose::Drives, Some((_, value))) => remembered::describe(&value),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ithaca_env::real;

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

    #[test]
    fn the_last_value_written_is_the_one_that_is_read_also_when_the_other_slot_is_harmed() {
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(|env| async move {
            let (mut register, none) =
                Register::open(&env, open(&dir), Purpose::Layouts).await.expect("created");
            assert_eq!(none, None);
            for value in ["one", "two", "three"] {
                register.write(value.as_bytes()).await.expect("written");
            }
            let drive = register.drive.clone();
            drop(register);
            // "three" has sequence 3 and stands in slot 1; slot 0 holds "two".
            let mut page = PageBuf::zeroed(BLOCK_BYTES);
            page.as_mut_slice().fill(0xff);
            drive.write(0, page.freeze(), Durability::Durable).await.expect("harmed");
            drop(drive);
            let (register, value) =
                Register::open(&env, open(&dir), Purpose::Layouts).await.expect("one copy is left");
            assert_eq!((value, register.sequence), (Some(Bytes::from("three")), 3));
            let drive = register.drive.clone();
            drop(register);
            let mut page = PageBuf::zeroed(BLOCK_BYTES);
            page.as_mut_slice().fill(0xff);
            drive
                .write(Purpose::Layouts.slot_bytes(), page.freeze(), Durability::Durable)
                .await
                .expect("harmed");
            drop(drive);
            let lost = Register::open(&env, open(&dir), Purpose::Layouts).await.err();
            assert!(matches!(lost, Some(RegisterError::Damaged { .. })), "{lost:?}");
        });
    }
}
