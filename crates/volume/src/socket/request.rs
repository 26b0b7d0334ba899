//! What a client asks for.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::limits::{BLOCKS_MAX, BODY_MAX_BYTES};
use crate::limits::{SNAPSHOT_NAME_MAX_BYTES, VOLUME_BLOCK_BYTES};
use crate::{Durability, Heir, Isolation, TxHandle};

const BLOCK: usize = VOLUME_BLOCK_BYTES;

/// The numbers of requests. A reply has its request's.
pub(super) mod kind {
    pub const INFO: u16 = 1;
    pub const BEGIN: u16 = 2;
    pub const NEST: u16 = 3;
    pub const COMMIT: u16 = 4;
    pub const ABORT: u16 = 5;
    pub const RELEASE: u16 = 6;
    pub const TAKE_OVER: u16 = 7;
    pub const READ: u16 = 8;
    pub const WRITE: u16 = 9;
    pub const READ_PART: u16 = 10;
    pub const WRITE_PART: u16 = 11;
    pub const MARK_ACCESSED: u16 = 12;
    pub const PLEASE_CACHE: u16 = 13;
    pub const FLUSH: u16 = 14;
    pub const DISCARD: u16 = 15;
    pub const SNAPSHOT: u16 = 16;
    pub const SNAPSHOTS: u16 = 17;
    pub const FORGET: u16 = 18;
    pub const SCRUB: u16 = 19;
    pub const SCRUBBED: u16 = 20;
    pub const OPEN_REGION: u16 = 21;
    pub const REGIONS: u16 = 22;
    pub const CREATE_REGION: u16 = 23;
    pub const DELETE_REGION: u16 = 24;
    pub const SHARE_MEMORY: u16 = 25;
    pub const READ_INTO: u16 = 26;
    pub const WRITE_FROM: u16 = 27;
}

/// A request, and all that it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// What the volume is and holds.
    Info,
    /// A transaction begins, with the number that the frame has.
    Begin {
        /// What it is held to; as the volume says if nothing.
        isolation: Option<Isolation>,
        /// When its commit is answered.
        durability: Durability,
    },
    /// A transaction begins within it.
    Nest,
    Commit,
    Abort,
    /// The client lets go of it.
    Release(Heir),
    /// The client goes on with one that was released, by the number that the frame has.
    TakeOver(TxHandle),
    Read {
        blocks: Range<u64>,
    },
    Write {
        first_block: u64,
        /// Whole blocks.
        data: Bytes,
        /// Of a plain write; a transaction's become durable with it.
        durability: Durability,
    },
    ReadPart {
        block: u64,
        bytes: Range<usize>,
    },
    WritePart {
        block: u64,
        at: usize,
        data: Bytes,
    },
    MarkAccessed {
        block: u64,
        bytes: Range<usize>,
    },
    PleaseCache {
        block: u64,
    },
    Flush,
    Discard {
        blocks: Range<u64>,
        durability: Durability,
    },
    /// The newest version gets this name.
    Snapshot(String),
    /// Which names there are.
    Snapshots,
    /// A name is forgotten.
    Forget(String),
    /// Everything is read and verified; answered when that is done.
    Scrub,
    /// How far that is.
    Scrubbed,
    /// The client's blocks are those of this region from now on.
    OpenRegion(String),
    /// Which regions there are.
    Regions,
    /// A region is made.
    CreateRegion {
        name: String,
        blocks: u64,
    },
    /// A region is removed, and its blocks are given up.
    DeleteRegion(String),
    /// The memory that came with the first bytes of the connection is to be used.
    ShareMemory,
    /// As `Read`, into the client's memory.
    ReadInto {
        blocks: Range<u64>,
        /// Where the first block goes.
        slot: u32,
    },
    /// As `Write`, from the client's memory.
    WriteFrom {
        blocks: Range<u64>,
        /// Where the first block is.
        slot: u32,
        durability: Durability,
    },
}

/// Which transaction a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// One that there is.
    Tx,
    /// A new one.
    NewTx,
    /// One that there is, or none.
    Either,
    /// None.
    None,
}

impl Request {
    /// Which transaction a request of this kind is about; `None` if there is no such kind.
    pub fn about(kind: u16) -> Option<About> {
        Some(match kind {
            kind::BEGIN | kind::TAKE_OVER => About::NewTx,
            kind::NEST | kind::COMMIT | kind::ABORT | kind::RELEASE => About::Tx,
            kind::READ_PART | kind::WRITE_PART | kind::MARK_ACCESSED => About::Tx,
            kind::READ | kind::WRITE | kind::PLEASE_CACHE => About::Either,
            kind::READ_INTO | kind::WRITE_FROM => About::Either,
            kind::INFO | kind::FLUSH | kind::DISCARD | kind::SCRUB | kind::SCRUBBED => About::None,
            kind::SNAPSHOT | kind::SNAPSHOTS | kind::FORGET => About::None,
            kind::OPEN_REGION | kind::REGIONS | kind::CREATE_REGION | kind::DELETE_REGION => About::None,
            kind::SHARE_MEMORY => About::None,
            _ => return None,
        })
    }

    /// Whether a transaction lacks something if a request of this kind is refused: a write, or the beginning of a nested one, whose end would be
    /// taken for its own.
    pub fn completes(kind: u16) -> bool {
        matches!(kind, kind::WRITE | kind::WRITE_FROM | kind::WRITE_PART | kind::NEST)
    }

    /// The number of its kind.
    pub fn kind(&self) -> u16 {
        match self {
            Self::Info => kind::INFO,
            Self::Begin { .. } => kind::BEGIN,
            Self::Nest => kind::NEST,
            Self::Commit => kind::COMMIT,
            Self::Abort => kind::ABORT,
            Self::Release(_) => kind::RELEASE,
            Self::TakeOver(_) => kind::TAKE_OVER,
            Self::Read { .. } => kind::READ,
            Self::Write { .. } => kind::WRITE,
            Self::ReadPart { .. } => kind::READ_PART,
            Self::WritePart { .. } => kind::WRITE_PART,
            Self::MarkAccessed { .. } => kind::MARK_ACCESSED,
            Self::PleaseCache { .. } => kind::PLEASE_CACHE,
            Self::Flush => kind::FLUSH,
            Self::Discard { .. } => kind::DISCARD,
            Self::Snapshot(_) => kind::SNAPSHOT,
            Self::Snapshots => kind::SNAPSHOTS,
            Self::Forget(_) => kind::FORGET,
            Self::Scrub => kind::SCRUB,
            Self::Scrubbed => kind::SCRUBBED,
            Self::OpenRegion(_) => kind::OPEN_REGION,
            Self::Regions => kind::REGIONS,
            Self::CreateRegion { .. } => kind::CREATE_REGION,
            Self::DeleteRegion(_) => kind::DELETE_REGION,
            Self::ShareMemory => kind::SHARE_MEMORY,
            Self::ReadInto { .. } => kind::READ_INTO,
            Self::WriteFrom { .. } => kind::WRITE_FROM,
        }
    }

    /// The same request, about the blocks that `place` makes of its own. Errors: those of `place`.
    pub fn placed<E>(self, place: impl Fn(Range<u64>) -> Result<Range<u64>, E>) -> Result<Self, E> {
        let one = |block: u64| Ok(place(block..block.saturating_add(1))?.start);
        Ok(match self {
            Self::Read { blocks } => Self::Read { blocks: place(blocks)? },
            Self::Write { first_block, data, durability } => {
                let end = first_block.saturating_add((data.len() / BLOCK) as u64);
                Self::Write { first_block: place(first_block..end)?.start, data, durability }
            }
            Self::ReadPart { block, bytes } => Self::ReadPart { block: one(block)?, bytes },
            Self::WritePart { block, at, data } => Self::WritePart { block: one(block)?, at, data },
            Self::MarkAccessed { block, bytes } => Self::MarkAccessed { block: one(block)?, bytes },
            Self::PleaseCache { block } => Self::PleaseCache { block: one(block)? },
            Self::Discard { blocks, durability } => Self::Discard { blocks: place(blocks)?, durability },
            Self::ReadInto { .. } | Self::WriteFrom { .. } => unreachable!("of memory only the others know"),
            about_no_blocks => about_no_blocks,
        })
    }

    /// Bytes of data that it takes or gives.
    pub fn cost_bytes(&self) -> usize {
        match self {
            Self::Read { blocks } | Self::ReadInto { blocks, .. } | Self::WriteFrom { blocks, .. } => {
                (blocks.end - blocks.start) as usize * BLOCK
            }
            Self::ReadPart { bytes, .. } => bytes.len(),
            Self::Write { data, .. } | Self::WritePart { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// The same with data of its own: what a frame carries is a part of what the connection has received, all of which would stay with it.
    pub fn detached(self) -> Self {
        let copied = |data: Bytes| Bytes::copy_from_slice(&data);
        match self {
            Self::Write { first_block, data, durability } => {
                Self::Write { first_block, data: copied(data), durability }
            }
            Self::WritePart { block, at, data } => Self::WritePart { block, at, data: copied(data) },
            others => others,
        }
    }

    /// Appends its body without its [data](Self::data).
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Begin { isolation, durability } => {
                out.put_u8(match isolation {
                    None => 0,
                    Some(Isolation::StrictSerializable) => 1,
                    Some(Isolation::Snapshot) => 2,
                });
                put_durability(out, *durability);
            }
            Self::Release(heir) => out.put_u8(u8::from(*heir == Heir::Anyone)),
            Self::TakeOver(handle) => out.put_u128(handle.0),
            Self::Read { blocks } => {
                out.put_u64_le(blocks.start);
                out.put_u32_le((blocks.end - blocks.start) as u32);
            }
            Self::Write { first_block, durability, .. } => {
                out.put_u64_le(*first_block);
                put_durability(out, *durability);
            }
            Self::ReadPart { block, bytes } | Self::MarkAccessed { block, bytes } => {
                out.put_u64_le(*block);
                out.put_u32_le(bytes.start as u32);
                out.put_u32_le(bytes.end as u32);
            }
            Self::WritePart { block, at, .. } => {
                out.put_u64_le(*block);
                out.put_u32_le(*at as u32);
            }
            Self::PleaseCache { block } => out.put_u64_le(*block),
            Self::Discard { blocks, durability } => {
                out.put_u64_le(blocks.start);
                out.put_u64_le(blocks.end - blocks.start);
                put_durability(out, *durability);
            }
            Self::Snapshot(name) | Self::Forget(name) => out.put_slice(name.as_bytes()),
            Self::OpenRegion(name) | Self::DeleteRegion(name) => out.put_slice(name.as_bytes()),
            Self::CreateRegion { name, blocks } => {
                out.put_u64_le(*blocks);
                out.put_slice(name.as_bytes());
            }
            Self::ReadInto { blocks, slot } => put_slots(out, blocks, *slot),
            Self::WriteFrom { blocks, slot, durability } => {
                put_slots(out, blocks, *slot);
                put_durability(out, *durability);
            }
            Self::Info | Self::Nest | Self::Commit | Self::Abort | Self::Flush | Self::ShareMemory => {}
            Self::Snapshots | Self::Scrub | Self::Scrubbed | Self::Regions => {}
        }
    }

    /// The data that ends its body.
    pub fn data(&self) -> Bytes {
        match self {
            Self::Write { data, .. } | Self::WritePart { data, .. } => data.clone(),
            _ => Bytes::new(),
        }
    }

    /// The request that a body is. Errors: it is none of this kind, or of no kind that there is.
    pub fn decode(kind: u16, body: Bytes) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(&body);
        let request = match kind {
            kind::INFO => Self::Info,
            kind::BEGIN => {
                Self::Begin { isolation: isolation(&mut fields)?, durability: durability(&mut fields)? }
            }
            kind::NEST => Self::Nest,
            kind::COMMIT => Self::Commit,
            kind::ABORT => Self::Abort,
            kind::RELEASE => match fields.u8("heir")? {
                // Who it is says the connection.
                0 => Self::Release(Heir::User(0)),
                1 => Self::Release(Heir::Anyone),
                found => return Err(invalid("heir", u64::from(found), "0 or 1")),
            },
            kind::TAKE_OVER => Self::TakeOver(TxHandle(fields.bytes("handle", 16)?.get_u128())),
            kind::READ => {
                let (first, count) = (fields.u64("first block")?, u64::from(fields.u32("blocks")?));
                Self::Read { blocks: few_blocks(first, count)? }
            }
            kind::WRITE => {
                let (first_block, durability) = (fields.u64("first block")?, durability(&mut fields)?);
                let data = rest(&fields, &body);
                let count = data.len() / BLOCK;
                if !data.len().is_multiple_of(BLOCK) {
                    return Err(invalid("data", data.len() as u64, "whole blocks"));
                }
                few_blocks(first_block, count as u64)?;
                return Ok(Self::Write { first_block, data, durability });
            }
            kind::READ_PART => Self::ReadPart { block: fields.u64("block")?, bytes: part(&mut fields)? },
            kind::WRITE_PART => {
                let (block, at) = (fields.u64("block")?, fields.u32("first byte")? as usize);
                let data = rest(&fields, &body);
                if data.is_empty() || at.saturating_add(data.len()) > BLOCK {
                    return Err(invalid("data", data.len() as u64, "bytes that end in the block"));
                }
                return Ok(Self::WritePart { block, at, data });
            }
            kind::MARK_ACCESSED => {
                Self::MarkAccessed { block: fields.u64("block")?, bytes: part(&mut fields)? }
            }
            kind::PLEASE_CACHE => Self::PleaseCache { block: fields.u64("block")? },
            kind::FLUSH => Self::Flush,
            kind::DISCARD => {
                let blocks = some_blocks(fields.u64("first block")?, fields.u64("blocks")?)?;
                Self::Discard { blocks, durability: durability(&mut fields)? }
            }
            kind::SNAPSHOT => return Ok(Self::Snapshot(name(&body)?)),
            kind::SNAPSHOTS => Self::Snapshots,
            kind::FORGET => return Ok(Self::Forget(name(&body)?)),
            kind::SCRUB => Self::Scrub,
            kind::SCRUBBED => Self::Scrubbed,
            kind::OPEN_REGION => return Ok(Self::OpenRegion(name(&body)?)),
            kind::REGIONS => Self::Regions,
            kind::CREATE_REGION => {
                let blocks = fields.u64("blocks")?;
                return Ok(Self::CreateRegion { name: name(&rest(&fields, &body))?, blocks });
            }
            kind::DELETE_REGION => return Ok(Self::DeleteRegion(name(&body)?)),
            kind::SHARE_MEMORY => Self::ShareMemory,
            kind::READ_INTO | kind::WRITE_FROM => in_memory(kind, &mut fields)?,
            other => return Err(invalid("kind", u64::from(other), "1 to 27")),
        };
        fields.finish()?;
        Ok(request)
    }
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

fn isolation(fields: &mut Decoder<'_>) -> Result<Option<Isolation>, DecodeError> {
    match fields.u8("isolation")? {
        0 => Ok(None),
        1 => Ok(Some(Isolation::StrictSerializable)),
        2 => Ok(Some(Isolation::Snapshot)),
        found => Err(invalid("isolation", u64::from(found), "0, 1 or 2")),
    }
}

fn durability(fields: &mut Decoder<'_>) -> Result<Durability, DecodeError> {
    match fields.u8("durability")? {
        0 => Ok(Durability::Stable),
        1 => Ok(Durability::Acknowledged),
        found => Err(invalid("durability", u64::from(found), "0 or 1")),
    }
}

fn put_durability(out: &mut BytesMut, durability: Durability) {
    out.put_u8(u8::from(durability == Durability::Acknowledged));
}

/// What is left of a body, without a copy.
fn rest(fields: &Decoder<'_>, body: &Bytes) -> Bytes {
    body.slice(body.len() - fields.left()..)
}

/// Blocks of a read or a write; whether the volume has them is asked later.
fn few_blocks(first: u64, count: u64) -> Result<Range<u64>, DecodeError> {
    if count > BLOCKS_MAX {
        return Err(invalid("blocks", count, "at most 1024"));
    }
    some_blocks(first, count)
}

/// A read into the client's memory, or a write from there. Whether the client has these slots is asked later.
fn in_memory(kind: u16, fields: &mut Decoder<'_>) -> Result<Request, DecodeError> {
    let (first, count) = (fields.u64("first block")?, u64::from(fields.u32("blocks")?));
    let (blocks, slot) = (few_blocks(first, count)?, fields.u32("slot")?);
    if kind == kind::READ_INTO {
        return Ok(Request::ReadInto { blocks, slot });
    }
    Ok(Request::WriteFrom { blocks, slot, durability: durability(fields)? })
}

fn put_slots(out: &mut BytesMut, blocks: &Range<u64>, slot: u32) {
    out.put_u64_le(blocks.start);
    out.put_u32_le((blocks.end - blocks.start) as u32);
    out.put_u32_le(slot);
}

fn some_blocks(first: u64, count: u64) -> Result<Range<u64>, DecodeError> {
    let end = first.checked_add(count).filter(|_| count > 0);
    Ok(first..end.ok_or_else(|| invalid("blocks", count, "at least 1, and all below 2^64"))?)
}

fn part(fields: &mut Decoder<'_>) -> Result<Range<usize>, DecodeError> {
    let (start, end) = (fields.u32("first byte")? as usize, fields.u32("end")? as usize);
    if start < end && end <= BLOCK {
        Ok(start..end)
    } else {
        Err(invalid("end", end as u64, "above the first byte, at most 4096"))
    }
}

fn name(body: &[u8]) -> Result<String, DecodeError> {
    let text =
        std::str::from_utf8(body).ok().filter(|text| (1..=SNAPSHOT_NAME_MAX_BYTES).contains(&text.len()));
    Ok(text.ok_or_else(|| invalid("name", body.len() as u64, "UTF-8 of 1 to 64 bytes"))?.to_owned())
}

const _: () = assert!(SNAPSHOT_NAME_MAX_BYTES < BODY_MAX_BYTES);
