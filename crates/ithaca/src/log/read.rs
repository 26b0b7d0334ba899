//! `ithaca log read`: one position, which is never filled, or a range, whose holes are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ithaca_log::client::{Entry, EntryKind};
use ithaca_log::pos::{LogPos, POSITION_MAX};

use crate::cli::Global;
use crate::client::{told_at, with_client};
use crate::failure::Failure;
use crate::json::{Object, array};
use crate::output::Output;

/// Prints one entry. Junk and trimmed positions hold none, which is an answer for programs and a failure for people who
/// want its bytes; a trimmed one is a failure for both.
pub fn one(global: &Global, pos: LogPos, line: bool, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("log read {pos}");
    let entry = with_client(global, &verb, async |_, client| Ok(client.read(pos).await?))?;
    if out.is_json() || entry.kind == EntryKind::Data {
        print(&entry, line, out)?;
        out.flush()?;
    }
    let no = |line| told_at(global, &verb, Failure::no(line));
    match entry.kind {
        EntryKind::Trimmed => Err(no(format!("position {pos} is trimmed"))),
        EntryKind::Junk if !out.is_json() => Err(no(format!("position {pos} is junk"))),
        _ => Ok(()),
    }
}

/// Prints `[from, to)` as far as the log goes; without `to`, up to where it went at the beginning.
pub fn range(
    global: &Global,
    from: LogPos,
    to: Option<LogPos>,
    lines: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let verb = format!("log read --from {from}");
    with_client(global, &verb, async |_, client| {
        let tail = client.check().await?.tail;
        let end = to.unwrap_or(LogPos(POSITION_MAX)).min(tail);
        let mut next = from;
        while next < end {
            let entries = client.read_range(next, end).await?;
            let Some(last) = entries.last() else { break };
            next = LogPos(last.pos.0 + 1);
            for entry in &entries {
                print(entry, lines, out)?;
            }
        }
        out.flush()
    })
}

/// Prints an entry: as JSON; or its raw bytes, nothing for a position without data.
pub fn print(entry: &Entry, line: bool, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        return out.line(&json(entry));
    }
    if entry.kind != EntryKind::Data {
        return Ok(());
    }
    out.raw(&entry.data)?;
    if line { out.raw(b"\n") } else { Ok(()) }
}

fn json(entry: &Entry) -> String {
    let kind = match entry.kind {
        EntryKind::Data => "data",
        EntryKind::Junk => "junk",
        EntryKind::Trimmed => "trimmed",
    };
    let streams = entry.streams.iter().map(|place| place.stream.0.to_string());
    Object::new()
        .number("pos", entry.pos.0)
        .string("kind", kind)
        .raw("streams", &array(streams))
        .string("data_base64", &STANDARD.encode(&entry.data))
        .finish()
}

#[cfg(test)]
mod tests {
    use ithaca_log::entry::StreamPlaces;
    use ithaca_log::pos::Epoch;

    use super::*;

    #[test]
    fn an_entry_is_printed_with_padded_standard_base64() {
        let entry = |kind, data: &'static [u8]| Entry {
            pos: LogPos(7),
            kind,
            epoch: Epoch(1),
            streams: StreamPlaces::new(),
            data: data.into(),
        };
        assert_eq!(
            json(&entry(EntryKind::Data, b"\xfb\xff\n\0")),
            r#"{"pos":7,"kind":"data","streams":[],"data_base64":"+/8KAA=="}"#
        );
        assert_eq!(
            json(&entry(EntryKind::Junk, b"")),
            r#"{"pos":7,"kind":"junk","streams":[],"data_base64":""}"#
        );
    }
}
