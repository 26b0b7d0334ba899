//! The record of where the drives of a data directory's units are, as its register holds it. (docs/format/log.md)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::ChainId;
use ithaca_env::codec::{DecodeError, Decoder, Encoder};
use ithaca_env::record::{self, RecordError};

use super::{HeldLink, Known, LINKS_REMEMBERED_MAX, SIDES_REMEMBERED_MAX, UnitPaths};
use crate::limits;
use crate::pos::NodeId;

const MAGIC: [u8; 4] = *b"ITdr";
/// The newest version that is read, and the one that is written. The first had no generations.
const VERSION: u16 = 2;

/// What a register's file says of units, for people: a line each.
pub(in super::super) fn describe(value: &Bytes) -> Vec<String> {
    let known = match decode(value, Path::new("")) {
        Ok(known) => known,
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
        let generation = match known.generations.get(node) {
            Some((_, generation)) => format!("; they are at generation {generation}"),
            None => String::new(),
        };
        format!(
            "unit {}: has {}; was given [{given}]{generation}",
            node.0,
            held.collect::<Vec<_>>().join(", ")
        )
    };
    known.units.iter().map(line).collect()
}

/// Where the drives are that each unit has, or may have, those in `data` as in there; of none if the record is harmed.
pub(in super::super) fn drives_in(value: &Bytes, data: &Path) -> Vec<(NodeId, Vec<PathBuf>)> {
    let known = decode(value, data).unwrap_or_default();
    known.units.into_iter().map(|(node, paths)| (node, paths.links().concat())).collect()
}

/// The highest generation that the drives of each unit's chain are known to have come to; of none if the record is harmed.
pub(in super::super) fn generations_in(value: &Bytes) -> Vec<(ChainId, u64)> {
    decode(value, Path::new("")).unwrap_or_default().generations.into_values().collect()
}

/// The record of all that is known; see docs/format/log.md. Every path is text.
pub(super) fn encode(known: &Known, data: &Path) -> Bytes {
    record::encode(MAGIC, VERSION, |out| {
        out.put_u32_le(known.units.len() as u32);
        for (node, paths) in &known.units {
            out.put_u64_le(node.0);
            out.put_u32_le(paths.given.len() as u32);
            paths.given.iter().for_each(|sides| put_sides(out, sides, data));
            out.put_u32_le(paths.held.len() as u32);
            for link in &paths.held {
                out.put_u32_le(link.is_leaving.into());
                put_sides(out, &link.sides, data);
            }
        }
        out.put_u32_le(known.generations.len() as u32);
        for (node, (chain, generation)) in &known.generations {
            out.put_u64_le(node.0);
            out.put_slice(&chain.0);
            out.put_u64_le(*generation);
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

/// What a record says. Never panics, whatever the bytes are.
pub(super) fn decode(value: &[u8], data: &Path) -> Result<Known, RecordError> {
    let (version, body) = record::decode(MAGIC, VERSION, value)?;
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
    let mut generations = BTreeMap::new();
    let count = if version == 1 { 0 } else { decoder.u32("generation count")? };
    for _ in 0..count {
        let node = NodeId(decoder.u64("node")?);
        let mut chain = ChainId([0; 16]);
        chain.0.copy_from_slice(decoder.bytes("chain", 16)?);
        if generations.insert(node, (chain, decoder.u64("generation")?)).is_some() {
            return Err(invalid("node", node.0, "each once").into());
        }
    }
    decoder.finish()?;
    Ok(Known { units, generations })
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

    fn known() -> Known {
        let mut first = held(&[&["/data/unit-1.chain"], &["/mnt/a", "/mnt/b"]]);
        first.held[1].is_leaving = true;
        let second = UnitPaths { given: paths(&[&["/mnt/c"]]), ..held(&[&["/mnt/c"]]) };
        let units = BTreeMap::from([(NodeId(1), first), (NodeId(2), second)]);
        Known { units, generations: BTreeMap::from([(NodeId(1), (ChainId([7; 16]), 3))]) }
    }

    #[test]
    fn the_record_has_golden_bytes_and_what_lies_in_the_directory_moves_with_it() {
        let record = encode(&known(), Path::new("/data"));
        let text = format!(
            "Where drives are, in hexadecimal. docs/format/log.md explains it.\n\n{}",
            golden::hex(&record)
        );
        golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/drives.txt"), &text);
        assert_eq!(decode(&record, Path::new("/data")), Ok(known()));
        let moved = decode(&record, Path::new("/moved")).expect("the same record");
        let links = [paths(&[&["/moved/unit-1.chain"], &["/mnt/a", "/mnt/b"]]), paths(&[&["/mnt/c"]])];
        assert_eq!(moved.units.values().map(UnitPaths::links).collect::<Vec<_>>(), links);
    }

    #[test]
    fn a_record_of_the_first_version_is_read_and_says_of_no_generation() {
        let units = Known { generations: BTreeMap::new(), ..known() };
        let record = encode(&units, Path::new("/data"));
        // Without the count of generations, which is 0.
        let body = &record[12..record.len() - 8];
        let first = record::encode(MAGIC, 1, |out| out.extend_from_slice(body));
        assert_eq!(decode(&first, Path::new("/data")), Ok(units));
    }

    #[test]
    fn bytes_that_are_cut_or_damaged_are_refused_and_never_a_panic() {
        let record = encode(&known(), Path::new("/data"));
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
