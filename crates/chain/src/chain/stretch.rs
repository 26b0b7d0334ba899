//! Reads at places that an owner knows, whole or in part: without a look at any index.

use bytes::Bytes;
use ithaca_env::drive::DriveError;
use ithaca_env::limits::BLOCK_BYTES;

use super::{Chain, Inner};
use crate::error::PlaceError;
use crate::owner::Place;
use crate::planted::PlantedBug;

/// Records of one length that lie one behind the other, as an owner keeps their places that has no room for more: the lap is that
/// of the segment's present use, and of each checksum there may be a part only.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The segment.
    pub segment: u32,
    /// Byte in the segment where the first record begins.
    pub offset: u32,
    /// Bytes of each record, at least one.
    pub record_bytes: u32,
    /// The lowest bits of the crc32c of each record.
    pub checksums: &'a [u32],
    /// How many bits those are, from 1 to 32.
    pub checksum_bits: u32,
}

impl Stretch<'_> {
    fn is_right(&self, data: &[u8]) -> bool {
        let mask = u32::MAX >> (32 - self.checksum_bits.clamp(1, 32));
        let records = data.chunks(self.record_bytes as usize);
        records.zip(self.checksums).all(|(record, checksum)| (crc32c::crc32c(record) ^ checksum) & mask == 0)
    }
}

impl Chain {
    /// The data of all records of a stretch, each verified by what is known of its checksum. The caller needs the records where they
    /// are when it calls; a cache drive is asked only for one whose checksum is known whole.
    ///
    /// Errors: `Moved` if the segment was given up meanwhile: its owner knows the new place; `Damaged` if one of the records is, with
    /// the place of all of them; `Drive`.
    pub async fn read_stretch(&self, stretch: Stretch<'_>) -> Result<Bytes, PlaceError> {
        let lap = self.inner.core.borrow().catalog.lap_of(stretch.segment);
        let whole = stretch.checksum_bits >= 32 && stretch.checksums.len() == 1;
        let place = Place {
            segment: stretch.segment,
            lap: lap.unwrap_or(0),
            offset: stretch.offset,
            len: stretch.record_bytes.saturating_mul(stretch.checksums.len() as u32),
            checksum: stretch.checksums.first().copied().filter(|_| whole).unwrap_or(0),
        };
        if lap.is_none() {
            return Err(PlaceError::Moved { place });
        }
        self.inner.read_verified(place, |data| stretch.is_right(data), whole).await
    }

    /// Counts records by segment that their owner does not need any more, and did not say so when others took their place: those of
    /// old versions. The cleaner goes by it.
    pub fn note_garbage(&self, records: impl IntoIterator<Item = (u32, u64)>) {
        let mut core = self.inner.core.borrow_mut();
        let mut is_any = false;
        for (segment, records) in records {
            if let Some(lap) = core.catalog.lap_of(segment) {
                core.note_garbage(lap, records);
                is_any = true;
            }
        }
        drop(core);
        if is_any {
            self.inner.changed.ring();
        }
    }
}

impl Inner {
    /// What lies at a place, if memory has it: that was verified, or is what was appended.
    pub(super) fn remembered(&self, place: Place) -> Option<Bytes> {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.len));
        let recent = self.tail.borrow().get(place.lap, start, end);
        let lap = self.read_cache_lap(place.segment, place.lap);
        let found = recent.or_else(|| self.read_cache.borrow_mut().get(lap, start, end))?;
        self.reads.add(self.is_on_tail(place.segment), |count| count.memory += 1);
        Some(found)
    }

    /// The bytes at `place` if they are right: from memory, from the cache drive if `may_ask_cache`, or from any side of the link.
    pub(super) async fn read_verified(
        &self,
        place: Place,
        is_right: impl Fn(&[u8]) -> bool,
        may_ask_cache: bool,
    ) -> Result<Bytes, PlaceError> {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.len));
        let forgets_lap = self.core.borrow().options.planted.is(PlantedBug::ReadAtForgetsLap);
        let is_there = || forgets_lap || self.core.borrow().catalog.is_lap(place.segment, place.lap);
        if !is_there() {
            return Err(PlaceError::Moved { place });
        }
        if place.len == 0 {
            return Ok(Bytes::new());
        }
        if let Some(data) = self.remembered(place) {
            return Ok(data);
        }
        let Some(device) = self.device_of(place.segment) else { return Err(PlaceError::Moved { place }) };
        let lap = self.read_cache_lap(place.segment, place.lap);
        let geometry = self.core.borrow().geometry;
        if end > geometry.segment_bytes {
            return Err(PlaceError::Damaged { place });
        }
        if may_ask_cache
            && let Some(data) = self.cached_place(place).await
            && is_right(&data)
        {
            if !is_there() {
                return Err(PlaceError::Moved { place });
            }
            self.read_cache.borrow_mut().add(lap, start, &data);
            return Ok(data);
        }
        let block = BLOCK_BYTES as u64;
        let blocks = start / block * block..end.next_multiple_of(block);
        let mut failed: Option<DriveError> = None;
        for drive in device.in_turn() {
            let offset = geometry.segment_start(place.segment) + blocks.start;
            let read = drive.read(offset, (blocks.end - blocks.start) as usize).await;
            // Whatever was read: in another use of the segment it is something else.
            if !is_there() {
                return Err(PlaceError::Moved { place });
            }
            match read {
                Ok(bytes) => {
                    let from = (start - blocks.start) as usize;
                    let data = bytes.slice(from..from + place.len as usize);
                    if is_right(&data) {
                        if may_ask_cache {
                            self.place_missed(place, &bytes);
                        }
                        self.read_cache.borrow_mut().add(lap, start, &data);
                        return Ok(data);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or(PlaceError::Damaged { place }, PlaceError::Drive))
    }
}
