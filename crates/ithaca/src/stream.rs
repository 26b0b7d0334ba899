//! `ithaca stream`: append, read, tail, check, trim, ls.

mod arguments;
mod read;

use ithaca_log::client::{ClientError, StreamsError};
use ithaca_log::pos::{StreamId, StreamPos};

use crate::cli::Global;
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::log::append::{self, Shown, Target};
use crate::log::check_range;
use crate::object::mark_of;
use crate::output::{Output, shown};

pub use arguments::StreamCommand;

/// Runs one verb.
pub fn run(global: &Global, command: &StreamCommand, out: &mut Output) -> Result<(), Failure> {
    match command {
        StreamCommand::Append { name, input, lines } => {
            let streams = std::slice::from_ref(name);
            let target = Target { verb: "stream append", streams, shown: Shown::Stream };
            append::run(global, &target, input.as_deref(), *lines, out)
        }
        StreamCommand::Check { name } => check(global, name, out),
        StreamCommand::Ls => ls(global, out),
        StreamCommand::Read { name, pos: Some(pos), lines, .. } => {
            read::one(global, name, StreamPos(*pos), *lines, out)
        }
        StreamCommand::Read { name, pos: None, from, to, lines } => {
            check_range(*from, *to)?;
            let range = read::Range { from: from.map(StreamPos), to: to.map(StreamPos), follow: false };
            read::range(global, ("read", name), range, *lines, out)
        }
        StreamCommand::Tail { name, follow, from } => {
            let range = read::Range { from: from.map(StreamPos), to: None, follow: *follow };
            read::range(global, ("tail", name), range, true, out)
        }
        StreamCommand::Trim { name, pos, prefix: _, force } => {
            trim(global, name, StreamPos(*pos), *force, out)
        }
    }
}

/// Gives up what a stream has below a position of it; if it is an object's, only where that is forced.
fn trim(
    global: &Global,
    name: &str,
    below: StreamPos,
    is_forced: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    with_client(global, &format!("stream trim {name} {below}"), async |_, client| {
        let stream = StreamId::of_name(name);
        if !is_forced && let Some(mark) = mark_of(&client, stream).await? {
            return Err(Failure::usage(format!(
                "{name:?} is an object's: {mark}; `ithaca map forget` gives up a map's past, --force any entry"
            )));
        }
        let trimmed = client.trim_stream(stream, below).await;
        trimmed.map_err(|error| match error {
            ClientError::Streams(StreamsError::PastEnd { next, .. }) => {
                Failure::no(format!("{name} ends at {next}, below {below}"))
            }
            error => error.into(),
        })
    })?;
    out.either(
        || format!("trimmed every entry of {name} below {below}"),
        || Object::new().string("stream", name).number("pos", below.0).string("kind", "trimmed"),
    )?;
    out.flush()
}

/// Prints where a stream ends, and from where on it is retained. One that nobody has appended to ends at 0.
fn check(global: &Global, name: &str, out: &mut Output) -> Result<(), Failure> {
    let stream = StreamId::of_name(name);
    let (tails, released) = with_client(global, &format!("stream check {name}"), async |_, client| {
        Ok((client.stream_tails(&[stream]).await?, client.released(stream).await?))
    })?;
    let (end, first) = (tails.streams.first().copied().unwrap_or_default(), released.below);
    out.either(
        || match end.bound() {
            Some(last) => format!("tail {}, first {first}, nothing above log position {last}", end.next),
            None => format!("tail {}, first {first}", end.next),
        },
        || {
            let object = Object::new().string("stream", name).number("tail", end.next.0);
            object.number("first", first.0).optional("log_pos", end.bound().map(|bound| bound.0))
        },
    )?;
    out.flush()
}

/// Prints the names of all streams.
fn ls(global: &Global, out: &mut Output) -> Result<(), Failure> {
    let names = with_client(global, "stream ls", async |_, client| Ok(client.stream_names().await?))?;
    for name in names {
        out.either(|| shown(&name), || Object::new().string("stream", &name))?;
    }
    out.flush()
}
