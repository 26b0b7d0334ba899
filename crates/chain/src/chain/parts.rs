//! Groups of which no side of a link has all, put together on one of them from what each has.

use ithaca_env::drive::PageBuf;

use super::Inner;
use super::rebuild::{Interrupted, Place};
use crate::recover::{RecordPlace, ScannedGroup, merge, read_image};
use crate::sides::{Side, Sides};

/// What came of it.
pub(super) struct PutTogether {
    /// The side lacked something that another has.
    pub(super) has_differed: bool,
    /// The records that none has.
    pub(super) lost: Vec<RecordPlace>,
}

impl Inner {
    /// Gives a side what the live ones have of a group that it has not, while nobody else writes there. What none has as it was
    /// written stays as the side has it.
    pub(super) async fn put_together(
        &self,
        device: &Sides,
        side: &Side,
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
        self.check_place(side, place)?;
        let mut images = vec![read_image(&side.drive, offset, len).await?];
        for other in device.live().iter().filter(|other| other.id != side.id) {
            images.push(read_image(&other.drive, offset, len).await?);
        }
        let before = images[0].clone();
        let lost = merge(&mut images, &group.head, &group.area.runs);
        let has_differed = images[0] != before;
        if has_differed {
            let mut right = PageBuf::with_capacity(len);
            right.extend(&images[0]);
            self.write_lacking(side, offset, right.freeze()).await?;
        }
        drop(claim);
        self.rest(began).await;
        Ok(PutTogether { has_differed, lost })
    }
}
