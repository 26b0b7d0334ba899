//! Transactions without a sequencer that checks conditions: the baseline that ours are measured against.
//!
//! ```text
//!   program 1, hosts a, b      reads a@7 ─► appends commit {a@7; c := 1} to c ─► plays a up to there, decides, appends decision
//!   program 2, hosts c         plays c: meets the commit, does not know a ─► waits for the decision, or replays a
//! ```
//!
//! A transaction appends a commit record to the streams of all that it writes, whatever comes of it. It is committed if no object that
//! it has read was changed between its version there and the record; whoever hosts all of these objects sees that when it comes to the
//! record. Others wait for a decision record; one that does not come is made up for by a replay of what was read. (Wei 5.1.2, 5.2, cases A
//! to C; objects are versioned as a whole, as there. Ours: docs/protocol/objects.md)

pub mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::task::gather;
use ithaca_log::client::{Client, ClientError};
use ithaca_log::pos::{LogPos, StreamId};

use record::{Commit, Record, Write};

/// Bytes of a stream that are read at once.
const READ_BYTES: usize = 1 << 20;
/// How long a decision is waited for before what was read is replayed.
const ORPHAN_WAIT: Duration = Duration::from_millis(50);
/// The wait before a stream is looked at again for a decision.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// An object that a program has in memory.
#[derive(Clone, Debug, Default)]
struct Hosted {
    state: BTreeMap<u64, u64>,
    /// One past the position that changed it last.
    version: LogPos,
    /// Its stream was read up to here.
    next: LogPos,
}

/// A program and the objects that it hosts. One transaction at a time.
pub struct Program {
    env: Env,
    client: Client,
    hosted: BTreeMap<StreamId, Hosted>,
    /// Commits that were read and not played yet, in the order of the log.
    ahead: BTreeMap<LogPos, Commit>,
    /// Decisions that were read, of records that were not played yet.
    decided: BTreeMap<LogPos, bool>,
    /// Everything below was played.
    played: LogPos,
    /// The own record that is being decided, and what became of it.
    own: Option<(LogPos, Option<bool>)>,
    /// Whether commits are followed by decisions: the text's `isShared`.
    is_shared: bool,
    orphans: u64,
}

impl Program {
    /// One that hosts these objects and has read nothing yet.
    pub fn new(
        env: &Env,
        client: Client,
        hosted: impl IntoIterator<Item = StreamId>,
        is_shared: bool,
    ) -> Self {
        let hosted = hosted.into_iter().map(|stream| (stream, Hosted::default())).collect();
        let (ahead, decided) = (BTreeMap::new(), BTreeMap::new());
        let (env, played, own) = (env.clone(), LogPos(0), None);
        Self { env, client, hosted, ahead, decided, played, own, is_shared, orphans: 0 }
    }

    /// The value of a key as far as was played. Panics if the object is not hosted.
    pub fn get(&self, stream: StreamId, key: u64) -> Option<u64> {
        self.hosted[&stream].state.get(&key).copied()
    }

    /// How often a decision did not come and was made by replay.
    pub fn orphans(&self) -> u64 {
        self.orphans
    }

    /// Plays what was appended before the call to the hosted objects. Errors: those of any call.
    pub async fn sync(&mut self) -> Result<(), ClientError> {
        let upto = self.read().await?;
        self.play(upto).await
    }

    /// Runs a transaction that reads these objects, which it must host, and writes what `body` says; whether it is committed.
    ///
    /// Errors: those of any call; the transaction may be committed then.
    pub async fn transact(
        &mut self,
        reads: &[StreamId],
        body: impl FnOnce(&Self) -> Vec<Write>,
    ) -> Result<bool, ClientError> {
        self.sync().await?;
        let (pos, streams) = self.append(reads, body).await?;
        self.read().await?;
        // Up to its own record, which may be in no stream that it hosts, and no further: what comes after may wait for this decision.
        self.play(LogPos(pos.0 + 1)).await?;
        let outcome = self.own.take().and_then(|(_, outcome)| outcome);
        let is_committed = outcome.expect("everything up to its own record was played");
        if self.is_shared {
            let decision = Record::Decision { pos, is_committed };
            self.client.append_to(&streams, decision.encode()).await?;
        }
        Ok(is_committed)
    }

    /// Appends a commit record of what was played so far: where it stands and in which streams.
    async fn append(
        &mut self,
        reads: &[StreamId],
        body: impl FnOnce(&Self) -> Vec<Write>,
    ) -> Result<(LogPos, Vec<StreamId>), ClientError> {
        let reads = reads.iter().map(|stream| (*stream, self.hosted[stream].version)).collect();
        let commit = Commit { reads, writes: body(self), is_shared: self.is_shared };
        let streams: BTreeSet<StreamId> = commit.writes.iter().map(|write| write.stream).collect();
        let streams: Vec<StreamId> = streams.into_iter().collect();
        let placed = self.client.append_to(&streams, Record::Commit(commit.clone()).encode()).await?;
        self.ahead.insert(placed.pos, commit);
        self.own = Some((placed.pos, None));
        Ok((placed.pos, streams))
    }

    /// Reads what is new of all hosted streams, as of one moment; the log position up to which that is everything.
    async fn read(&mut self) -> Result<LogPos, ClientError> {
        let streams: Vec<StreamId> = self.hosted.keys().copied().collect();
        let tails = self.client.stream_tails(&streams).await?;
        let ends = streams.iter().zip(&tails.streams).filter_map(|(stream, tail)| {
            let (next, last) = (self.hosted[stream].next, tail.last?);
            (last >= next).then_some((*stream, next, LogPos(last.0 + 1)))
        });
        let ends: Vec<(StreamId, LogPos, LogPos)> = ends.collect();
        let client = &self.client;
        let reads = ends.iter().map(async |&(stream, mut next, end)| {
            let mut entries = Vec::new();
            while next < end {
                let part = client.read_stream(stream, next..end, READ_BYTES).await?;
                entries.extend(part.entries);
                next = part.upto;
            }
            Ok::<_, ClientError>(entries)
        });
        let read = gather(reads.collect(), Result::is_err).await;
        for (&(stream, _, end), entries) in ends.iter().zip(read) {
            for entry in entries.unwrap_or(Err(ClientError::Closed))? {
                match Record::decode(&entry.data) {
                    Some(Record::Commit(commit)) if entry.pos >= self.played => {
                        self.ahead.entry(entry.pos).or_insert(commit);
                    }
                    Some(Record::Decision { pos, is_committed }) if pos >= self.played => {
                        self.decided.entry(pos).or_insert(is_committed);
                    }
                    // What was played, or of what was, or no record at all.
                    Some(_) | None => {}
                }
            }
            self.hosted.entry(stream).and_modify(|hosted| hosted.next = end);
        }
        Ok(tails.tail)
    }

    /// Plays records below `upto`, all of which were read.
    async fn play(&mut self, upto: LogPos) -> Result<(), ClientError> {
        while let Some((&pos, commit)) = self.ahead.first_key_value().filter(|(pos, _)| **pos < upto) {
            let is_committed = match self.decide(pos, commit) {
                Some(is_committed) => is_committed,
                None => self.wait_for_decision(pos).await?,
            };
            let commit = self.ahead.remove(&pos).expect("it is waited for in its place");
            self.decided.remove(&pos);
            if self.own == Some((pos, None)) {
                self.own = Some((pos, Some(is_committed)));
            }
            for write in commit.writes.iter().filter(|_| is_committed) {
                if let Some(hosted) = self.hosted.get_mut(&write.stream) {
                    hosted.state.insert(write.key, write.value);
                    hosted.version = LogPos(pos.0 + 1);
                }
            }
        }
        self.played = self.played.max(upto);
        Ok(())
    }

    /// What becomes of the commit at `pos`, below which everything was played; `None` if that cannot be known here.
    fn decide(&self, pos: LogPos, commit: &Commit) -> Option<bool> {
        if let Some(is_committed) = self.decided.get(&pos) {
            return Some(*is_committed);
        }
        let is_hosted = |(stream, _): &(StreamId, LogPos)| self.hosted.contains_key(stream);
        let is_same = |(stream, version): &(StreamId, LogPos)| self.hosted[stream].version == *version;
        commit.reads.iter().all(is_hosted).then(|| commit.reads.iter().all(is_same))
    }

    /// The decision on a commit whose reads are not hosted: read, or made here after a while.
    async fn wait_for_decision(&mut self, pos: LogPos) -> Result<bool, ClientError> {
        let until = self.env.now() + ORPHAN_WAIT;
        while self.env.now() < until {
            if let Some(is_committed) = self.decided.get(&pos) {
                return Ok(*is_committed);
            }
            self.env.sleep(LOOK_AGAIN).await;
            self.read().await?;
        }
        self.orphans += 1;
        let commit = self.ahead.get(&pos).cloned().expect("it is waited for in its place");
        Box::pin(self.decide_by_replay(pos, &commit)).await
    }

    /// Plays the objects that were read up to the commit, from their beginning, and tells all others what that shows.
    async fn decide_by_replay(&self, pos: LogPos, commit: &Commit) -> Result<bool, ClientError> {
        let read = commit.reads.iter().map(|(stream, _)| *stream);
        let mut replay = Self::new(&self.env, self.client.clone(), read, self.is_shared);
        replay.read().await?;
        replay.play(pos).await?;
        let is_committed = replay.decide(pos, commit).expect("all that was read is hosted");
        let streams: BTreeSet<StreamId> = commit.writes.iter().map(|write| write.stream).collect();
        let streams: Vec<StreamId> = streams.into_iter().collect();
        let decision = Record::Decision { pos, is_committed };
        self.client.append_to(&streams, decision.encode()).await?;
        Ok(is_committed)
    }
}
