//! Chains whose keys are versioned: their owner is told where records lie, and reads them there.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;

use super::{Chain, Inner};
use crate::catalog::Located;
use crate::core::Ticket;
use crate::error::{OpenError, PlaceError};
use crate::format::{HeadView, RunHead};
use crate::links::Drives;
use crate::options::{ChainOptions, Identity};
use crate::owner::{Owner, Place, Placed};
use crate::planted::PlantedBug;
use crate::recover::Recovered;

/// A batch of copies, and where its runs lie once they are durable.
pub(super) struct Copied {
    ticket: Ticket,
    pub(super) runs: Vec<Located>,
}

impl Copied {
    pub(super) fn new(ticket: Ticket) -> Self {
        Self { ticket, runs: Vec::new() }
    }
}

/// The records of a run, each with its place.
pub(super) fn records_of<'a>(
    head: &HeadView<'a>,
    segment: u32,
    lap: u64,
) -> impl Iterator<Item = Placed> + use<'a> {
    head.records(segment, lap)
}

impl Chain {
    /// As [`Chain::create`], of a chain whose keys are versioned; `owner` is told where records lie from now on.
    pub async fn create_owned(
        env: &Env,
        drives: impl Into<Drives>,
        identity: Identity,
        options: ChainOptions,
        owner: Rc<dyn Owner>,
    ) -> Result<Self, OpenError> {
        Self::create_with(env, drives.into(), identity, options, Some(owner)).await
    }

    /// As [`Chain::open`], of a chain whose keys are versioned. Before it returns, and before anything is cleaned, `owner` is
    /// told of every record on the drives with its place. Reads all footers for that.
    ///
    /// Errors: as of [`Chain::open`]; `WrongKeys` if the chain's keys are written once.
    pub async fn open_owned(
        env: &Env,
        drives: impl Into<Drives>,
        expect: Option<&Identity>,
        options: ChainOptions,
        owner: Rc<dyn Owner>,
    ) -> Result<(Self, Recovered), OpenError> {
        Self::open_with(env, drives.into(), expect, options, Some(owner)).await
    }

    /// The data of the record at `place`, verified, without a look at any index. Of a junk record: nothing.
    ///
    /// Errors: `Moved` if the segment is in another use by now: its owner knows the new place, or needs it no more; `Damaged`;
    /// `Drive`.
    pub async fn read_at(&self, place: Place) -> Result<Bytes, PlaceError> {
        let forgets_lap = self.inner.core.borrow().options.planted.is(PlantedBug::ReadAtForgetsLap);
        let is_right = |data: &[u8]| crc32c::crc32c(data) == place.checksum || forgets_lap;
        self.inner.read_verified(place, is_right, true).await
    }
}

impl Inner {
    /// Runs of these batches are durable.
    pub(super) fn tell_owner(
        &self,
        segment: u32,
        lap: u64,
        blob: &Bytes,
        starts: &[u32],
        batches: &[(Ticket, usize)],
    ) {
        let Some(owner) = &self.owner else { return };
        let mut copies = self.copies.borrow_mut();
        let mut written = Vec::with_capacity(starts.len());
        let mut starts = starts.iter();
        for &(ticket, runs) in batches {
            let copied = copies.iter_mut().find(|copied| copied.ticket == ticket);
            let starts = starts.by_ref().take(runs);
            let heads = starts.map(|&at| HeadView::decode(&blob[at as usize..]).expect("encoded here").0);
            match copied {
                Some(copied) => {
                    let located = |head: HeadView<'_>| Located { segment, lap, run: head.to_head(blob) };
                    copied.runs.extend(heads.map(located));
                }
                None => heads.for_each(|head| written.extend(records_of(&head, segment, lap))),
            }
        }
        if !written.is_empty() {
            self.note_written(&**owner, &written);
            self.place_all(&**owner, &mut written);
        }
    }

    /// Copies are durable in a segment of the cleaner's.
    pub(super) fn note_copies(&self, segment: u32, lap: u64, blob: &Bytes, starts: &[u32]) {
        if let Some(copied) = self.copies.borrow_mut().back_mut() {
            let heads = starts.iter().map(|&at| RunHead::decode(blob, at as usize).expect("encoded here").0);
            copied.runs.extend(heads.map(|run| Located { segment, lap, run }));
        }
    }

    /// Tells the owner of these records, but for those that are released: they were in a segment that came back, or will go with the
    /// next one. None is left.
    pub(super) fn place_all(&self, owner: &dyn Owner, records: &mut Vec<Placed>) {
        let mut core = self.core.borrow_mut();
        if !core.catalog.released.is_empty() {
            records.retain(|record| !core.catalog.released.contains(record.key));
        }
        owner.placed_all(records, &mut |garbage| core.note_garbage(garbage.lap, 1));
        records.clear();
    }
}
