//! What became of a transaction, by its id.

use std::rc::Rc;

use ithaca_log::client::ClientError;
use ithaca_log::pos::{LogPos, StreamId};

use super::{Inner, Runtime};
use crate::record::{Record, TxId};

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was committed.
    Committed {
        /// Where its first record stands of those that there are.
        pos: LogPos,
        /// Whether none that was trimmed can have been an earlier one: then this is where it took effect.
        is_first: bool,
    },
    /// It is not among the records that there are; some were trimmed, and it may have been one of them.
    Forgotten {
        /// The highest position that was trimmed.
        upto: LogPos,
    },
    /// It is not there. If its client has ended, and every call on the log that it had under way, it never will be.
    NotFound {
        /// Every position below was looked at.
        upto: LogPos,
    },
}

impl Runtime {
    /// Looks for the transaction `id`, which changed the object of `stream`, at or above `since`: a position that the log had
    /// not reached when the transaction was first tried, 0 for the whole stream. Up to the tail as of this call.
    pub async fn outcome(&self, stream: StreamId, id: TxId, since: LogPos) -> Result<Outcome, ClientError> {
        self.inner.find(stream, id, since).await
    }
}

impl Inner {
    pub(super) async fn find(
        self: &Rc<Self>,
        stream: StreamId,
        id: TxId,
        since: LogPos,
    ) -> Result<Outcome, ClientError> {
        let end = self.tail_of(Some(stream)).await?.tail;
        self.find_below(stream, id, since, end).await
    }

    /// The same up to `end`, where the log ended when it was asked for.
    pub(super) async fn find_below(
        self: &Rc<Self>,
        stream: StreamId,
        id: TxId,
        since: LogPos,
        mut end: LogPos,
    ) -> Result<Outcome, ClientError> {
        let (mut next, mut trimmed, mut asked) = (since, None, 0);
        while next < end {
            let part = self.client.read_stream(stream, next..end, self.options.read_bytes).await?;
            trimmed = part.trimmed.or(trimmed);
            let is_it = |data| Record::decode(data).is_ok_and(|record| record.id == id);
            if let Some(entry) = part.entries.iter().find(|entry| is_it(&entry.data)) {
                return Ok(Outcome::Committed { pos: entry.pos, is_first: trimmed.is_none() });
            }
            if part.upto > next {
                (next, asked) = (part.upto, 0);
            } else {
                end = end.min(self.tail_again(stream, &mut asked).await?.tail);
            }
        }
        if let Some(upto) = trimmed {
            return Ok(Outcome::Forgotten { upto });
        }
        Ok(Outcome::NotFound { upto: end })
    }
}
