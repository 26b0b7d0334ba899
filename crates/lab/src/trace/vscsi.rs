//! Traces of VMware's vscsiStats, the form in which CloudPhysics published those of virtual disks: records of fixed size,
//! little-endian, one request each, in one of two versions.
//!
//! | version | bytes | record |
//! |---|---|---|
//! | 1 | 32 | serial u32, bytes u32, segments u32, command u16, version u16, sector u64, time us u64 |
//! | 2 | 40 | command u16, version u16, serial u32, bytes u32, segments u32, sector u64, time us u64, response us u64 |
//!
//! The upper byte of the version field is the version. Sectors are of 512 bytes. Commands other than reads and writes are left out.

use ithaca_env::codec::{DecodeError, Decoder};

use super::{Request, request};

const SECTOR_BYTES: u64 = 512;
/// Records whose version is looked at to tell which one it is.
const PROBES: usize = 2;

/// A version of the format: bytes of a record, and how one is decoded.
struct Version {
    number: u16,
    bytes: usize,
    decode: fn(&[u8]) -> Result<Record, DecodeError>,
}

const VERSIONS: [Version; 2] = [
    Version { number: 1, bytes: 32, decode: decode_first },
    Version { number: 2, bytes: 40, decode: decode_second },
];

struct Record {
    command: u16,
    version: u16,
    bytes: u32,
    sector: u64,
    time_us: u64,
}

/// The requests, in the order of the records. Errors: neither version, or a record that is cut off or of another one.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Request>, String> {
    let version = VERSIONS.iter().find(|version| is_of(version, bytes));
    let version = version.ok_or("neither version 1 nor 2 of the vscsiStats format")?;
    let mut requests = Vec::new();
    let mut first_us = None;
    for (number, record) in bytes.chunks(version.bytes).enumerate() {
        let record = (version.decode)(record).map_err(|error| format!("record {number}: {error}"))?;
        if record.version >> 8 != version.number {
            return Err(format!(
                "record {number}: version {}, expected {}",
                record.version >> 8,
                version.number
            ));
        }
        let Some(is_write) = is_write(record.command) else { continue };
        let Some(offset) = record.sector.checked_mul(SECTOR_BYTES) else {
            return Err(format!("record {number}: sector {} is past any disk", record.sector));
        };
        let first = *first_us.get_or_insert(record.time_us);
        let at_ns = record.time_us.saturating_sub(first).saturating_mul(1000);
        requests.extend(request(at_ns, is_write, offset, u64::from(record.bytes)));
    }
    if requests.is_empty() { Err("it holds no request".into()) } else { Ok(requests) }
}

fn is_of(version: &Version, bytes: &[u8]) -> bool {
    let mut records = bytes.chunks_exact(version.bytes).take(PROBES).peekable();
    let matches = |record| (version.decode)(record).is_ok_and(|record| record.version >> 8 == version.number);
    records.peek().is_some() && records.all(matches)
}

/// Whether a SCSI command writes; `None` if it neither reads nor writes blocks.
fn is_write(command: u16) -> Option<bool> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(false),
        0x0a | 0x2a | 0xaa | 0x8a => Some(true),
        _ => None,
    }
}

fn decode_first(bytes: &[u8]) -> Result<Record, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    decoder.u32("serial")?;
    let bytes = decoder.u32("bytes")?;
    decoder.u32("segments")?;
    let (command, version) = (decoder.u16("command")?, decoder.u16("version")?);
    let (sector, time_us) = (decoder.u64("sector")?, decoder.u64("time")?);
    Ok(Record { command, version, bytes, sector, time_us })
}

fn decode_second(bytes: &[u8]) -> Result<Record, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let (command, version) = (decoder.u16("command")?, decoder.u16("version")?);
    decoder.u32("serial")?;
    let bytes = decoder.u32("bytes")?;
    decoder.u32("segments")?;
    let (sector, time_us) = (decoder.u64("sector")?, decoder.u64("time")?);
    decoder.u64("response")?;
    Ok(Record { command, version, bytes, sector, time_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(command: u16, sector: u64, bytes: u32, time_us: u64) -> Vec<u8> {
        let mut out = [1_u32, bytes, 1].map(u32::to_le_bytes).concat();
        out.extend([command, 0x0100].map(u16::to_le_bytes).concat());
        out.extend([sector, time_us].map(u64::to_le_bytes).concat());
        out
    }

    fn second(command: u16, sector: u64, bytes: u32, time_us: u64) -> Vec<u8> {
        let mut out = [command, 0x0200].map(u16::to_le_bytes).concat();
        out.extend([1_u32, bytes, 1].map(u32::to_le_bytes).concat());
        out.extend([sector, time_us, 9].map(u64::to_le_bytes).concat());
        out
    }

    #[test]
    fn both_versions_are_read_and_other_commands_left_out() {
        let expected = vec![
            Request { at_ns: 0, is_write: true, block: 1, blocks: 2 },
            Request { at_ns: 7000, is_write: false, block: 2, blocks: 1 },
        ];
        for record in [first, second] {
            let records = [record(0x2a, 8, 8192, 50), record(0x35, 0, 0, 55), record(0x28, 17, 512, 57)];
            assert_eq!(parse(&records.concat()), Ok(expected.clone()));
        }
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(parse(&[]).is_err_and(|what| what.contains("neither version")));
        assert!(parse(&[7; 400]).is_err_and(|what| what.contains("neither version")));
        let cut = [first(0x2a, 8, 8192, 50), first(0x2a, 8, 8192, 50), vec![1, 2, 3]].concat();
        assert!(parse(&cut).is_err_and(|what| what.starts_with("record 2: serial")));
        let mixed = [first(0x2a, 0, 1, 0), first(0x2a, 0, 1, 0), vec![0; 32]].concat();
        assert!(parse(&mixed).is_err_and(|what| what.contains("record 2: version 0, expected 1")));
        let far = [first(0x2a, u64::MAX, 1, 0), first(0x2a, 0, 1, 0)].concat();
        assert!(parse(&far).is_err_and(|what| what.contains("past any disk")));
    }
}
