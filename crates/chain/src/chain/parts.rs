//! Groups that the sides of a link have not alike, put together on some of them from what each has.

use ithaca_env::drive::Drive;

use super::Inner;
use super::rebuild::{Interrupted, Place};
use crate::recover::{RecordPlace, ScanTarget, ScannedGroup, group_around, put_together};
use crate::sides::{Side, Sides};

/// What came of it.
pub(super) struct PutTogether {
    /// The sides that lacked something that another has.
    pub(super) lacked: Vec<Side>,
    /// The records that none has.
    pub(super) lost: Vec<RecordPlace>,
}

impl Inner {
    /// Gives these sides what any of them or a live one has of a group and they have not, while nobody else writes there. Errors: what was
    /// found when the group was looked for cannot be read any more on any side, or one of these did not answer: that may pass, and nothing
    /// is written; one of these that lacks something takes no writes for now.
    pub(super) async fn put_together(
        &self,
        device: &Sides,
        sides: &[Side],
        place: Place,
        group: &ScannedGroup,
    ) -> Result<PutTogether, Interrupted> {
        if self.is_closing.get() || self.core.borrow().stopped().is_some() {
            return Err(Interrupted::Closing);
        }
        let start = self.core.borrow().geometry.segment_start(place.segment);
        let (offset, len) = (start + u64::from(group.head.identity.offset), group.head.layout.total_bytes());
        let began = self.env.now();
        let claim = device.claim(offset..offset + len as u64).await;
        sides.iter().try_for_each(|side| self.check_place(side, place))?;
        let others = device.live().into_iter().filter(|it| sides.iter().all(|side| side.id != it.id));
        let drives: Vec<Drive> = sides.iter().cloned().chain(others).map(|side| side.drive).collect();
        let unanswered = device.unanswered(sides);
        let together = put_together(&drives, offset, &group.head, &group.area.runs).await?;
        let is_found = |record: &RecordPlace| !group.bad.contains(record);
        let is_gone = !together.has_head || together.lost.iter().any(is_found);
        let has_answered = device.unanswered(sides) == unanswered;
        if let Some(error) = together.unread.filter(|_| is_gone || !has_answered) {
            return Err(error.into());
        }
        let mut lacked = Vec::new();
        for (side, parts) in sides.iter().zip(together.lacking) {
            lacked.extend((!parts.is_empty()).then(|| side.clone()));
            for (at, right) in parts {
                device.mend(side, at, right).await?;
            }
        }
        drop(claim);
        self.rest(began).await;
        Ok(PutTogether { lacked, lost: together.lost })
    }

    /// The same on all live sides of the group that holds this byte of a segment. Where that cannot be done now, a scrub does it.
    pub(crate) async fn put_together_around(&self, segment: u32, lap: u64, byte: u32) {
        let place = Place { segment, lap: Some(lap) };
        if let Err(Interrupted::Drive(error)) = self.put_together_at(place, byte).await {
            tracing::warn!(%error, segment, byte, "a group could not be put together");
        }
    }

    async fn put_together_at(&self, place: Place, byte: u32) -> Result<(), Interrupted> {
        let device = self.device_of(place.segment).ok_or(Interrupted::Recycled)?;
        let (geometry, options) = {
            let core = self.core.borrow();
            (core.geometry, core.options.clone())
        };
        let target = ScanTarget {
            sides: &device.live_drives(),
            geometry,
            chain: self.identity.id,
            segment: place.segment,
            lap: place.lap,
            options: &options,
        };
        let Some(group) = group_around(&target, byte).await? else { return Ok(()) };
        let put = self.put_together(&device, &device.live(), place, &group).await?;
        self.note_put_together(place, &group, &put);
        Ok(())
    }

    /// Counts what was written again.
    pub(super) fn note_put_together(&self, place: Place, group: &ScannedGroup, put: &PutTogether) {
        let start = self.core.borrow().geometry.segment_start(place.segment);
        let offset = start + u64::from(group.head.identity.offset);
        put.lacked.iter().for_each(|side| self.note_repair(side, offset));
    }
}
