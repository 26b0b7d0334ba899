//! Benches of streams: how soon a new sequencer knows where they end, how soon a rare one is opened, and how fast one is read in bulk.

mod open;
mod read;
mod takeover;

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use ithaca_log::client::{AppendTo, Client};
use ithaca_log::pos::StreamId;

use super::BenchArguments;
use crate::bare::DriveFile;

/// The names on the command line.
pub const NAMES: [&str; 3] = [takeover::NAME, open::NAME, read::NAME];

/// Whether there is a bench of streams with this name.
pub fn is_named(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Runs those that are named, or all if nothing is. Returns whether what is asked is met.
pub fn run(arguments: &BenchArguments, drive: &DriveFile) -> io::Result<bool> {
    let is_wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|wanted| wanted == name);
    let mut all_met = true;
    if is_wanted(takeover::NAME) {
        all_met &= takeover::run(arguments, drive)?;
    }
    if is_wanted(open::NAME) {
        all_met &= open::run(arguments)?;
    }
    if is_wanted(read::NAME) {
        all_met &= read::run(arguments)?;
    }
    Ok(all_met)
}

/// Appends under way while a log is filled.
const WINDOW: usize = 4096;

/// The stream with this number. Ids are spread as those of names are.
fn stream(number: u64) -> StreamId {
    StreamId::of_name(&format!("stream {number}"))
}

/// Appends `entry` to one stream after the other, in this order.
async fn fill(client: &Client, streams: impl IntoIterator<Item = StreamId>, entry: &Bytes) -> io::Result<()> {
    let mut under_way: VecDeque<AppendTo> = VecDeque::new();
    for stream in streams {
        if under_way.len() >= WINDOW
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.await.map_err(io::Error::other)?;
        }
        under_way.push_back(client.append_to(&[stream], entry.clone()));
    }
    for append in under_way {
        append.await.map_err(io::Error::other)?;
    }
    Ok(())
}
