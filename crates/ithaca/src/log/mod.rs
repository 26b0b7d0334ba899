//! `ithaca log`: append, read, tail, check, fill, trim.

pub mod append;
mod lines;
mod read;
mod tail;

use ithaca_log::client::{ClientError, EntryKind};
use ithaca_log::limits::FILL_AHEAD_MAX_COUNT;
use ithaca_log::pos::LogPos;

use crate::cli::{Global, LogCommand};
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;

/// Runs one verb.
pub fn run(global: &Global, command: &LogCommand, out: &mut Output) -> Result<(), Failure> {
    match command {
        LogCommand::Append { input, lines, streams } => {
            let target = append::Target { verb: "log append", streams, shown: append::Shown::Log };
            append::run(global, &target, input.as_deref(), *lines, out)
        }
        LogCommand::Read { pos: Some(pos), lines, .. } => read::one(global, LogPos(*pos), *lines, out),
        LogCommand::Read { pos: None, from, to, lines } => {
            check_range(*from, *to)?;
            read::range(global, LogPos(from.unwrap_or(0)), to.map(LogPos), *lines, out)
        }
        LogCommand::Tail { follow, from } => tail::run(global, *follow, from.map(LogPos), out),
        LogCommand::Check => check(global, out),
        LogCommand::Fill { pos } => fill(global, LogPos(*pos), out),
        LogCommand::Trim { pos, prefix } => trim(global, LogPos(*pos), *prefix, out),
    }
}

/// A range ends where it begins, or behind that.
pub fn check_range(from: Option<u64>, to: Option<u64>) -> Result<(), Failure> {
    match (from.unwrap_or(0), to) {
        (from, Some(to)) if from > to => Err(Failure::usage(format!("--from {from} lies behind --to {to}"))),
        _ => Ok(()),
    }
}

fn check(global: &Global, out: &mut Output) -> Result<(), Failure> {
    let bounds = with_client(global, "log check", async |_, client| Ok(client.check().await?))?;
    out.either(
        || format!("tail {}, first {}", bounds.tail, bounds.first),
        || Object::new().number("tail", bounds.tail.0).number("first", bounds.first.0),
    )?;
    out.flush()
}

fn fill(global: &Global, pos: LogPos, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("log fill {pos}");
    with_client(global, &verb, async |_, client| match client.fill(pos).await {
        Ok(EntryKind::Junk) => Ok(()),
        Ok(EntryKind::Data) => Err(Failure::no(format!("position {pos} holds an entry"))),
        Ok(EntryKind::Trimmed) => Err(Failure::no(format!("position {pos} is trimmed"))),
        // Which is no reason by itself: what is to be filled is.
        Err(error @ ClientError::Unwritten { .. }) => {
            let line = format!("and more than {FILL_AHEAD_MAX_COUNT} positions above the log's end");
            Err(Failure::no(format!("{error}, {line}: it is left so")))
        }
        Err(error) => Err(error.into()),
    })?;
    out.either(
        || format!("position {pos} is junk"),
        || Object::new().number("pos", pos.0).string("kind", "junk"),
    )?;
    out.flush()
}

fn trim(global: &Global, pos: LogPos, prefix: bool, out: &mut Output) -> Result<(), Failure> {
    with_client(global, &format!("log trim {pos}"), async |_, client| {
        if prefix {
            client.trim_prefix(pos).await?
        } else {
            client.trim(pos).await?
        }
        Ok(())
    })?;
    let what = if prefix { "every position below " } else { "position " };
    out.either(
        || format!("trimmed {what}{pos}"),
        || Object::new().number("pos", pos.0).string("kind", "trimmed").boolean("prefix", prefix),
    )?;
    out.flush()
}
