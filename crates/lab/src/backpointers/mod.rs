//! Streams with backpointers, as the log's first streams were: the baseline that ours are measured against.
//!
//! ```text
//!   log      …  a1  b1  a2  c1  a3  b2  a4  a5   ─► the sequencer knows the last K of a: a5 a4 a3 a2
//!                ◄──────┴───────┴───────┴───┘        each entry has a header for each of its streams: the K before it
//! ```
//!
//! The log knows nothing of it: a header is the first part of an entry's payload. A position has to be known before its entry can be
//! made, so entries are written at the units by themselves, one replica after the other. Holes become junk, which points nowhere: if
//! all that an entry points at is junk, a reader goes back through the log position by position.
//!
//! It promises what the text does: a stream reads back in the order of the log. It does not survive a new layout: calls then fail.
//! (Wei 4.1. Our own streams: docs/protocol/streams.md.)

pub mod header;
pub mod reader;
pub mod sequencer;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::Env;
use ithaca_log::client::{CallError, Client, ClientError, Connection, Identity};
use ithaca_log::entry::EntryMeta;
use ithaca_log::layout::Layout;
use ithaca_log::pos::{LogPos, NodeId, RequestNo};
use ithaca_log::wire::{Head, Write, Written, encode_head};

use header::{BackStream, HeaderError, encode_entry};
use reader::Reader;
use sequencer::Sequencer;

/// A write ends after this time at the latest.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// Why a call on such a stream failed.
#[derive(Debug)]
pub enum BackError {
    /// The log said so.
    Log(ClientError),
    /// A unit could not be reached or refused: the entry stands at that position or nowhere.
    Unit { node: NodeId, pos: LogPos, error: CallError },
    /// Somebody has filled the position first: the entry stands nowhere.
    Taken { pos: LogPos },
    /// An entry of no stream or of too many.
    Header(HeaderError),
}

impl std::fmt::Display for BackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Unit { node, pos, error } => write!(f, "writing position {pos} at node {node}: {error}"),
            Self::Taken { pos } => write!(f, "position {pos} was filled before it was written"),
            Self::Header(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BackError {}

impl From<ClientError> for BackError {
    fn from(error: ClientError) -> Self {
        Self::Log(error)
    }
}

/// A client of streams with backpointers.
pub struct BackClient {
    env: Env,
    client: Client,
    layout: Rc<Layout>,
    sequencer: Rc<Sequencer>,
    connections: RefCell<BTreeMap<NodeId, Connection>>,
    next_request: Cell<u64>,
}

impl BackClient {
    /// A client over one of the log, which appends nothing else. Errors: those of learning the layout.
    pub async fn new(env: &Env, client: Client, sequencer: Rc<Sequencer>) -> Result<Self, BackError> {
        let layout = client.layout().await?;
        let (env, connections, next_request) = (env.clone(), RefCell::default(), Cell::new(1));
        Ok(Self { env, client, layout, sequencer, connections, next_request })
    }

    /// Appends `payload` to streams, all different: on return it is on stable storage on every replica. Errors: `Taken` (it stands
    /// nowhere); `Unit` (it may stand there); others: it was not appended.
    pub async fn append(&self, streams: &[BackStream], payload: &[u8]) -> Result<LogPos, BackError> {
        if !(1..=header::STREAMS_MAX).contains(&streams.len()) {
            return Err(BackError::Header(HeaderError::Streams { found: streams.len() }));
        }
        let (pos, headers) = self.sequencer.grant(&self.env, &self.client, streams).await?;
        self.write(pos, encode_entry(pos, &headers, payload)).await?;
        Ok(pos)
    }

    /// Takes a position for an entry of streams and never writes it: a hole.
    pub async fn lose(&self, streams: &[BackStream]) -> Result<LogPos, BackError> {
        let (pos, _) = self.sequencer.grant(&self.env, &self.client, streams).await?;
        Ok(pos)
    }

    /// A reader of a stream from its beginning on, which reads so many known positions together.
    pub fn reader(&self, stream: BackStream, together: usize) -> Reader {
        Reader::new(self.client.clone(), Rc::clone(&self.sequencer), stream, together)
    }

    /// Writes an entry at each replica of its position, in chain order.
    async fn write(&self, pos: LogPos, entry: Bytes) -> Result<(), BackError> {
        let location = self.layout.locate(pos).expect("a layout has a place for what its sequencer grants");
        let request = RequestNo(self.next_request.replace(self.next_request.get() + 1));
        let meta = EntryMeta::new(self.client.id(), location.addr, request).to_bytes();
        let write = Write { addr: location.addr, meta, table: Table::of_payloads([&entry]) };
        for &node in location.replicas {
            let failed = |error| BackError::Unit { node, pos, error };
            let connection = self.connection(node).await.map_err(failed)?;
            let head = |id| Head::new(id, self.layout.epoch);
            let encode = |id, out: &mut _| encode_head(out, head(id), &write, entry.len());
            let deadline = self.env.now() + WRITE_TIME;
            let data = std::iter::once(entry.clone());
            let answer = connection.call_with::<Written>(&self.env, encode, data, deadline).await;
            if !answer.map_err(failed)?.0.taken.is_empty() {
                return Err(BackError::Taken { pos });
            }
        }
        Ok(())
    }

    async fn connection(&self, node: NodeId) -> Result<Connection, CallError> {
        if let Some(open) = self.connections.borrow().get(&node) {
            return Ok(open.clone());
        }
        let addr = self.layout.node(node).and_then(|node| node.address.parse().ok());
        let addr = addr.expect("members of a simulated cluster have addresses");
        let who = Identity { client: self.client.id(), node, cluster: self.layout.cluster };
        let open = Connection::open(&self.env, addr, who, self.env.now() + WRITE_TIME).await?;
        self.connections.borrow_mut().insert(node, open.clone());
        Ok(open)
    }
}
