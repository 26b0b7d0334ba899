//! The record of where the drives of a data directory's units are, as its register holds it. (docs/format/log.md)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};
use ithaca_env::record::{self, RecordError};

use super::{HeldLink, LINKS_REMEMBERED_MAX, SIDES_REMEMBERED_MAX, UnitPaths};
use crate::limits;
use crate::pos::NodeId;

const MAGIC: [u8; 4] = *b"ITdr";
const VERSION: u16 = 1;

/// What a register's file says of units, for people: a line each.
pub(in super::super) fn describe(value: &Bytes) -> Vec<String> {
    let units = match decode(value, Path::new("")) {
        Ok(units) => units,
        Err(error) => return vec![format!("damaged: {error}")],
    };
    let line = |(node, paths): (&NodeId, &UnitPaths)| {
        let name = |sides: &Vec<PathBuf>| {
            sides.iter().map(|side| side.display().to_string()).collect::<Vec<_>>().join("+")
        };
        let held = paths.held.iter().map(|link| match link.is_leaving {
            true => format!("{} (leaving)", name(&link.sides)),
            false => name(&link.sides),
        });
        let given = paths.given.iter().map(name).collect::<Vec<_>>().join(", ");
        format!("unit {}: has {}; was given [{given}]", node.0, held.collect::<Vec<_>>().join(", "))
    };
    units.iter().map(line).collect()
}

/// Where the drives are that each unit has, or may have, those in `data` as in there; of none if the record is harmed.
pub(in super::super) fn drives_in(value: &Bytes, data: &Path) -> Vec<(NodeId, Vec<PathBuf>)> {
    let units = decode(value, data).unwrap_or_default();
    units.into_iter().map(|(node, paths)| (node, paths.links().concat())).collect()
}

/// The record of all units; see docs/format/log.md. Every path is text.
pub(super) fn encode(units: &BTreeMap<NodeId, UnitPaths>, data: &Path) -> Bytes {
    record::encode(MAGIC, VERSION, |out| {
        out.put_u32_le(units.len() as u32);
        for (node, paths) in units {
            out.put_u64_le(node.0);
            out.put_u32_le(paths.given.len() as u32);
            paths.given.iter().for_each(|sides| put_sides(out, sides, data));
            out.put_u32_le(paths.held.len() as u32);
            for link in &paths.held {
                out.put_u32_le(link.is_leaving.into());
                put_sides(out, &link.sides, data);
            }
        }
    })
}

fn put_sides(out: &mut BytesMut, sides: &[PathBuf], data: &Path) {
    out.put_u32_le(sides.len() as u32);
    for side in sides {
        let below = side.strip_prefix(data).ok().filter(|below| !below.as_os_str().is_empty());
        let text = below.unwrap_or(side).to_str().expect("what is not text is not remembered");
        out.counted(text.as_bytes());
    }
}

/// The units of a record. Never panics, whatever the bytes are.
pub(super) fn decode(value: &[u8], data: &Path) -> Result<BTreeMap<NodeId, UnitPaths>, RecordError> {
    let (_, body) = record::decode(MAGIC, VERSION, value)?;
    let mut decoder = Decoder::new(body);
    let mut units = BTreeMap::new();
    for _ in 0..decoder.u32("unit count")? {
        let node = NodeId(decoder.u64("node")?);
        let mut paths = UnitPaths::default();
        for _ in 0..count(&mut decoder, "link count", LINKS_REMEMBERED_MAX)? {
            paths.given.push(sides(&mut decoder, data)?);
        }
        for _ in 0..count(&mut decoder, "link count", LINKS_REMEMBERED_MAX)? {
            let is_leaving = match decoder.u32("leaving")? {
                0 => false,
                1 => true,
                found => return Err(invalid("leaving", found.into(), "0 or 1").into()),
            };
            paths.held.push(HeldLink { sides: sides(&mut decoder, data)?, is_leaving });
        }
        if units.insert(node, paths).is_some() {
            return Err(invalid("node", node.0, "each once").into());
        }
    }
    decoder.finish()?;
    Ok(units)
}

fn count(decoder: &mut Decoder<'_>, field: &'static str, max: usize) -> Result<usize, DecodeError> {
    let found = decoder.u32(field)? as usize;
    if found <= max { Ok(found) } else { Err(invalid(field, found as u64, "no more than are remembered")) }
}

fn sides(decoder: &mut Decoder<'_>, data: &Path) -> Result<Vec<PathBuf>, DecodeError> {
    let found = count(decoder, "side count", SIDES_REMEMBERED_MAX)?;
    if found == 0 {
        return Err(invalid("side count", 0, "at least one"));
    }
    let side = |_| {
        match decoder.text("drive path", limits::DRIVE_PATH_MAX_BYTES)? {
            "" => Err(invalid("drive path", 0, "UTF-8")),
            // One that is absolute takes the place of the directory.
            text => Ok(data.join(text)),
        }
    };
    (0..found).map(side).collect()
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ithaca_env::real::golden;
    use ithaca_env::sim::Random;

    use crate::server::remembered::tests::{held, paths};

    fn units() -> BTreeMap<NodeId, UnitPaths> {
        let mut first = held(&[&["/data/unit-1.chain"], &["/mnt/a", "/mnt/b"]]);
        first.held[1].is_leaving = true;
        let second = UnitPaths { given: paths(&[&["/mnt/c"]]), ..held(&[&["/mnt/c"]]) };
        BTreeMap::from([(NodeId(1), first), (NodeId(2), second)])
    }

    #[test]
    fn the_record_has_golden_bytes_and_what_lies_in_the_directory_moves_with_it() {
        let record = encode(&units(), Path::new("/data"));
        let text = format!(
            "Where drives are, in hexadecimal. docs/format/log.md explains it.\n\n{}",
            golden::hex(&record)
        );
        golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/drives.txt"), &text);
        assert_eq!(decode(&record, Path::new("/data")), Ok(units()));
        let moved = decode(&record, Path::new("/moved")).expect("the same record");
        let links = [paths(&[&["/moved/unit-1.chain"], &["/mnt/a", "/mnt/b"]]), paths(&[&["/mnt/c"]])];
        assert_eq!(moved.values().map(UnitPaths::links).collect::<Vec<_>>(), links);
    }

    #[test]
    fn bytes_that_are_cut_or_damaged_are_refused_and_never_a_panic() {
        let record = encode(&units(), Path::new("/data"));
        for len in 0..record.len() {
            assert!(decode(&record[..len], Path::new("/data")).is_err(), "cut at {len}");
        }
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut body = record[12..record.len() - 4].to_vec();
            for _ in 0..1 + random.next_u64() % 3 {
                let at = random.next_u64() as usize % body.len();
                body[at] = random.next_u64() as u8;
            }
            let _ =
                decode(&record::encode(MAGIC, VERSION, |out| out.extend_from_slice(&body)), Path::new("/"));
        }
    }
}
