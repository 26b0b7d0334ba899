//! A reader of one stream: `sync` makes the list of its positions, from its end back; `read_next` reads them in order.
//!
//! From an entry the reader goes to the furthest that it points at: K positions of the list for one read. Where that holds junk, or
//! something that says nothing of the stream, the next nearer one is asked; if none of them says what came before, the log is read from
//! there back, position by position.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use ithaca_log::client::{Client, ClientError, Entry, EntryKind};
use ithaca_log::pos::LogPos;

use super::header::{BackStream, decode_entry};
use super::sequencer::Sequencer;

/// What a reader has asked of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Positions that pointers led to.
    pub pointed: u64,
    /// Positions that were looked at because no pointer led on.
    pub scanned: u64,
}

/// Goes through a stream in order.
pub struct Reader {
    client: Client,
    sequencer: Rc<Sequencer>,
    stream: BackStream,
    /// Positions that are read together, at least one.
    together: usize,
    /// Everything below is in the list, or was given out.
    synced: LogPos,
    /// The list, as far as it was not given out.
    list: VecDeque<LogPos>,
    /// Entries that were read before their turn.
    kept: BTreeMap<LogPos, Entry>,
    reads: Reads,
}

/// What an entry says of a stream: where those before it stand, the nearest first; and its payload.
type Said = (Vec<LogPos>, Bytes);

impl Reader {
    pub(super) fn new(client: Client, sequencer: Rc<Sequencer>, stream: BackStream, together: usize) -> Self {
        let (synced, list, kept) = (LogPos(0), VecDeque::new(), BTreeMap::new());
        let together = together.max(1);
        Self { client, sequencer, stream, together, synced, list, kept, reads: Reads::default() }
    }

    /// What it has asked of the log so far.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// Brings the list up to date: everything that was acknowledged before the call is given by [`read_next`](Self::read_next) from
    /// here on. On an error nothing was added. Errors: those of any call.
    pub async fn sync(&mut self) -> Result<(), ClientError> {
        let lasts = self.sequencer.last(&self.client, self.stream).await?;
        let Some(&last) = lasts.first().filter(|last| **last >= self.synced) else { return Ok(()) };
        let mut found: Vec<LogPos> = Vec::new();
        let mut pointers = lasts;
        loop {
            let is_all = pointers.iter().any(|pos| *pos < self.synced);
            found.extend(pointers.iter().filter(|pos| **pos >= self.synced));
            if is_all || pointers.is_empty() {
                break;
            }
            pointers = self.before(&pointers).await?;
        }
        self.list.extend(found.into_iter().rev());
        self.synced = LogPos(last.0 + 1);
        Ok(())
    }

    /// Where the entries before these stand, the nearest first; none if there are none.
    async fn before(&mut self, pointers: &[LogPos]) -> Result<Vec<LogPos>, ClientError> {
        let furthest = *pointers.last().expect("somewhere to look");
        for &pos in pointers.iter().rev() {
            self.reads.pointed += 1;
            let entry = self.read(pos).await?;
            let Some((previous, _)) = self.said(&entry) else { continue };
            self.kept.insert(pos, entry);
            let further: Vec<LogPos> = previous.iter().copied().filter(|it| *it < furthest).collect();
            // The first entry of a stream says so itself. One that comes after a lost one may only be unable to say more.
            if !further.is_empty() || previous.is_empty() {
                return Ok(further);
            }
        }
        self.scan(furthest).await
    }

    /// The last entry of the stream below a position.
    async fn scan(&mut self, below: LogPos) -> Result<Vec<LogPos>, ClientError> {
        for pos in (self.synced.0..below.0).rev().map(LogPos) {
            self.reads.scanned += 1;
            let entry = self.read(pos).await?;
            if self.said(&entry).is_some() {
                self.kept.insert(pos, entry);
                return Ok(vec![pos]);
            }
        }
        Ok(Vec::new())
    }

    /// The next entry of the list and its position; `None` if all were given. Errors: those of reads.
    pub async fn read_next(&mut self) -> Result<Option<(LogPos, Bytes)>, ClientError> {
        while let Some(&pos) = self.list.front() {
            if !self.kept.contains_key(&pos) {
                self.read_ahead().await?;
            }
            let entry = self.kept.remove(&pos).expect("it was read");
            self.list.pop_front();
            if let Some((_, payload)) = self.said(&entry) {
                return Ok(Some((pos, payload)));
            }
        }
        Ok(None)
    }

    /// Reads the next positions of the list that are not there yet.
    async fn read_ahead(&mut self) -> Result<(), ClientError> {
        let missing = self.list.iter().copied().filter(|pos| !self.kept.contains_key(pos));
        let wanted: Vec<LogPos> = missing.take(self.together).collect();
        self.reads.pointed += wanted.len() as u64;
        match self.client.read_many(&wanted).await {
            Ok(entries) => self.kept.extend(entries.into_iter().map(|entry| (entry.pos, entry))),
            // One of them has to be waited for, or filled.
            Err(ClientError::Unwritten { .. }) => {
                let entry = self.read(wanted[0]).await?;
                self.kept.insert(entry.pos, entry);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What a position holds; a hole is waited for, then filled.
    async fn read(&mut self, pos: LogPos) -> Result<Entry, ClientError> {
        match self.client.read(pos).await {
            Err(ClientError::Unwritten { .. }) => {
                let mut entries = self.client.read_range(pos, LogPos(pos.0 + 1)).await?;
                entries.pop().ok_or(ClientError::Unwritten { pos })
            }
            read => read,
        }
    }

    /// What an entry says of the stream, if it belongs to it.
    fn said(&self, entry: &Entry) -> Option<Said> {
        if entry.kind != EntryKind::Data {
            return None;
        }
        let (headers, payload) = decode_entry(entry.pos, &entry.data).ok()?;
        let header = headers.into_iter().find(|header| header.stream == self.stream)?;
        Some((header.previous, payload))
    }
}
