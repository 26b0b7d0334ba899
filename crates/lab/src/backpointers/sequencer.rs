//! A sequencer that remembers the last K positions of each stream.
//!
//! Positions are the log's own: they are taken from its sequencer, by one question for all who wait, and given out in order, so that no
//! entry points at one above it. It serves the clients of one process tree and asks over their connections: a grant costs the message
//! that it costs in the text, and no other. (Wei 4.1)

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ithaca_env::Env;
use ithaca_env::sync::oneshot;
use ithaca_log::client::{Client, ClientError, EntryKind};
use ithaca_log::pos::LogPos;

use super::header::{BackStream, Header, POINTERS, decode_entry};

/// The positions that were granted last, of each stream.
#[derive(Debug, Default)]
struct Lasts {
    /// The nearest first, `kept` at the most.
    streams: BTreeMap<BackStream, VecDeque<LogPos>>,
    kept: usize,
}

impl Lasts {
    /// Grants `pos`, which is above everything granted before: the headers of its entry.
    fn grant(&mut self, pos: LogPos, streams: &[BackStream]) -> Vec<Header> {
        let kept = self.kept;
        let header = |&stream: &BackStream| {
            let lasts = self.streams.entry(stream).or_default();
            assert!(lasts.front().is_none_or(|last| *last < pos), "positions are granted in order");
            let previous = lasts.iter().copied().collect();
            lasts.push_front(pos);
            lasts.truncate(kept);
            Header { stream, previous }
        };
        streams.iter().map(header).collect()
    }
}

/// A position, and the headers of the entry that is to be written there.
pub type Granted = (LogPos, Vec<Header>);

type Waiting = (Vec<BackStream>, oneshot::Sender<Result<Granted, ClientError>>);

/// Hands out positions with backpointers. There MUST be one for a log: with two of them a stream would have two chains.
pub struct Sequencer {
    lasts: RefCell<Lasts>,
    waiting: RefCell<Vec<Waiting>>,
    is_asking: Cell<bool>,
}

impl Sequencer {
    /// For a log without streams of this kind. `kept` pointers an entry, at most [`POINTERS`].
    pub fn new(kept: usize) -> Rc<Self> {
        let lasts = Lasts { streams: BTreeMap::new(), kept: kept.clamp(1, POINTERS) };
        Rc::new(Self { lasts: RefCell::new(lasts), waiting: RefCell::default(), is_asking: Cell::default() })
    }

    /// One that takes over: it reads the whole log, because nothing else says how far back the last entry of each stream stands.
    /// Nobody may append meanwhile. Errors: those of reads.
    pub async fn recovered(client: &Client, kept: usize) -> Result<Rc<Self>, ClientError> {
        let sequencer = Self::new(kept);
        let (mut next, tail) = (LogPos(0), client.check().await?.tail);
        while next < tail {
            let entries = client.read_range(next, tail).await?;
            // Where what an epoch has granted was not written, the log ends lower by now.
            let Some(last) = entries.last() else { break };
            next = LogPos(last.pos.0 + 1);
            for entry in entries {
                // What is no entry of streams, or says nothing that can be understood, is in none.
                if entry.kind == EntryKind::Data
                    && let Ok((headers, _)) = decode_entry(entry.pos, &entry.data)
                {
                    let streams: Vec<BackStream> = headers.iter().map(|header| header.stream).collect();
                    sequencer.lasts.borrow_mut().grant(entry.pos, &streams);
                }
            }
        }
        Ok(sequencer)
    }

    /// The next position, for an entry of `streams`. Errors: those of [`Client::tokens`].
    pub async fn grant(
        self: &Rc<Self>,
        env: &Env,
        client: &Client,
        streams: &[BackStream],
    ) -> Result<Granted, ClientError> {
        let (sender, granted) = oneshot::channel();
        self.waiting.borrow_mut().push((streams.to_vec(), sender));
        if !self.is_asking.replace(true) {
            let (sequencer, client, task_env) = (Rc::clone(self), client.clone(), env.clone());
            env.spawn(async move {
                // Whoever is about to ask may join.
                task_env.yield_now().await;
                while sequencer.ask(&client).await {}
                sequencer.is_asking.set(false);
            });
        }
        granted.await.unwrap_or(Err(ClientError::Closed))
    }

    /// Asks the log's sequencer for all who wait. False if nobody does.
    async fn ask(&self, client: &Client) -> bool {
        let served = self.waiting.take();
        if served.is_empty() {
            return false;
        }
        let granted = client.tokens(served.len() as u32).await;
        for (nth, (streams, sender)) in (0..).zip(served) {
            let grant = |first: LogPos| {
                let pos = LogPos(first.0 + nth);
                (pos, self.lasts.borrow_mut().grant(pos, &streams))
            };
            sender.send(granted.as_ref().map(|range| grant(range.start)).map_err(Clone::clone));
        }
        true
    }

    /// The positions that were granted to a stream last, the nearest first; asked of the log's sequencer in one message, above
    /// everything that was acknowledged before.
    pub async fn last(&self, client: &Client, stream: BackStream) -> Result<Vec<LogPos>, ClientError> {
        client.check().await?;
        let lasts = self.lasts.borrow();
        Ok(lasts.streams.get(&stream).map(|lasts| lasts.iter().copied().collect()).unwrap_or_default())
    }
}
