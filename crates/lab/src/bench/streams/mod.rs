//! Benches of streams: how soon a new sequencer knows where they end, how soon a rare one is opened, and how fast one is read in bulk.

pub mod open;
pub mod read;
pub mod takeover;

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use ithaca_log::client::{AppendTo, Client};
use ithaca_log::pos::StreamId;

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
