//! `ithaca stream`: append, check, ls.

use ithaca_log::pos::StreamId;

use crate::cli::{Global, StreamCommand};
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::log::append::{self, Shown, Target};
use crate::output::Output;

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
    }
}

/// Prints where a stream ends. One that nobody has appended to ends at 0.
fn check(global: &Global, name: &str, out: &mut Output) -> Result<(), Failure> {
    let stream = StreamId::of_name(name);
    let tails = with_client(global, &format!("stream check {name}"), async |_, client| {
        Ok(client.stream_tails(&[stream]).await?)
    })?;
    let end = tails.streams.first().copied().unwrap_or_default();
    out.either(
        || match end.last {
            Some(last) => format!("tail {}, nothing above log position {last}", end.next),
            None => format!("tail {}", end.next),
        },
        || {
            let object = Object::new().string("stream", name).number("tail", end.next.0);
            match end.last {
                Some(last) => object.number("log_pos", last.0),
                None => object,
            }
        },
    )?;
    out.flush()
}

/// Prints the names of all streams.
fn ls(global: &Global, out: &mut Output) -> Result<(), Failure> {
    let names = with_client(global, "stream ls", async |_, client| Ok(client.stream_names().await?))?;
    for name in names {
        out.either(|| name.clone(), || Object::new().string("stream", &name))?;
    }
    out.flush()
}
