//! A view as bytes, and the view that was made of them.

use std::collections::VecDeque;

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};
use serde::{Deserialize, Serialize};

use super::{Fault, FaultKind, Rewound, View};
use crate::checkpoint::{Begun, Last};
use crate::object::{CallError, Object, digest_of};
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
}

impl<O: Object> View<O> {
    /// The state and all that decides what later records do. A view made of it and the entries from `upto` on is the same
    /// as one made of all entries.
    pub fn checkpoint(&mut self) -> Result<Bytes, Fault> {
        self.state()?;
        let at = match self.covered.back() {
            Some((last, _)) if self.planted.is(PlantedBug::CheckpointLacksLast) => *last,
            _ => self.upto,
        };
        let rewound = Rewound::new(self, at);
        let (view, state) = (&*rewound.view, &rewound.view.state);
        let forgets = view.planted.is(PlantedBug::CheckpointForgetsRequests);
        let head = Head {
            upto: view.upto.0,
            count: view.count,
            bytes: view.bytes,
            requests: if forgets { Requests::default() } else { view.requests.clone() },
            digests: view.digests.iter().map(|&(pos, digest)| (pos.0, digest)).collect(),
            state_digest: state.digest(),
        };
        let encoded = rmp_serde::to_vec_named(&(head, state));
        Ok(encoded.expect("a state that came of MessagePack goes back to it").into())
    }

    /// The view that a checkpoint was made of. Its history begins there.
    pub fn restore(stream: StreamId, checkpoint: &[u8], planted: Planted) -> Result<Self, CallError> {
        let invalid = |error: String| CallError::Arguments { method: "checkpoint", error };
        let (head, mut state): (Head, O) =
            rmp_serde::from_slice(checkpoint).map_err(|error| invalid(error.to_string()))?;
        if state.digest() != head.state_digest {
            return Err(invalid("the state's digest is not the one that it had".to_owned()));
        }
        state.plant(planted);
        let at = Begun { upto: head.upto, count: head.count, bytes: head.bytes };
        Ok(Self {
            state,
            upto: LogPos(head.upto),
            floor: LogPos(head.upto),
            count: head.count,
            bytes: head.bytes,
            requests: head.requests,
            began: Last { at, len: checkpoint.len() as u64 },
            digests: head.digests.into_iter().map(|(pos, digest)| (LogPos(pos), digest)).collect(),
            ..Self::new(stream, planted)
        })
    }

    /// A digest of all that decides what later records do.
    pub fn digest(&self) -> u64 {
        let requests = rmp_serde::to_vec_named(&self.requests).unwrap_or_default();
        digest_of(&[&self.state.digest().to_le_bytes(), &self.count.to_le_bytes(), &requests])
    }

    /// Compares the state as it was below `upto` with that of a checkpoint. One that differs stops the view where it is; what
    /// the view does not go back to is not compared. Gives whether they are the same, as far as that is known.
    pub fn compare_with_checkpoint(&mut self, upto: LogPos, theirs: u64) -> bool {
        let Ok(ours) = self.read_at(upto, &[], |state, _| state.digest()) else { return true };
        if ours != theirs {
            self.stop(self.upto, FaultKind::Diverged { pos: upto, theirs, ours });
        }
        ours == theirs
    }
}
