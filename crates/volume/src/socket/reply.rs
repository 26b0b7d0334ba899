//! What a request is answered with when it was done.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::limits::{DAMAGE_MAX, WORDS_MAX_BYTES};
use super::request::kind;
use super::summary::Summary;
use crate::limits::{REGION_NAME_MAX_BYTES, REGIONS_MAX, SNAPSHOT_NAME_MAX_BYTES, SNAPSHOTS_MAX};
use crate::{Region, TxHandle, Version, Volume};

/// How far a scrub is, or what the last one found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// One is under way.
    pub is_running: bool,
    /// Segments that were read since the volume was opened.
    pub segments: u64,
    /// Places that were written again since then, because one side of a mirror lacked them.
    pub repaired: u64,
    /// Places that are harmed, and that no side has whole.
    pub damaged: u64,
    /// The first of them, in words.
    pub damage: Vec<String>,
}

impl Scrub {
    /// What was found of a volume, by whatever scrubs, since it was opened.
    pub fn of(volume: &Volume) -> Self {
        let stats = volume.info().chain;
        Self {
            is_running: false,
            segments: stats.scrubbed.segments,
            repaired: stats.repaired,
            damaged: stats.damage.len() as u64,
            damage: stats.damage.iter().map(|damage| damage.in_words("blocks")).collect(),
        }
    }
}

/// What is answered to writes of transactions and nested commits: nothing is committed yet.
pub(super) const NO_VERSION: Version = Version(u64::MAX);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It was done.
    Done,
    /// The client has a transaction.
    Entered {
        /// Which version it reads.
        snapshot: Version,
        /// How many that have begun within it have not ended.
        depth: u32,
    },
    /// The version of a commit; [`NO_VERSION`] if there is none.
    Version(Version),
    /// By which a transaction was released.
    Handle(TxHandle),
    /// What was read.
    Data(Bytes),
    /// What the volume is.
    Info(Summary),
    /// Names and versions.
    Snapshots(Vec<(String, Version)>),
    /// How a scrub is doing.
    Scrub(Scrub),
    /// Regions: all of them, or the one that it is about.
    Regions(Vec<Region>),
}

impl Reply {
    /// Appends its body, without its [data](Self::data).
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Done | Self::Data(_) => {}
            Self::Entered { snapshot, depth } => {
                out.put_u64_le(snapshot.0);
                out.put_u32_le(*depth);
            }
            Self::Version(version) => out.put_u64_le(version.0),
            Self::Handle(handle) => out.put_u128(handle.0),
            Self::Info(summary) => summary.encode(out),
            Self::Snapshots(names) => {
                out.put_u16_le(names.len() as u16);
                for (name, version) in names {
                    out.put_u64_le(version.0);
                    out.put_u8(name.len() as u8);
                    out.put_slice(name.as_bytes());
                }
            }
            Self::Regions(regions) => {
                out.put_u16_le(regions.len() as u16);
                for Region { name, blocks } in regions {
                    out.put_u64_le(blocks.start);
                    out.put_u64_le(blocks.end - blocks.start);
                    out.put_u8(name.len() as u8);
                    out.put_slice(name.as_bytes());
                }
            }
            Self::Scrub(scrub) => {
                out.put_u8(u8::from(scrub.is_running));
                out.put_u64_le(scrub.segments);
                out.put_u64_le(scrub.repaired);
                out.put_u64_le(scrub.damaged);
                out.put_u16_le(scrub.damage.len().min(DAMAGE_MAX) as u16);
                for place in scrub.damage.iter().take(DAMAGE_MAX) {
                    out.counted(&place.as_bytes()[..place.len().min(WORDS_MAX_BYTES)]);
                }
            }
        }
    }

    /// The data that is its body.
    pub fn data(&self) -> Bytes {
        if let Self::Data(data) = self { data.clone() } else { Bytes::new() }
    }

    /// The answer that the body of a reply of this kind is.
    pub fn decode(kind: u16, body: Bytes) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(&body);
        let reply = match kind {
            kind::READ | kind::READ_PART => return Ok(Self::Data(body)),
            kind::BEGIN | kind::TAKE_OVER => {
                Self::Entered { snapshot: Version(fields.u64("version")?), depth: fields.u32("depth")? }
            }
            kind::COMMIT | kind::WRITE | kind::WRITE_FROM | kind::FLUSH | kind::DISCARD | kind::SNAPSHOT => {
                Self::Version(Version(fields.u64("version")?))
            }
            kind::RELEASE => Self::Handle(TxHandle(fields.bytes("handle", 16)?.get_u128())),
            kind::INFO => return Ok(Self::Info(Summary::decode(&body)?)),
            kind::SNAPSHOTS => Self::Snapshots(snapshots(&mut fields)?),
            kind::OPEN_REGION | kind::REGIONS | kind::CREATE_REGION => Self::Regions(regions(&mut fields)?),
            kind::SCRUB | kind::SCRUBBED => Self::Scrub(scrub(&mut fields)?),
            _ => Self::Done,
        };
        fields.finish()?;
        Ok(reply)
    }
}

fn at_most(field: &'static str, found: u16, max: usize) -> Result<u16, DecodeError> {
    let expected = "no more than there may be";
    let invalid = DecodeError::Invalid { field, found: u64::from(found), expected };
    if usize::from(found) <= max { Ok(found) } else { Err(invalid) }
}

fn snapshots(fields: &mut Decoder<'_>) -> Result<Vec<(String, Version)>, DecodeError> {
    let count = at_most("snapshots", fields.u16("snapshots")?, SNAPSHOTS_MAX)?;
    let mut names = Vec::new();
    for _ in 0..count {
        let (version, len) = (Version(fields.u64("version")?), usize::from(fields.u8("length of a name")?));
        let name = fields.bytes("name", len.min(SNAPSHOT_NAME_MAX_BYTES))?;
        names.push((String::from_utf8_lossy(name).into_owned(), version));
    }
    Ok(names)
}

fn regions(fields: &mut Decoder<'_>) -> Result<Vec<Region>, DecodeError> {
    let count = at_most("regions", fields.u16("regions")?, REGIONS_MAX)?;
    let mut regions = Vec::new();
    for _ in 0..count {
        let (first, blocks) = (fields.u64("first block")?, fields.u64("blocks")?);
        let len = usize::from(fields.u8("length of a name")?);
        let name =
            String::from_utf8_lossy(fields.bytes("name", len.min(REGION_NAME_MAX_BYTES))?).into_owned();
        regions.push(Region { name, blocks: first..first.saturating_add(blocks) });
    }
    Ok(regions)
}

fn scrub(fields: &mut Decoder<'_>) -> Result<Scrub, DecodeError> {
    let is_running = fields.u8("running")? != 0;
    let (segments, repaired) = (fields.u64("segments")?, fields.u64("repaired")?);
    let damaged = fields.u64("damaged")?;
    let count = at_most("places", fields.u16("places")?, DAMAGE_MAX)?;
    let word = |_| Ok(String::from_utf8_lossy(fields.counted("place", WORDS_MAX_BYTES)?).into_owned());
    let damage = (0..count).map(word).collect::<Result<_, DecodeError>>()?;
    Ok(Scrub { is_running, segments, repaired, damaged, damage })
}
