//! `ithaca stream read` and `tail`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ithaca_log::client::{Client, Entry, StreamReader};
use ithaca_log::pos::{StreamId, StreamPos};

use crate::cli::Global;
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::output::{Output, while_read};

/// Which entries of a stream, by their positions in it.
pub struct Range {
    /// The first; of those that are retained, if it is not given.
    pub from: Option<StreamPos>,
    /// Where to end; where the stream ended at the beginning, if it is not given.
    pub to: Option<StreamPos>,
    /// Go on for ever.
    pub follow: bool,
}

/// Prints the entry at one position.
pub fn one(global: &Global, name: &str, pos: StreamPos, line: bool, out: &mut Output) -> Result<(), Failure> {
    let stream = StreamId::of_name(name);
    let verb = format!("stream read {name} {pos}");
    let entry = with_client(global, &verb, async |_, client| {
        let released = client.released(stream).await?;
        if pos < released.below {
            return Err(Failure::no(format!("position {pos} of {name} is trimmed")));
        }
        let entry = client.read_stream_at(stream, pos).await?;
        entry.ok_or_else(|| Failure::no(format!("{name} has no entry at position {pos}")))
    })?;
    print(name, stream, &entry, line, out)?;
    out.flush()
}

/// Prints the entries of a range, for `verb`.
pub fn range(
    global: &Global,
    (verb, name): (&str, &str),
    range: Range,
    lines: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let stream = StreamId::of_name(name);
    let Range { from, to, follow } = range;
    with_client(global, &format!("stream {verb} {name}"), async |env, client| {
        let (from, mut reader) = open(&client, stream, from).await?;
        reader.sync().await?;
        let reading = async {
            loop {
                while let Some(entry) = reader.read_next().await? {
                    let Some(pos) = position(&entry, stream) else { continue };
                    if to.is_some_and(|to| pos >= to) {
                        return out.flush();
                    }
                    if pos >= from {
                        print(name, stream, &entry, lines, out)?;
                    }
                }
                out.flush()?;
                if !follow {
                    return Ok(());
                }
                reader.wait().await?;
            }
        };
        while_read(&env, reading).await
    })
}

/// A reader that begins with the first entry at or above `from` that is retained, and where that is.
async fn open(
    client: &Client,
    stream: StreamId,
    from: Option<StreamPos>,
) -> Result<(StreamPos, StreamReader), Failure> {
    let released = client.released(stream).await?;
    let (from, start) = match from {
        Some(from) if from > released.below => {
            (from, client.stream_start(stream, from).await?.max(released.log_below))
        }
        _ => (released.below, released.log_below),
    };
    Ok((from, client.stream_reader(stream, start)))
}

fn position(entry: &Entry, stream: StreamId) -> Option<StreamPos> {
    entry.place_in(stream).map(|place| place.position)
}

fn print(name: &str, stream: StreamId, entry: &Entry, line: bool, out: &mut Output) -> Result<(), Failure> {
    if !out.is_json() {
        out.raw(&entry.data)?;
        return if line { out.raw(b"\n") } else { Ok(()) };
    }
    let pos = position(entry, stream).unwrap_or_default();
    let object = Object::new()
        .string("stream", name)
        .number("pos", pos.0)
        .number("log_pos", entry.pos.0)
        .string("kind", "data")
        .string("data_base64", &STANDARD.encode(&entry.data));
    out.line(&object.finish())
}
