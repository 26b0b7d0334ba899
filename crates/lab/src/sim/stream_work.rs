//! What clients of the workload do with streams.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ithaca_log::client::{Append, AppendTo, Client, ClientError, ErrorClass, Placed};
use ithaca_log::entry::StreamPlaces;
use ithaca_log::pos::{LogPos, StreamId, StreamPos};
use ithaca_log::stream::{Condition, ConflictKey, ConflictKeys, KeyHash};

use super::history::History;
use super::streams::Asked;
use super::value::Value;
use super::workload::{Worker, note_entry, note_failure};

/// Entries that are followed, and how long the next one is waited for.
const FOLLOWED_MAX_COUNT: usize = 6;
const FOLLOW_TIME: Duration = Duration::from_millis(300);

/// An append under way.
pub(super) enum Pending {
    Plain(Append),
    InStreams(AppendTo),
}

impl Pending {
    pub(super) async fn placed(self) -> Result<Placed, ClientError> {
        match self {
            Self::Plain(append) => append.await.map(|pos| Placed { pos, places: StreamPlaces::new() }),
            Self::InStreams(append) => append.await,
        }
    }
}

impl Worker {
    /// Whether an operation is one with streams: every other one, if there are any.
    pub(super) fn uses_streams(&mut self) -> bool {
        self.shared.streams > 0 && self.draw(2) == 0
    }

    fn stream(&mut self) -> StreamId {
        StreamId(u128::from(1000 + self.draw(self.shared.streams)))
    }

    /// A few parts, of which one is a whole stream now and then.
    fn part(&mut self, stream: StreamId) -> ConflictKey {
        let part = self.draw(6);
        ConflictKey { stream, key: if part == 0 { KeyHash::ALL } else { KeyHash(part) } }
    }

    /// What an append to streams asks for.
    pub(super) fn asked(&mut self) -> Asked {
        let (first, second) = (self.stream(), self.stream());
        let streams = if first == second || self.draw(2) == 0 { vec![first] } else { vec![first, second] };
        if self.draw(2) == 0 {
            return Asked { streams, condition: None };
        }
        let reads = (0..1 + self.draw(2)).map(|_| {
            let stream = self.stream();
            self.part(stream)
        });
        let reads = reads.collect();
        let writes = match self.draw(4) {
            0 => ConflictKeys::new(),
            _ => streams.clone().into_iter().map(|stream| self.part(stream)).collect(),
        };
        Asked { streams, condition: Some(Condition { snapshot: self.snapshot, reads, writes }) }
    }

    pub(super) async fn read_stream(&mut self) {
        let (stream, from) = (self.stream(), self.known());
        let (from, to) = (from / 2, from + 1 + self.dice.seed() % 17);
        let limit_bytes = if self.draw(3) == 0 { 1 } else { 64 << 10 };
        let start = self.shared.history.now();
        let read = read_part(&self.client, &self.shared.history, stream, from..to, limit_bytes).await;
        if let Err(error) = read {
            note_failure(&self.shared.history, &error, start);
        }
    }

    /// Follows a stream for a while, from somewhere on.
    pub(super) async fn follow_stream(&mut self) {
        let (stream, from) = (self.stream(), self.known() / 2);
        let (start, mut found) = (self.shared.history.now(), Vec::new());
        // Mostly in many parts.
        let read_bytes = 1 << self.draw(15);
        let mut reader = self.client.stream_reader(stream, LogPos(from)).with_read_bytes(read_bytes);
        while found.len() < FOLLOWED_MAX_COUNT {
            match self.env.timeout(FOLLOW_TIME, reader.next()).await {
                Ok(Ok(entry)) => {
                    note_entry(&self.shared.history, &entry, start);
                    found.push(entry.pos.0);
                }
                Ok(Err(error)) => {
                    note_failure(&self.shared.history, &error, start);
                    break;
                }
                // Nothing came.
                Err(_) => break,
            }
        }
        // Everything below where it stands now was shown.
        let upto = reader.position().0.max(from);
        found.retain(|&pos| pos < upto);
        self.shared.history.streams.read(stream, from..upto, found, self.shared.history.now());
    }

    /// Releases a stream up to somewhere.
    pub(super) async fn trim_stream(&mut self) {
        let stream = self.stream();
        let end = self.shared.history.streams.known_end(stream);
        let below = StreamPos(self.draw(end.0 + 1));
        self.shared.history.streams.releases(stream, below, self.shared.history.now());
        // Whether it is done, in part or not at all: from now on what it names may be gone.
        let _ = self.client.trim_stream(stream, below).await;
    }

    pub(super) async fn check_streams(&mut self) {
        let streams: Vec<StreamId> =
            (0..self.shared.streams).map(|at| StreamId((1000 + at).into())).collect();
        let start = self.shared.history.now();
        if let Ok(tails) = self.client.stream_tails(&streams).await {
            self.snapshot = tails.tail;
            self.shared.history.streams.ended(streams, tails, start);
        }
    }

    /// Starts an append.
    pub(super) fn send(&self, value: Value, asked: Option<Asked>, bytes: Bytes) -> Pending {
        let Some(asked) = asked else { return Pending::Plain(self.client.append(bytes)) };
        self.shared.history.streams.asks(value, asked.clone());
        Pending::InStreams(match asked.condition {
            Some(condition) => self.client.append_if(&asked.streams, condition, bytes),
            None => self.client.append_to(&asked.streams, bytes),
        })
    }
}

/// Reads a part of a stream and notes what it shows; returns up to where it goes.
async fn read_part(
    client: &Client,
    history: &History,
    stream: StreamId,
    range: Range<u64>,
    limit_bytes: usize,
) -> Result<u64, ClientError> {
    let start = history.now();
    let positions = LogPos(range.start)..LogPos(range.end);
    let part = client.read_stream(stream, positions, limit_bytes).await?;
    part.entries.iter().for_each(|entry| note_entry(history, entry, start));
    let found = part.entries.iter().map(|entry| entry.pos.0).collect();
    history.streams.read(stream, range.start..part.upto.0, found, history.now());
    Ok(part.upto.0)
}

/// Reads every stream of the workload up to the tail, in parts and as a reader does: both show the same.
pub(super) async fn read_all(
    client: &Client,
    history: &History,
    streams: u64,
    tail: LogPos,
) -> Result<(), ClientError> {
    for stream in (0..streams).map(|at| StreamId((1000 + at).into())) {
        let mut next = 0;
        while next < tail.0 {
            let start = history.now();
            let upto = match read_part(client, history, stream, next..tail.0, 1 << 20).await {
                // What is behind it is to be there.
                Err(error) if error.class() == ErrorClass::Damaged => {
                    note_failure(history, &error, start);
                    next + 1
                }
                upto => upto?,
            };
            if upto <= next {
                history.wrong.borrow_mut().push(format!("a read of {stream} from {next} covers nothing"));
                return Ok(());
            }
            next = upto;
        }
        follow_all(client, history, stream, tail).await?;
    }
    Ok(())
}

/// Reads a stream up to the tail as a reader does, which does not go on behind what is damaged.
async fn follow_all(
    client: &Client,
    history: &History,
    stream: StreamId,
    tail: LogPos,
) -> Result<(), ClientError> {
    let (start, mut found, mut upto) = (history.now(), Vec::new(), tail.0);
    let mut reader = client.stream_reader(stream, LogPos(0));
    reader.sync().await?;
    loop {
        match reader.read_next().await {
            Ok(Some(entry)) => {
                note_entry(history, &entry, start);
                found.push(entry.pos.0);
            }
            Ok(None) => break,
            Err(error) if error.class() == ErrorClass::Damaged => {
                note_failure(history, &error, start);
                upto = reader.position().0;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    history.streams.read(stream, 0..upto, found, history.now());
    Ok(())
}
