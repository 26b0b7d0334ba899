//! The volume's own record, which its chain keeps: what the volume is, where history begins, which versions have names. Byte by byte in
//! docs/format/volume.md.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::record;

use crate::error::StateError;
use crate::limits::{BLOCKS_MAX, FORMAT_VERSION, REGIONS_MAX, SNAPSHOT_NAME_MAX_BYTES, SNAPSHOTS_MAX};
use crate::options::{Isolation, Retention, Version};
use crate::region::{Regions, are_apart, is_region_name};

const MAGIC: [u8; 4] = *b"ITvo";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Blocks of the volume.
    pub(crate) blocks: u64,
    /// Bytes of a fragment.
    pub(crate) fragment_bytes: u32,
    /// What transactions are held to.
    pub(crate) isolation: Isolation,
    /// How long old versions are kept.
    pub(crate) retention: Retention,
    /// How large each file may become.
    pub(crate) capacity_bytes: u64,
    /// Where history begins.
    pub(crate) floor: u64,
    /// Snapshots with names.
    pub(crate) snapshots: BTreeMap<String, Version>,
    /// Parts of the volume with names.
    pub(crate) regions: Regions,
}

/// What the name of a snapshot that is there may be.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=SNAPSHOT_NAME_MAX_BYTES).contains(&name.len())
}

/// What that of a new one has to be: part of an export's name, after the volume's or a region's.
pub(crate) fn is_new_name(name: &str) -> bool {
    is_name(name) && is_part_of_an_export(name)
}

/// Whether a name can stand between the marks of an export's, and in a line.
pub(crate) fn is_part_of_an_export(name: &str) -> bool {
    !name.contains(['@', '/']) && !name.contains(char::is_control)
}

impl State {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Bytes {
        record::encode(MAGIC, FORMAT_VERSION, |out| self.encode_body(out))
    }

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.blocks);
        out.put_u32_le(self.fragment_bytes);
        out.put_u8(match self.isolation {
            Isolation::StrictSerializable => 1,
            Isolation::Snapshot => 2,
        });
        out.put_u64_le(self.retention.versions);
        out.put_u64_le(self.retention.age.as_millis() as u64);
        out.put_u64_le(self.capacity_bytes);
        out.put_u64_le(self.floor);
        out.put_u16_le(self.snapshots.len() as u16);
        for (name, version) in &self.snapshots {
            assert!(is_name(name), "names are checked before");
            out.put_u64_le(version.0);
            put_name(out, name);
        }
        out.put_u16_le(self.regions.len() as u16);
        for (name, blocks) in &self.regions {
            assert!(is_region_name(name), "names are checked before");
            out.put_u64_le(blocks.start);
            out.put_u64_le(blocks.end - blocks.start);
            put_name(out, name);
        }
    }

    /// The record that `bytes` is, whole and with nothing after it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (_, body) = record::decode(MAGIC, FORMAT_VERSION, bytes).map_err(StateError::Record)?;
        Self::decode_body(Decoder::new(body)).map_err(|error| StateError::Record(error.into()))
    }

    fn decode_body(mut body: Decoder<'_>) -> Result<Self, DecodeError> {
        let blocks = body.u64("blocks")?;
        within("blocks", blocks, (1..=BLOCKS_MAX).contains(&blocks), "1 to 2^32")?;
        let fragment_bytes = body.u32("fragment bytes")?;
        let is_fragment = is_fragment(fragment_bytes);
        within("fragment bytes", u64::from(fragment_bytes), is_fragment, "a power of two from 16 to 4096")?;
        let isolation = match body.u8("isolation")? {
            1 => Isolation::StrictSerializable,
            2 => Isolation::Snapshot,
            other => return Err(invalid("isolation", u64::from(other), "1 or 2")),
        };
        let versions = body.u64("retained versions")?;
        let age = Duration::from_millis(body.u64("retained milliseconds")?);
        let capacity_bytes = body.u64("capacity")?;
        let floor = body.u64("floor")?;
        let count = usize::from(body.u16("snapshots")?);
        within("snapshots", count as u64, count <= SNAPSHOTS_MAX, "at most 64")?;
        let mut snapshots = BTreeMap::new();
        for _ in 0..count {
            let version = Version(body.u64("version of a snapshot")?);
            snapshots.insert(next_name(&mut body, &snapshots, is_name)?, version);
        }
        let regions = decode_regions(&mut body, blocks)?;
        body.finish()?;
        Ok(Self {
            blocks,
            fragment_bytes,
            isolation,
            retention: Retention { versions, age },
            capacity_bytes,
            floor,
            snapshots,
            regions,
        })
    }
}

fn decode_regions(body: &mut Decoder<'_>, blocks: u64) -> Result<Regions, DecodeError> {
    let count = usize::from(body.u16("regions")?);
    within("regions", count as u64, count <= REGIONS_MAX, "at most 64")?;
    let mut regions = Regions::new();
    for _ in 0..count {
        let (first, count) = (body.u64("first block of a region")?, body.u64("blocks of a region")?);
        let name = next_name(body, &regions, is_region_name)?;
        regions.insert(name, first..first.saturating_add(count));
    }
    let are_apart = are_apart(&regions, blocks);
    within("regions", count as u64, are_apart, "blocks of the volume, each in one region at the most")?;
    Ok(regions)
}

fn put_name(out: &mut BytesMut, name: &str) {
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
}

/// The next one of names that come in order.
fn next_name<T>(
    body: &mut Decoder<'_>,
    before: &BTreeMap<String, T>,
    is_name: fn(&str) -> bool,
) -> Result<String, DecodeError> {
    let len = usize::from(body.u8("length of a name")?);
    let name = std::str::from_utf8(body.bytes("name", len)?).ok().filter(|name| is_name(name));
    let last = before.last_key_value().map_or("", |(last, _)| last.as_str());
    let name = name.filter(|name| *name > last);
    Ok(name.ok_or_else(|| invalid("name", len as u64, "UTF-8 of 1 to 64 bytes, in order"))?.to_owned())
}

/// Whether conflicts can be found at this grain.
pub(crate) fn is_fragment(bytes: u32) -> bool {
    bytes.is_power_of_two() && (16..=4096).contains(&bytes)
}

fn within(
    field: &'static str,
    found: u64,
    is_within: bool,
    expected: &'static str,
) -> Result<(), DecodeError> {
    if is_within { Ok(()) } else { Err(invalid(field, found, expected)) }
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden;

    use super::*;

    fn example() -> State {
        State {
            blocks: 1 << 20,
            fragment_bytes: 16,
            isolation: Isolation::StrictSerializable,
            retention: Retention { versions: 1000, age: Duration::from_secs(60) },
            capacity_bytes: 5 << 30,
            floor: 0x0102_0304,
            snapshots: [("before".to_owned(), Version(7)), ("über".to_owned(), Version(0x1122))].into(),
            regions: [("mail".to_owned(), 1 << 10..1 << 20), ("root".to_owned(), 0..1 << 10)].into(),
        }
    }

    #[test]
    fn the_record_is_the_same_bytes_as_ever() {
        let mut text = String::new();
        let bare = State {
            snapshots: BTreeMap::new(),
            regions: Regions::new(),
            isolation: Isolation::Snapshot,
            ..example()
        };
        for (name, state) in [("volume", bare), ("volume with snapshots and regions", example())] {
            let bytes = state.encode();
            text += &format!("# {name}, {} bytes\n{}", bytes.len(), golden::hex(&bytes));
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/records.txt");
        golden::check(path, &text);
    }

    #[test]
    fn a_record_decodes_and_no_other_bytes_do() {
        let bytes = example().encode();
        assert_eq!(State::decode(&bytes), Ok(example()));
        for cut in 0..bytes.len() {
            assert!(State::decode(&bytes[..cut]).is_err(), "cut to {cut} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut harmed = bytes.to_vec();
            harmed[bit / 8] ^= 1 << (bit % 8);
            assert!(State::decode(&harmed).is_err(), "bit {bit}");
        }
        assert!(State::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
        let mut newer = bytes.to_vec();
        newer[4] = 2;
        let error = State::decode(&newer).expect_err("it is newer").to_string();
        assert_eq!(error, "format version 2, this software reads up to 1");
    }
}
