//! The owner of a volume's chain: carries what the chain tells to the index.
//!
//! The first thing that it is told is the volume's own record; without one, or with one that it cannot read, it keeps everything and
//! knows nothing, and the open is refused.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use ithaca_chain::{Opening, Owner, Place, Placed, RunKind};
use ithaca_env::sync::Notify;

use crate::error::{StateError, VolumeError};
use crate::index::{Found, Index, Packing, Points};
use crate::kept::Kept;
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::options::VolumeSettings;
use crate::planted::Planted;
use crate::state::State;

/// See the module.
pub(crate) struct Blocks {
    /// What a volume that is being created is.
    first: Option<Bytes>,
    known: RefCell<Result<Known, StateError>>,
    /// A record that none of this volume is.
    strange: Cell<Option<Placed>>,
    kept_max_bytes: usize,
    planted: Planted,
    /// Rings when records became durable.
    pub(crate) bell: Notify,
}

struct Known {
    state: State,
    index: Index,
    kept: Kept,
}

impl Blocks {
    /// Of a volume that is being created with this record, or of one that is being opened.
    pub(crate) fn new(first: Option<Bytes>, settings: &VolumeSettings) -> Self {
        Self {
            first,
            known: RefCell::new(Err(StateError::Missing)),
            strange: Cell::new(None),
            kept_max_bytes: settings.kept_max_bytes,
            planted: settings.planted,
            bell: Notify::default(),
        }
    }

    /// Everything that there was to be told has been told. Returns what the volume is.
    pub(crate) fn opened(&self, label: &str) -> Result<State, VolumeError> {
        let mut known = self.known.borrow_mut();
        let known = known
            .as_mut()
            .map_err(|source| VolumeError::NotAVolume { label: label.to_owned(), source: source.clone() })?;
        if let Some(record) = self.strange.get() {
            let blocks = known.state.blocks;
            return Err(VolumeError::StrangeRecord { key: record.key, bytes: record.place.len, blocks });
        }
        known.index.opened();
        Ok(known.state.clone())
    }

    /// What the index says or does. Only once the volume is open.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(&mut Index) -> T) -> T {
        let mut known = self.known.borrow_mut();
        ask(&mut known.as_mut().expect("the volume is open").index)
    }

    /// The same with what is kept in memory.
    pub(crate) fn with_kept<T>(&self, ask: impl FnOnce(&Index, &mut Kept) -> T) -> T {
        let mut known = self.known.borrow_mut();
        let Known { index, kept, .. } = known.as_mut().expect("the volume is open");
        ask(index, kept)
    }

    fn is_of_volume(record: &Placed, blocks: u64) -> bool {
        let is_block = match record.kind {
            RunKind::Junk => true,
            RunKind::Data => {
                let block = VOLUME_BLOCK_BYTES as u32;
                record.place.len == block && record.place.offset.is_multiple_of(block)
            }
        };
        record.key < blocks && is_block
    }

    fn take(&self, known: &mut Known, record: &Placed) -> bool {
        if !Self::is_of_volume(record, known.index.blocks()) {
            self.strange.set(Some(*record));
            return false;
        }
        known.kept.forget(record.key);
        known.index.place(record)
    }
}

impl Owner for Blocks {
    fn first_state(&self) -> Option<Bytes> {
        self.first.clone()
    }

    fn capacity_bytes(&self, state: &Bytes) -> Option<u64> {
        // A state that does not decode is refused later, with its reason.
        State::decode(state).ok().map(|state| state.capacity_bytes)
    }

    fn opening(&self, opening: &Opening) {
        // A chain whose creation was interrupted has no record: it is to have that of the new volume.
        let record = opening.state.as_ref().or(self.first.as_ref());
        let state = record.ok_or(StateError::Missing).and_then(|bytes| State::decode(bytes));
        *self.known.borrow_mut() = state.map(|state| {
            let packing = Packing::new(opening.segment_bytes, opening.link_segments);
            let pins = state.snapshots.values().map(|version| version.0);
            let points = Points::new(state.floor, pins);
            let index = Index::new(state.blocks, packing, points, self.planted);
            let kept = Kept::new(self.kept_max_bytes);
            Known { state, index, kept }
        });
    }

    fn placed(&self, record: Placed) -> Option<Place> {
        let mut garbage = None;
        self.placed_all(&[record], &mut |place| garbage = Some(place));
        garbage
    }

    fn placed_all(&self, records: &[Placed], garbage: &mut dyn FnMut(Place)) {
        if let Ok(known) = self.known.borrow_mut().as_mut() {
            known.index.look_ahead(records);
            for record in records {
                if self.take(known, record) {
                    garbage(record.place);
                }
            }
        }
        self.bell.ring();
    }

    fn is_live(&self, record: Placed) -> bool {
        self.known.borrow().as_ref().map_or(true, |known| known.index.is_live(&record))
    }

    fn newest(&self, key: u64) -> Option<(u32, u32)> {
        let known = self.known.borrow();
        let index = &known.as_ref().ok()?.index;
        let Found::At(packed) = index.now(key) else { return None };
        index.packing().spot(packed).map(|spot| (spot.segment, spot.offset))
    }

    fn moved(&self, record: Placed, to: Place) -> bool {
        self.known.borrow_mut().as_mut().is_ok_and(|known| {
            known.kept.forget(record.key);
            known.index.moved(&record, to)
        })
    }

    fn dropped(&self, record: Placed) -> bool {
        self.known.borrow_mut().as_mut().is_ok_and(|known| known.index.dropped(&record))
    }
}
