//! What keeps calls from being forgotten: pins, which have no end, and leases, which do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits;

/// That somebody needs the states from a position on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The state that reflects every position below this one, and all later ones.
    pub pos: u64,
    /// Until then, in milliseconds of the wall clock; for ever without it.
    pub until_ms: Option<u64>,
}

impl Hold {
    /// Whether it holds at `now_ms` by the clock of whoever asks, which may be ahead of the holder's.
    pub fn is_held(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| now_ms <= until.saturating_add(limits::CLOCKS_APART_MS))
    }
}

/// Why nothing is held.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HoldRefused {
    /// It is forgotten.
    #[error("states below position {earliest} are forgotten")]
    Forgotten {
        /// The earliest that there is.
        earliest: u64,
    },
    /// The name cannot be one.
    #[error("a name of {len} bytes; 1 to {} are allowed", limits::HOLD_NAME_MAX_BYTES)]
    Name {
        /// Its length.
        len: usize,
    },
    /// Too much is held.
    #[error("there are {} pins and leases already", limits::HOLDS_MAX_COUNT)]
    TooMany,
}

/// The one of the lowest position that still holds, with its name.
pub(super) fn lowest(holds: &BTreeMap<String, Hold>, now_ms: u64) -> Option<(&String, &Hold)> {
    holds.iter().filter(|(_, hold)| hold.is_held(now_ms)).min_by_key(|(_, hold)| hold.pos)
}
