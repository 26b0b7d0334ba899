//! What a new sequencer learns of streams from the log, from its end back.
//!
//! ```text
//!   log    …  c0 · · c1 · · · · c2 · · [ · · · · · · · · ][ · · · · ][ · · ] tail
//!            │                └ its last chunk    3rd         2nd      1st window of heads
//!            └ the checkpoint was begun here: heads are looked at down to it, and each once
//! ```
//!
//! The heads say where streams were left by the entries since the latest checkpoint, and where the chunks of that stand; these are then
//! read, several at a time. Nothing is looked up by stream, so it does not matter what units remember. (docs/protocol/streams.md)

use std::collections::BTreeSet;
use std::ops::Range;

use ithaca_env::task::gather;

use crate::client::{Client, ClientError, Entry, StreamEnd};
use crate::limits;
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::sequencer::KnownStreams;
use crate::sequencer::checkpoint::{self, Chunk, Complete};
use crate::stream::StreamTail;

/// Positions of the first window. Each further one is twice as long.
const WINDOW_MIN_COUNT: u64 = 16_384;
/// Bytes of heads that are asked for in one piece.
const HEADS_BYTES: usize = limits::READ_MAX_BYTES;
/// Chunks of one read, and reads at the same time.
const CHUNKS_OF_READ: usize = 4;
const READS_MAX: usize = 8;

/// What is learnt.
pub(super) struct Learnt {
    pub(super) known: KnownStreams,
    /// Where the checkpoint was begun that it builds on; where the log begins if there is none.
    pub(super) from: LogPos,
    /// Positions in streams since.
    pub(super) entries: u64,
}

/// Learns where streams end by what stands at `positions`: from the first one that any layout has still a place for to the decided tail.
pub(super) async fn learn(client: &Client, positions: Range<LogPos>) -> Result<Learnt, ClientError> {
    let Range { start, end } = positions;
    let mut heads = Heads { client, low: end, ends: Vec::new(), chunks: BTreeSet::new(), unseen: None };
    let (mut below, mut window) = (end, WINDOW_MIN_COUNT);
    loop {
        let Some(&last) = heads.chunks.range(..below).next_back() else {
            if heads.low <= start {
                return Ok(heads.learnt(Complete::default(), LogPos(0), start));
            }
            heads.look_down_to(start.max(LogPos(heads.low.0.saturating_sub(window)))).await?;
            window *= 2;
            continue;
        };
        below = last;
        // What is no chunk that this version knows does not count, nor one of an epoch that had ended; and a checkpoint that a crash has
        // ended is not whole.
        let chunk = read_chunks(client, &[last]).await?.pop();
        let Some(chunk) = chunk.filter(|chunk| chunk.is_last && chunk.from <= last) else { continue };
        heads.look_down_to(start.max(chunk.from)).await?;
        let positions: Vec<LogPos> = heads.chunks.range(chunk.from..=last).copied().collect();
        if let Some(complete) = checkpoint::complete(read_chunks(client, &positions).await?, chunk.from) {
            return Ok(heads.learnt(complete, chunk.from, start));
        }
        below = below.min(chunk.from);
    }
}

/// The heads of entries of streams, from the end of the log down to `low`.
struct Heads<'a> {
    client: &'a Client,
    low: LogPos,
    ends: Vec<StreamEnd>,
    /// Where entries of the stream of checkpoints stand.
    chunks: BTreeSet<LogPos>,
    /// The highest position of which nobody can say any more what stood there: it is trimmed, or every replica has lost it.
    unseen: Option<LogPos>,
}

impl Heads<'_> {
    /// Looks at what lies between `low` and where it has looked before.
    async fn look_down_to(&mut self, low: LogPos) -> Result<(), ClientError> {
        let mut next = low;
        while next < self.low {
            let part = match self.client.stream_ends(next..self.low, HEADS_BYTES).await {
                Err(ClientError::Damaged { pos }) if pos == next => {
                    tracing::warn!(
                        pos = pos.0,
                        "what stood there in streams is lost, and all go on behind it"
                    );
                    self.unseen = self.unseen.max(Some(pos));
                    next.0 += 1;
                    continue;
                }
                part => part?,
            };
            let chunks = part.ends.iter().filter(|end| end.stream == StreamId::SEQUENCER);
            self.chunks.extend(chunks.map(|end| end.pos));
            self.ends.extend(part.ends);
            self.unseen = self.unseen.max(part.trimmed);
            next = part.upto;
        }
        self.low = self.low.min(low);
        Ok(())
    }

    /// What follows from these heads and a checkpoint that was begun at `from`; no position below `start` has a place any more.
    fn learnt(self, checkpoint: Complete, from: LogPos, start: LogPos) -> Learnt {
        let Complete { tables, unseen } = checkpoint;
        let since = self.ends.iter().filter(|end| end.pos >= from);
        let since: Vec<(StreamId, StreamTail)> = since
            .map(|end| {
                let next = StreamPos(end.position.0.saturating_add(1));
                (end.stream, StreamTail { next, last: Some(end.pos) })
            })
            .collect();
        let entries = since.len() as u64;
        let mut known = KnownStreams::noted(tables, since);
        known.note_unseen(unseen);
        if from < start {
            known.note_unseen(start);
        }
        if let Some(pos) = self.unseen.filter(|&pos| pos >= from) {
            known.note_unseen(LogPos(pos.0 + 1));
        }
        Learnt { known, from: from.max(start), entries }
    }
}

/// The chunks that stand at these positions, in their order. What is none, is trimmed by now, or is lost on every replica, is left out.
async fn read_chunks(client: &Client, positions: &[LogPos]) -> Result<Vec<Chunk>, ClientError> {
    let mut chunks = Vec::with_capacity(positions.len());
    for some in positions.chunks(CHUNKS_OF_READ * READS_MAX) {
        let reads = some.chunks(CHUNKS_OF_READ).map(|some| read_whole(client, some));
        for entries in gather(reads.collect(), Result::is_err).await.into_iter().flatten() {
            let decode = |entry: &Entry| Chunk::decode(&entry.data).ok();
            chunks.extend(entries?.iter().filter_map(decode));
        }
    }
    Ok(chunks)
}

/// The entries at these positions but for those that are lost on every replica.
async fn read_whole(client: &Client, positions: &[LogPos]) -> Result<Vec<Entry>, ClientError> {
    let mut positions = positions.to_vec();
    loop {
        match client.read_many(&positions).await {
            Err(ClientError::Damaged { pos }) if positions.contains(&pos) => {
                positions.retain(|&it| it != pos)
            }
            read => return read,
        }
    }
}
