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
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_env::task::TaskHandle;

use super::learn_streams::{Learnt, learn};
use super::node::Node;
use super::watch::Watchers;
use crate::client::{Client, ClientError, ClientOptions, Placed};
use crate::layout::{Layout, NodeState};
use crate::limits;
use crate::pos::{Epoch, LogPos, StreamId};
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

/// Chunks of a checkpoint that are appended at the same time: a few megabytes.
const CHUNKS_AT_ONCE: usize = 8;

/// The node's part in streams, for one epoch after the other.
#[derive(Default)]
pub(super) struct StreamKeeper {
    shared: Rc<Shared>,
    task: RefCell<Option<TaskHandle<()>>>,
    watchers: Rc<Watchers>,
}

/// What the task and those who ask share.
#[derive(Default)]
struct Shared {
    /// Somebody needs to know where streams end.
    is_wanted: Cell<bool>,
    latest: Cell<Latest>,
    /// Rings when there may be something to do.
    stirred: Notify,
}

/// The latest checkpoint, for a new one to be due.
#[derive(Clone, Copy, Default)]
struct Latest {
    /// The next position of the log when it was begun.
    from: LogPos,
    /// Positions in streams since then that were learnt of from the log,
    learnt: u64,
    /// and how many this sequencer had granted at that time.
    granted: u64,
}

impl Drop for StreamKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StreamKeeper {
    /// Looks after the streams of the sequencer that `node` has begun with `layout`: checkpoints are made after `checkpoint_every`
    /// positions in streams, or after [`limits::CHECKPOINT_POSITIONS_MAX`] of the log once there are streams.
    pub(super) fn begin(&self, node: &Rc<Node>, layout: &Rc<Layout>, checkpoint_every: u64) {
        self.stop();
        self.shared.is_wanted.set(false);
        let keeping = Keeping {
            env: node.env.clone(),
            node: Rc::downgrade(node),
            layout: Rc::clone(layout),
            shared: Rc::clone(&self.shared),
            client: RefCell::default(),
            checkpoint_every,
        };
        self.task.replace(Some(node.env.spawn(keeping.run())));
    }

    /// Ends what is done for an epoch that is over.
    pub(super) fn stop(&self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        self.watchers.end();
    }

    /// Those who wait for streams to go on.
    pub(super) fn watchers(&self) -> &Rc<Watchers> {
        &self.watchers
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
    /// The node as a client, once it has been one.
    client: RefCell<Option<Client>>,
    checkpoint_every: u64,
}

impl Keeping {
    async fn run(self) {
        if !self.with_sequencer(|sequencer| sequencer.knows_streams()).unwrap_or(true) {
            self.shared.stirred.until(|| self.shared.is_wanted.get().then_some(())).await;
            self.learn().await;
        }
        loop {
            self.shared.stirred.until(|| self.is_due().then_some(())).await;
            let made = match self.make_checkpoint().await {
                // What is left of others does no harm, and goes when the next one is made.
                Ok(before) => self.trim_older(before).await,
                Err(error) => Err(error),
            };
            if let Err(error) = made {
                tracing::info!(epoch = self.layout.epoch.0, %error, "no checkpoint of streams");
                self.env.sleep(CHECKPOINT_RETRY_WAIT).await;
            }
        }
    }

    /// The sequencer of this epoch, if the node has it still.
    fn with_sequencer<T>(&self, then: impl FnOnce(&mut Sequencer) -> T) -> Option<T> {
        let node = self.node.upgrade()?;
        let mut sequencer = node.sequencer.borrow_mut();
        sequencer.as_mut().filter(|sequencer| sequencer.epoch() == self.layout.epoch).map(then)
    }

    /// Learns where streams end and tells the sequencer. Tries until it is done.
    async fn learn(&self) {
        let (began, mut wait) = (self.env.now(), RETRY_MIN);
        loop {
            match self.try_learn().await {
                Ok((known, latest)) => {
                    let took = self.env.now().since(began);
                    tracing::info!(
                        epoch = self.layout.epoch.0,
                        streams = known.len(),
                        from = latest.from.0,
                        entries = latest.learnt,
                        ?took,
                        "streams are known"
                    );
                    self.with_sequencer(|sequencer| sequencer.learn_streams(known));
                    self.shared.latest.set(latest);
                    return;
                }
                Err(error) => {
                    tracing::info!(epoch = self.layout.epoch.0, %error, "streams are not known yet");
                    self.env.sleep(wait).await;
                    wait = (2 * wait).min(RETRY_MAX);
                }
            }
        }
    }

    /// What is known of streams, by the latest checkpoint and the entries since.
    async fn try_learn(&self) -> Result<(KnownStreams, Latest), ClientError> {
        let (client, tail) = (self.client().await?, self.layout.tail());
        client.knows_tail(tail);
        let Learnt { known, from, entries } = learn(&client, self.layout.start()..tail).await?;
        Ok((known.below(tail), Latest { from, learnt: entries, granted: 0 }))
    }

    /// A client of the cluster that fills holes at once: nobody writes in the epoch before any more. It is one of this epoch: a chunk of a
    /// checkpoint that came to the log in a later one would say that streams are known up to positions that others were granted there.
    async fn client(&self) -> Result<Client, ClientError> {
        if let Some(client) = self.client.borrow().as_ref() {
            return Ok(client.clone());
        }
        let serving = self.layout.nodes.iter().filter(|node| node.state != NodeState::Out);
        let endpoints = serving.filter_map(|node| node.address.parse().ok()).collect();
        let options = ClientOptions {
            endpoints,
            timeout: TIMEOUT,
            hole_wait: Duration::ZERO,
            only_epoch: Some(self.layout.epoch),
            is_of_node: true,
            ..ClientOptions::default()
        };
        let client = Client::connect(&self.env, options).await?;
        self.client.replace(Some(client.clone()));
        Ok(client)
    }

    /// Whether it is time for a checkpoint.
    fn is_due(&self) -> bool {
        let epoch = self.layout.epoch;
        let Latest { from, learnt, granted: before } = self.shared.latest.get();
        self.with_sequencer(|sequencer| {
            let (count, granted) = sequencer.count_streams();
            let positions = sequencer.tail(epoch).map_or(0, |tail| tail.0.saturating_sub(from.0));
            let since = learnt + granted.saturating_sub(before);
            let is_much = since >= self.checkpoint_every + count as u64 / 8;
            count > 0 && (is_much || positions >= limits::CHECKPOINT_POSITIONS_MAX)
        })
        .unwrap_or(false)
    }

    /// Makes a checkpoint: the log position that was granted for the stream of checkpoints before its first chunk.
    async fn make_checkpoint(&self) -> Result<Option<LogPos>, ClientError> {
        let client = self.client().await?;
        let chunk_bytes = client.entry_max_bytes();
        let begun = self.with_sequencer(|sequencer| {
            let (_, granted) = sequencer.count_streams();
            let next = sequencer.tail(self.layout.epoch).unwrap_or_default();
            (sequencer.begin_checkpoint(chunk_bytes), granted, next)
        });
        let Some((Some(mut making), granted, from)) = begun else { return Err(ClientError::Closed) };
        let (mut standing, mut under_way) = (Standing::default(), VecDeque::new());
        let mut is_last = false;
        while !is_last || !under_way.is_empty() {
            if !is_last && under_way.len() < CHUNKS_AT_ONCE {
                let chunk = self.with_sequencer(|sequencer| sequencer.next_chunk(&mut making)).flatten();
                let Some(chunk) = chunk else { return Err(ClientError::Closed) };
                under_way.push_back(client.append_to(&[StreamId::SEQUENCER], chunk.encode()));
                is_last = chunk.is_last;
                continue;
            }
            let Some(append) = under_way.pop_front() else { break };
            standing.add(&append.await?)?;
        }
        self.shared.latest.set(Latest { from, learnt: 0, granted: granted + standing.count });
        Ok(standing.before)
    }

    /// Trims every chunk from `before` down: of the checkpoint before, and what a crash has left of any. The lowest goes first, so that below
    /// one that is trimmed there is none.
    async fn trim_older(&self, before: Option<LogPos>) -> Result<(), ClientError> {
        let client = self.client().await?;
        let look_max = 2 * limits::CHECKPOINT_POSITIONS_MAX;
        let older = client.positions_down(StreamId::SEQUENCER, before, look_max).await?;
        for &pos in older.iter().rev() {
            client.trim(pos).await?;
        }
        Ok(())
    }
}

/// Where the chunks of a checkpoint stand that is being made.
#[derive(Default)]
struct Standing {
    /// Nothing of the stream of checkpoints stands between this position and the first of them.
    before: Option<LogPos>,
    last: Option<LogPos>,
    count: u64,
}

impl Standing {
    /// Where the next chunk stands. Errors: `Overtaken`: the one before it stands behind it, because it was refused where it was first to
    /// stand. Nobody would take these chunks for a checkpoint, so older ones must not be trimmed for it.
    fn add(&mut self, placed: &Placed) -> Result<(), ClientError> {
        if let Some(pos) = self.last.replace(placed.pos).filter(|last| *last > placed.pos) {
            return Err(ClientError::Overtaken { pos });
        }
        if self.count == 0 {
            self.before = placed.places.first().and_then(|place| place.end_before().bound());
        }
        self.count += 1;
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::StreamPlace;
    use crate::pos::StreamPos;

    /// What comes of chunks that stand at these positions, each with the one that was granted before it.
    fn standing(chunks: &[(u64, Option<u64>)]) -> Result<Standing, ClientError> {
        let mut standing = Standing::default();
        for (nth, &(pos, previous)) in chunks.iter().enumerate() {
            let (position, previous) = (StreamPos(nth as u64), previous.map(LogPos));
            let place = StreamPlace { stream: StreamId::SEQUENCER, position, previous };
            standing.add(&Placed { pos: LogPos(pos), places: [place].into_iter().collect() })?;
        }
        Ok(standing)
    }

    #[test]
    fn what_is_below_a_checkpoint_is_what_was_granted_before_its_first_chunk() {
        let made = standing(&[(7, Some(3)), (9, Some(7)), (10, Some(9))]).expect("they stand in their order");
        assert_eq!((made.before, made.count), (Some(LogPos(3)), 3));
        let first = standing(&[(7, None), (9, Some(7))]).expect("they stand in their order");
        assert_eq!((first.before, first.count), (None, 2));
    }

    #[test]
    fn a_checkpoint_of_which_a_chunk_was_overtaken_is_not_made() {
        // The one before it would be trimmed, and the next sequencer would learn of no stream that has not gone on since.
        for chunks in [&[(8, Some(3)), (7, Some(3))][..], &[(7, Some(3)), (12, Some(7)), (9, Some(8))]] {
            let made = standing(chunks);
            let overtaken = chunks[chunks.len() - 2].0;
            assert!(
                matches!(made, Err(ClientError::Overtaken { pos: LogPos(pos) }) if pos == overtaken),
                "{chunks:?}"
            );
        }
    }
}
