//! The acceptor: decides one layout for each epoch. A pure core.
//!
//! The first proposal for the epoch after the latest one wins; everybody who proposes for an epoch that is decided learns
//! what was decided. An answer waits until the decision is durable. One acceptor alone decides here; what it remembers for
//! each epoch is what a quorum of several needs too.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::Layout;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::Epoch;
use crate::record::{self, RecordError};
use crate::unit::ReplyTo;
use crate::wire::{Kind, Refusal};

const MAGIC: [u8; 4] = *b"ITac";
const VERSION: u16 = 1;

/// Bytes of the record without layouts.
const LIST_BYTES: usize = record::ENVELOPE_BYTES + 4;
/// Bytes before each layout in it.
const LENGTH_BYTES: usize = 4;

/// What happens to an acceptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Somebody proposes a layout.
    Propose {
        /// Who is answered.
        to: ReplyTo,
        /// The layout.
        layout: Layout,
    },
    /// Somebody asks for the layout of an epoch, or for the latest.
    Get {
        /// Who is answered.
        to: ReplyTo,
        /// Which.
        epoch: Option<Epoch>,
    },
    /// The latest [`Effect::Persist`] is durable.
    Persisted,
    /// It could not be stored. Whether it is there after a restart is not known.
    Failed,
}

/// What an acceptor wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Store this record in place of the one before. Never two at a time.
    Persist {
        /// The record.
        record: Bytes,
    },
    /// Answer with a layout that was decided.
    Reply {
        /// Whom.
        to: ReplyTo,
        /// The layout.
        layout: Layout,
    },
    /// Answer with a refusal.
    Refuse {
        /// Whom.
        to: ReplyTo,
        /// Why.
        refusal: Refusal,
    },
}

/// Decides layouts.
#[derive(Clone, Debug, Default)]
pub struct Acceptor {
    /// The latest layouts, in the order of their epochs; the last may not be durable yet.
    decided: VecDeque<Layout>,
    /// Who waits for the last to be durable. Some while it is not.
    waiting: Option<Vec<ReplyTo>>,
    failed: bool,
    planted: Planted,
}

impl Acceptor {
    /// An acceptor that has decided nothing.
    pub fn new(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }

    /// An acceptor with what it had stored.
    pub fn recover(record: &[u8], planted: Planted) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, record)?;
        let mut decoder = Decoder::new(body);
        let count = decoder.u32("layout count")? as usize;
        if count > limits::LAYOUT_HISTORY_MAX_COUNT {
            return Err(DecodeError::Invalid {
                field: "layout count",
                found: count as u64,
                expected: "at most 8 layouts",
            }
            .into());
        }
        let mut decided = VecDeque::new();
        for _ in 0..count {
            decided.push_back(Layout::decode(decoder.counted("layout", limits::LAYOUT_MAX_BYTES)?)?);
        }
        decoder.finish()?;
        Ok(Self { decided, planted, ..Self::default() })
    }

    /// The latest layout that is durable.
    pub fn latest(&self) -> Option<&Layout> {
        self.durable().next_back()
    }

    /// Does what `input` asks for and adds to `effects` what that takes, in order.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Propose { to, .. } if self.failed => {
                effects.push(Effect::Refuse { to, refusal: Refusal::Failed });
            }
            Input::Propose { to, layout } => self.propose(to, layout, effects),
            Input::Get { to, epoch } => {
                let found = match epoch {
                    Some(epoch) => self.durable().find(|layout| layout.epoch == epoch),
                    None => self.latest(),
                };
                let epoch = epoch.unwrap_or_default();
                effects.push(match found {
                    Some(layout) => Effect::Reply { to, layout: layout.clone() },
                    None => Effect::Refuse { to, refusal: Refusal::NoLayout { epoch } },
                });
            }
            Input::Persisted => {
                let layout = self.decided.back().expect("something was stored").clone();
                let waiting = self.waiting.take().expect("a decision was being stored");
                effects.extend(waiting.into_iter().map(|to| Effect::Reply { to, layout: layout.clone() }));
            }
            Input::Failed => {
                self.failed = true;
                // The last layout stays undecided for readers: `waiting` is kept, empty.
                let waiting = self.waiting.as_mut().map(std::mem::take).unwrap_or_default();
                effects.extend(waiting.into_iter().map(|to| Effect::Refuse { to, refusal: Refusal::Failed }));
            }
        }
    }

    fn propose(&mut self, to: ReplyTo, layout: Layout, effects: &mut Vec<Effect>) {
        let last = self.decided.back();
        let malformed = Refusal::Malformed { kind: Kind::Propose as u16 };
        if layout.validate().is_err() || last.is_some_and(|last| last.cluster != layout.cluster) {
            return effects.push(Effect::Refuse { to, refusal: malformed });
        }
        let being_stored = self.waiting.is_some() && last.is_some_and(|last| last.epoch == layout.epoch);
        let twice = self.planted.is(PlantedBug::TwoLayoutsAnEpoch)
            && last.is_some_and(|last| last.epoch == layout.epoch);
        if twice {
            self.decided.pop_back();
        } else if being_stored {
            // Another proposal for this epoch came first.
            self.waiting.get_or_insert_default().push(to);
            return;
        } else if last.is_some_and(|last| layout.epoch <= last.epoch) {
            let decided = self.durable().find(|decided| decided.epoch == layout.epoch);
            let epoch = layout.epoch;
            return effects.push(match decided {
                Some(decided) => Effect::Reply { to, layout: decided.clone() },
                None => Effect::Refuse { to, refusal: Refusal::NoLayout { epoch } },
            });
        } else if self.waiting.is_some() {
            // The epoch before is not durable yet.
            return effects
                .push(Effect::Refuse { to, refusal: Refusal::Overloaded { pending: 1, limit: 1 } });
        } else if last.is_some_and(|last| !last.may_be_followed_by(&layout)) {
            return effects.push(Effect::Refuse { to, refusal: malformed });
        }
        let bytes = LIST_BYTES + LENGTH_BYTES + layout.encode().len();
        if bytes > limits::LAYOUT_MAX_BYTES {
            let (found, limit) = (bytes as u64, limits::LAYOUT_MAX_BYTES as u64);
            return effects.push(Effect::Refuse { to, refusal: Refusal::TooLarge { found, limit } });
        }
        self.decided.push_back(layout);
        self.forget_old();
        self.waiting.get_or_insert_default().push(to);
        if self.planted.is(PlantedBug::LayoutBeforePersist) {
            let layout = self.decided.back().expect("just decided").clone();
            let waiting = self.waiting.as_mut().map(std::mem::take).unwrap_or_default();
            effects.extend(waiting.into_iter().map(|to| Effect::Reply { to, layout: layout.clone() }));
        }
        effects.push(Effect::Persist { record: self.encode() });
    }

    /// Forgets the oldest layouts, so that the record keeps to its limits.
    fn forget_old(&mut self) {
        let too_many = |decided: &VecDeque<Layout>| {
            let layouts = decided.iter().map(|layout| LENGTH_BYTES + layout.encode().len());
            decided.len() > limits::LAYOUT_HISTORY_MAX_COUNT
                || LIST_BYTES + layouts.sum::<usize>() > limits::LAYOUT_MAX_BYTES
        };
        while self.decided.len() > 1 && too_many(&self.decided) {
            self.decided.pop_front();
        }
    }

    /// The layouts that are durable, in order.
    fn durable(&self) -> impl DoubleEndedIterator<Item = &Layout> {
        let undecided = usize::from(self.waiting.is_some());
        self.decided.iter().take(self.decided.len() - undecided)
    }

    /// Body of the record (magic `ITac`, version 1): `layout count u32`, then each layout record behind its `length u32`.
    fn encode(&self) -> Bytes {
        record::encode(MAGIC, VERSION, |out| {
            out.put_u32_le(self.decided.len() as u32);
            self.decided.iter().for_each(|layout| out.counted(&layout.encode()));
        })
    }
}
