//! The MSR Cambridge traces, as SNIA publishes them: one request a line,
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Timestamp is a Windows file time, in units of 100 ns; Type is `Read` or `Write`; Offset and Size are bytes; ResponseTime is in units
//! of 100 ns and is not used. Disks of one file are laid one after the other, 2^40 bytes each.

use super::{Request, request};

/// Bytes between the beginnings of two disks.
const DISK_BYTES: u64 = 1 << 40;
/// Most disks of a file.
const DISKS_MAX: u64 = 1 << 16;
/// Nanoseconds of a unit of time.
const TICK_NS: u64 = 100;

/// The requests, in the order of the lines. Errors: a line that is not one, by its number and what is wrong.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Request>, String> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| format!("not text at byte {}", error.valid_up_to()))?;
    let mut requests = Vec::new();
    let mut first_tick = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        // Some copies have a line of names.
        if line.is_empty() || number == 0 && line.starts_with("Timestamp") {
            continue;
        }
        let (tick, parsed) = parse_line(line).map_err(|what| format!("line {}: {what}", number + 1))?;
        let first = *first_tick.get_or_insert(tick);
        let at_ns = tick.saturating_sub(first).saturating_mul(TICK_NS);
        requests.extend(parsed.and_then(|it| request(at_ns, it.is_write, it.offset, it.size)));
    }
    if requests.is_empty() { Err("it holds no request".into()) } else { Ok(requests) }
}

/// What a line says.
struct Fields {
    is_write: bool,
    offset: u64,
    size: u64,
}

fn parse_line(line: &str) -> Result<(u64, Option<Fields>), String> {
    let fields: Vec<&str> = line.split(',').collect();
    let [timestamp, _host, disk, kind, offset, size, _response] = fields[..] else {
        return Err(format!("{} fields, expected 7", fields.len()));
    };
    let number = |name: &str, text: &str| {
        text.trim().parse::<u64>().map_err(|_| format!("{name}: found `{text}`, expected a whole number"))
    };
    let is_write = match kind.trim() {
        kind if kind.eq_ignore_ascii_case("write") => true,
        kind if kind.eq_ignore_ascii_case("read") => false,
        other => return Err(format!("Type: found `{other}`, expected Read or Write")),
    };
    let disk = number("DiskNumber", disk)?;
    let (offset, size) = (number("Offset", offset)?, number("Size", size)?);
    if disk >= DISKS_MAX || offset >= DISK_BYTES {
        return Err(format!("disk {disk}, offset {offset}: past what is read"));
    }
    let fields = (size > 0).then_some(Fields { is_write, offset: disk * DISK_BYTES + offset, size });
    Ok((number("Timestamp", timestamp)?, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_requests_of_whole_blocks() {
        let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n\
                    128166372003061629,prxy,0,Read,7014609920,24576,41286\r\n\
                    128166372003061729,prxy,1,Write,4095,2,10\r\n\
                    128166372003061729,prxy,1,Write,0,0,10\n";
        let expected = [
            Request { at_ns: 0, is_write: false, block: 7_014_609_920 / 4096, blocks: 7 },
            Request { at_ns: 10_000, is_write: true, block: (1 << 40) / 4096, blocks: 2 },
        ];
        assert_eq!(parse(text.as_bytes()), Ok(expected.to_vec()));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let check = |text: &str, expected: &str| {
            let found = parse(text.as_bytes()).expect_err("it is no trace");
            assert!(found.contains(expected), "{found}");
        };
        check("1,h,0,Read,0,4096,1\n1,h,0,Read,0\n", "line 2: 5 fields, expected 7");
        check("1,h,0,Erase,0,4096,1", "line 1: Type: found `Erase`");
        check("1,h,0,Read,-1,4096,1", "line 1: Offset: found `-1`");
        check("1,h,99999999,Read,0,4096,1", "line 1: disk 99999999");
        check("", "no request");
        assert!(parse(&[b'1', 0xff]).is_err_and(|what| what.contains("byte 1")));
    }
}
