//! What clients of the workload do with streams.

use bytes::Bytes;
use ithaca_log::client::{Append, AppendTo, ClientError, Placed};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey, KeyHash};

use super::streams::Asked;
use super::value::Value;
use super::workload::{Worker, note_entry, note_failure};

/// An append under way.
pub(super) enum Pending {
    Plain(Append),
    InStreams(AppendTo),
}

impl Pending {
    pub(super) async fn placed(self) -> Result<Placed, ClientError> {
        match self {
            Self::Plain(append) => append.await.map(|pos| Placed { pos, places: Vec::new() }),
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
            0 => Vec::new(),
            _ => streams.clone().into_iter().map(|stream| self.part(stream)).collect(),
        };
        Asked { streams, condition: Some(Condition { snapshot: self.snapshot, reads, writes }) }
    }

    pub(super) async fn read_stream(&mut self) {
        let (stream, from) = (self.stream(), self.known());
        let (from, to) = (from / 2, from + 1 + self.dice.seed() % 17);
        let start = self.shared.history.now();
        let part = self.client.read_stream(stream, LogPos(from)..LogPos(to), 64 << 10).await;
        let history = &self.shared.history;
        match part {
            Ok(part) => {
                part.entries.iter().for_each(|entry| note_entry(history, entry, start));
                let found = part.entries.iter().map(|entry| entry.pos.0).collect();
                history.streams.read(stream, from..part.upto.0, found, history.now());
            }
            Err(error) => note_failure(history, &error, start),
        }
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
