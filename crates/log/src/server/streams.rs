//! What the node of the sequencer does about streams: it learns where they end, and makes checkpoints.
//!
//! ```text
//!   a request for a position in a stream ─► latest checkpoint ─► entries since it, up to the decided tail ─► sequencer
//!                                                                       every so many grants: a checkpoint ◄───┘
//! ```
//!
//! Nothing is learnt until somebody asks for it: in a log without streams a new sequencer has nothing to look for. Positions without
//! streams are granted meanwhile. (docs/protocol/streams.md)

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_env::task::TaskHandle;

use super::node::Node;
use crate::client::{Client, ClientError, ClientOptions};
use crate::layout::{Layout, NodeState};
use crate::limits;
use crate::pos::{Epoch, LogPos, StreamId};
use crate::sequencer::checkpoint::{self, Chunk};
use crate::sequencer::{KnownStreams, Sequencer};
use crate::stream::StreamTail;
use crate::wire::Refusal;

/// How long each call of the node as a client may take: clients wait for what it learns, and a call that is lost is made again.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The wait before what failed is tried again, at first and at last.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// The wait before a checkpoint that failed is tried again.
const CHECKPOINT_RETRY_WAIT: Duration = Duration::from_millis(500);
/// Bytes of heads that are asked for in one piece.
const HEADS_BYTES: usize = limits::READ_MAX_BYTES;

/// When checkpoints are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointOptions {
    /// After so many positions in streams.
    pub(super) every_count: u64,
    /// After so many positions of the log, once there are streams.
    pub(super) positions_max: u64,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { every_count: limits::CHECKPOINT_EVERY_COUNT, positions_max: limits::CHECKPOINT_POSITIONS_MAX }
    }
}

/// The node's part in streams, for one epoch after the other.
#[derive(Default)]
pub(super) struct StreamKeeper {
    shared: Rc<Shared>,
    task: RefCell<Option<TaskHandle<()>>>,
}

/// What the task and those who ask share.
#[derive(Default)]
struct Shared {
    /// Somebody needs to know where streams end.
    is_wanted: Cell<bool>,
    /// As of the latest checkpoint: positions in streams that were granted, and the next position of the log.
    at_checkpoint: Cell<(u64, LogPos)>,
    /// Rings when there may be something to do.
    stirred: Notify,
}

impl Drop for StreamKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StreamKeeper {
    /// Looks after the streams of the sequencer that `node` has begun with `layout`.
    pub(super) fn begin(&self, node: &Rc<Node>, layout: &Rc<Layout>, options: CheckpointOptions) {
        self.stop();
        self.shared.is_wanted.set(false);
        let keeping = Keeping {
            env: node.env.clone(),
            node: Rc::downgrade(node),
            layout: Rc::clone(layout),
            shared: Rc::clone(&self.shared),
            options,
        };
        self.task.replace(Some(node.env.spawn(keeping.run())));
    }

    /// Ends what is done for an epoch that is over.
    pub(super) fn stop(&self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Somebody was refused because the sequencer does not know of streams.
    pub(super) fn want(&self) {
        if !self.shared.is_wanted.replace(true) {
            self.shared.stirred.ring();
        }
    }

    /// The sequencer has granted positions: perhaps it is time for a checkpoint.
    pub(super) fn granted(&self) {
        self.shared.stirred.ring();
    }
}

/// One epoch of it.
struct Keeping {
    env: Env,
    node: Weak<Node>,
    layout: Rc<Layout>,
    shared: Rc<Shared>,
    options: CheckpointOptions,
}

impl Keeping {
    async fn run(self) {
        let mut chunks = Vec::new();
        if !self.with_sequencer(|sequencer| sequencer.knows_streams()).unwrap_or(true) {
            self.shared.stirred.until(|| self.shared.is_wanted.get().then_some(())).await;
            chunks = self.learn().await;
        }
        loop {
            self.shared.stirred.until(|| self.is_due().then_some(())).await;
            match self.make_checkpoint(&chunks).await {
                Ok(made) => chunks = made,
                Err(error) => {
                    tracing::info!(epoch = self.layout.epoch.0, %error, "no checkpoint of streams");
                    self.env.sleep(CHECKPOINT_RETRY_WAIT).await;
                }
            }
        }
    }

    /// The sequencer of this epoch, if the node has it still.
    fn with_sequencer<T>(&self, then: impl FnOnce(&mut Sequencer) -> T) -> Option<T> {
        let node = self.node.upgrade()?;
        let mut sequencer = node.sequencer.borrow_mut();
        sequencer.as_mut().filter(|sequencer| sequencer.epoch() == self.layout.epoch).map(then)
    }

    /// Learns where streams end and tells the sequencer. Tries until it is done. Where the latest checkpoint stands.
    async fn learn(&self) -> Vec<LogPos> {
        let (began, mut wait) = (self.env.now(), RETRY_MIN);
        loop {
            match self.try_learn().await {
                Ok((known, from, chunks)) => {
                    let took = self.env.now().since(began);
                    tracing::info!(
                        epoch = self.layout.epoch.0,
                        streams = known.len(),
                        from = from.0,
                        ?took,
                        "streams are known"
                    );
                    self.with_sequencer(|sequencer| sequencer.learn_streams(known));
                    self.shared.at_checkpoint.set((0, from));
                    return chunks;
                }
                Err(error) => {
                    tracing::info!(epoch = self.layout.epoch.0, %error, "streams are not known yet");
                    self.env.sleep(wait).await;
                    wait = (2 * wait).min(RETRY_MAX);
                }
            }
        }
    }

    /// What is known of streams, from where on entries were looked at, and where the chunks of the checkpoint before stand.
    async fn try_learn(&self) -> Result<(KnownStreams, LogPos, Vec<LogPos>), ClientError> {
        let (client, tail) = (self.client().await?, self.layout.tail());
        client.knows_tail(tail);
        let (mut known, mut from, chunks) = latest_checkpoint(&client, tail).await?;
        if from < self.layout.start() {
            known.note_unseen(self.layout.start());
            from = self.layout.start();
        }
        let mut next = from;
        while next < tail {
            let part = client.stream_heads(next..tail, HEADS_BYTES).await?;
            for entry in &part.entries {
                entry.streams.iter().for_each(|place| known.note(place, entry.pos));
            }
            if let Some(trimmed) = part.trimmed {
                known.note_unseen(LogPos(trimmed.0 + 1));
            }
            next = part.upto;
        }
        Ok((known.below(tail), from, chunks))
    }

    /// A client of the cluster that fills holes at once: nobody writes in the epoch before any more.
    async fn client(&self) -> Result<Client, ClientError> {
        let serving = self.layout.nodes.iter().filter(|node| node.state != NodeState::Out);
        let endpoints = serving.filter_map(|node| node.address.parse().ok()).collect();
        let options = ClientOptions {
            endpoints,
            timeout: TIMEOUT,
            hole_wait: Duration::ZERO,
            ..ClientOptions::default()
        };
        Client::connect(&self.env, options).await
    }

    /// Whether it is time for a checkpoint.
    fn is_due(&self) -> bool {
        let epoch = self.layout.epoch;
        let (before, from) = self.shared.at_checkpoint.get();
        self.with_sequencer(|sequencer| {
            let (count, granted) = sequencer.count_streams();
            let positions = sequencer.tail(epoch).map_or(0, |tail| tail.0.saturating_sub(from.0));
            let is_much = granted.saturating_sub(before) >= self.options.every_count + count as u64 / 8;
            count > 0 && (is_much || positions >= self.options.positions_max)
        })
        .unwrap_or(false)
    }

    /// Makes a checkpoint, and trims the one before, whose chunks stand at `before`, once it is there. Where its own chunks stand.
    async fn make_checkpoint(&self, before: &[LogPos]) -> Result<Vec<LogPos>, ClientError> {
        let client = self.client().await?;
        let chunk_bytes = client.entry_max_bytes();
        let begun = self.with_sequencer(|sequencer| {
            let (_, granted) = sequencer.count_streams();
            let next = sequencer.tail(self.layout.epoch).unwrap_or_default();
            (sequencer.begin_checkpoint(chunk_bytes), granted, next)
        });
        let Some((Some(mut making), granted, next)) = begun else { return Err(ClientError::Closed) };
        let mut chunks = Vec::new();
        loop {
            let chunk = self.with_sequencer(|sequencer| sequencer.next_chunk(&mut making)).flatten();
            let Some(chunk) = chunk else { return Err(ClientError::Closed) };
            let placed = client.append_to(&[StreamId::SEQUENCER], chunk.encode()).await?;
            chunks.push(placed.pos);
            if chunk.is_last {
                break;
            }
        }
        self.shared.at_checkpoint.set((granted + chunks.len() as u64, next));
        for &pos in before {
            client.trim(pos).await?;
        }
        Ok(chunks)
    }
}

/// The latest checkpoint below `tail` that is whole: what it says, the position at which it was begun, and where its chunks stand. If there
/// is none, nothing, from the beginning on.
async fn latest_checkpoint(
    client: &Client,
    tail: LogPos,
) -> Result<(KnownStreams, LogPos, Vec<LogPos>), ClientError> {
    let mut below = tail;
    while let Some(last) = client.last_before(StreamId::SEQUENCER, below).await? {
        below = last.pos;
        // What is no chunk that this version knows does not count.
        let Ok(Chunk { from, .. }) = Chunk::decode(&last.data) else { continue };
        let (mut chunks, mut positions, mut next) = (Vec::new(), Vec::new(), from);
        while next <= last.pos {
            let part =
                client.read_stream(StreamId::SEQUENCER, next..LogPos(last.pos.0 + 1), HEADS_BYTES).await?;
            for entry in &part.entries {
                if let Ok(chunk) = Chunk::decode(&entry.data) {
                    chunks.push(chunk);
                    positions.push(entry.pos);
                }
            }
            next = part.upto;
        }
        if let Some(known) = checkpoint::complete(&chunks, from) {
            return Ok((known, from, positions));
        }
        below = from.min(last.pos);
    }
    Ok((KnownStreams::default(), LogPos(0), Vec::new()))
}

impl Node {
    /// Where streams end, of a sequencer that is asked for them.
    pub(super) fn stream_tails(
        &self,
        epoch: Epoch,
        streams: &[StreamId],
    ) -> Result<Vec<StreamTail>, Refusal> {
        let tails = match self.sequencer.borrow().as_ref() {
            Some(sequencer) if !streams.is_empty() => sequencer.stream_tails(epoch, streams),
            _ => Ok(Vec::new()),
        };
        self.look_after_streams(&tails);
        tails
    }

    /// Has the node learn where streams end, if `answer` says that it should know.
    pub(super) fn look_after_streams<T>(&self, answer: &Result<T, Refusal>) {
        match answer {
            Err(Refusal::StreamsUnknown) => self.streams.want(),
            Err(_) => {}
            Ok(_) => self.streams.granted(),
        }
    }
}
