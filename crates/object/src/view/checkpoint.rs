//! A view as bytes, and the view that was made of them.

use std::collections::VecDeque;

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};
use serde::{Deserialize, Serialize};

use super::{Rewound, SnapshotError, View, compare};
use crate::checkpoint::{Begun, Last};
use crate::object::{Back, CallError, Object, digest_and_bytes_of, digest_of, dropped};
use crate::planted::{Planted, PlantedBug};
use crate::requests::Requests;

/// What of a view is not its state.
#[derive(Serialize, Deserialize)]
struct Head {
    upto: u64,
    count: u64,
    bytes: u64,
    requests: Requests,
    digests: VecDeque<(u64, u64)>,
    state_digest: u64,
    /// The digest of the state's bytes as they are stored. Older checkpoints have none.
    #[serde(default)]
    state_sum: Option<u64>,
    /// Whether its maker's view compared digests.
    #[serde(default = "yes")]
    compares: bool,
}

fn yes() -> bool {
    true
}

/// What a checkpoint begins with: an array of two.
const ARRAY_OF_TWO: u8 = 0x92;

fn invalid(error: impl ToString) -> CallError {
    CallError::Arguments { method: "checkpoint", error: error.to_string() }
}

/// The head of a checkpoint and the bytes of its state.
fn split(checkpoint: &[u8]) -> Result<(Head, &[u8]), CallError> {
    let Some((&ARRAY_OF_TWO, mut rest)) = checkpoint.split_first() else {
        return Err(invalid("it is no array of two"));
    };
    let head = rmp_serde::from_read(&mut rest).map_err(invalid)?;
    Ok((head, rest))
}

impl<O: Object> View<O> {
    /// The state and all that decides what later records do. A view made of it and the entries from `upto` on is the same
    /// as one made of all entries.
    ///
    /// Errors: `Stopped`; `Call` if the state cannot be encoded, as one that is nested too deep, or if something of it was dropped, which the
    /// checkpoint would lack for everybody.
    pub fn checkpoint(&mut self) -> Result<Bytes, SnapshotError> {
        self.state()?;
        if self.drops() {
            return Err(dropped("checkpoint").into());
        }
        let at = match self.covered.back() {
            Some((last, _)) if self.planted.is(PlantedBug::CheckpointLacksLast) => *last,
            _ => self.upto,
        };
        let rewound = Rewound::new(self, at);
        let (view, state) = (&*rewound.view, &rewound.view.state);
        let forgets = view.planted.is(PlantedBug::CheckpointForgetsRequests);
        let (state_sum, state_bytes) = digest_and_bytes_of(state).unzip();
        let head = Head {
            upto: view.upto.0,
            count: view.count,
            bytes: view.bytes,
            requests: if forgets { Requests::default() } else { view.requests.clone() },
            digests: view.digests.iter().map(|&(pos, digest)| (pos.0, digest)).collect(),
            state_digest: state.digest(),
            state_sum,
            compares: view.compares(),
        };
        // A state is large: memory that grew would take several times as much, each time a page that has to be cleared.
        let head = rmp_serde::to_vec_named(&head).map_err(invalid)?;
        let mut all = Vec::with_capacity(1 + head.len() + state_bytes.unwrap_or(0));
        all.push(ARRAY_OF_TWO);
        all.extend_from_slice(&head);
        rmp_serde::encode::write_named(&mut all, state).map_err(invalid)?;
        Ok(all.into())
    }

    /// The view that a checkpoint was made of. Its history begins there.
    pub fn restore(stream: StreamId, checkpoint: &[u8], planted: Planted) -> Result<Self, CallError> {
        let (head, stored) = split(checkpoint)?;
        if head.state_sum.is_some_and(|sum| sum != digest_of(&[stored])) {
            return Err(invalid("the state's bytes are not those that were stored"));
        }
        let mut state: O = rmp_serde::from_slice(stored).map_err(invalid)?;
        let made = if head.compares { Back::Same } else { Back::Otherwise };
        let back = Back::of(&state, stored).max(made);
        let compares = back == Back::Same;
        if compares && state.digest() != head.state_digest {
            return Err(invalid("the state's digest is not the one that it had"));
        }
        state.plant(planted);
        let empty = Self::new(stream, planted);
        // Those of a maker that went on comparing say nothing to a view that does not, nor do those of another form.
        let is_ours = |(_, digest): &(u64, u64)| compares && compare::is_in(empty.form, *digest);
        let digests = head.digests.into_iter().filter(is_ours);
        let at = Begun { upto: head.upto, count: head.count, bytes: head.bytes };
        Ok(Self {
            state,
            upto: LogPos(head.upto),
            floor: LogPos(head.upto),
            count: head.count,
            bytes: head.bytes,
            requests: head.requests,
            began: Last { at, len: checkpoint.len() as u64 },
            back,
            digests: digests.map(|(pos, digest)| (LogPos(pos), digest)).collect(),
            ..empty
        })
    }

    /// A digest of all that decides what later records do.
    pub fn digest(&self) -> u64 {
        let requests = rmp_serde::to_vec_named(&self.requests).unwrap_or_default();
        digest_of(&[&self.state.digest().to_le_bytes(), &self.count.to_le_bytes(), &requests])
    }
}
