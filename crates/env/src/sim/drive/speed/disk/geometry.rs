//! Where bytes lie on the platters, and how long it takes to get there. Whole numbers only, so that every machine
//! computes the same.
//!
//! Everything rests on the *passage*: the nanoseconds that a head which starts at byte 0 and never leaves off needs until
//! it stands at a byte. A track takes one turn of it and one switch to the next track. The difference of two passages is
//! how long a transfer takes, and a passage modulo a turn is the angle at which a byte lies; so a transfer that begins
//! where and when another ended waits for nothing.

use crate::Time;

use super::DiskOptions;

/// The seek curve's unit: 2^20 parts of the full stroke.
const STROKE_PARTS: u64 = 1 << 20;

struct Zone {
    track_bytes: u64,
    /// Tracks of the zones before it.
    first_track: u64,
}

pub(super) struct Geometry {
    options: DiskOptions,
    zone_bytes: u64,
    zones: Vec<Zone>,
    cylinders: u64,
    /// The platters' angle at time zero, as nanoseconds of a turn.
    phase_ns: u64,
}

impl Geometry {
    /// Platters that hold `size_bytes` in all: the arm's longest movement spans them, however few they are.
    pub(super) fn new(options: DiskOptions, size_bytes: u64, phase: u64) -> Self {
        let zone_bytes = size_bytes.div_ceil(options.zones).max(1);
        let mut zones = Vec::new();
        let mut tracks = 0;
        for zone in 0..options.zones {
            let shorter = options.outer_track_bytes - options.inner_track_bytes;
            let steps = (options.zones - 1).max(1);
            let track_bytes = options.outer_track_bytes - shorter * zone / steps;
            zones.push(Zone { track_bytes, first_track: tracks });
            tracks += zone_bytes.div_ceil(track_bytes);
        }
        let cylinders = tracks.div_ceil(options.surfaces);
        let phase_ns = phase % options.revolution_ns;
        Self { options, zone_bytes, zones, cylinders, phase_ns }
    }

    /// The zone of a byte, and the byte's place in it. What lies past the end counts to the last zone.
    fn zone(&self, offset: u64) -> (&Zone, u64) {
        let zone = (offset / self.zone_bytes).min(self.options.zones - 1);
        (&self.zones[zone as usize], offset - zone * self.zone_bytes)
    }

    fn track_ns(&self) -> u64 {
        self.options.revolution_ns + self.options.track_switch_ns
    }

    /// The track of a byte, counted from the outside over all surfaces.
    fn track(&self, offset: u64) -> u64 {
        let (zone, at) = self.zone(offset);
        zone.first_track + at / zone.track_bytes
    }

    /// When a head that starts at byte 0 stands at `offset`, in nanoseconds.
    pub(super) fn passage_ns(&self, offset: u64) -> u64 {
        let (zone, at) = self.zone(offset);
        let track = zone.first_track + at / zone.track_bytes;
        track * self.track_ns() + at % zone.track_bytes * self.options.revolution_ns / zone.track_bytes
    }

    /// Where a head that starts at byte 0 stands after `passage_ns`: never past the byte of that passage.
    pub(super) fn offset_at(&self, passage_ns: u64) -> u64 {
        let (track, within_ns) = (passage_ns / self.track_ns(), passage_ns % self.track_ns());
        let number = self.zones.partition_point(|zone| zone.first_track <= track).saturating_sub(1);
        let zone = &self.zones[number];
        let turned_ns = within_ns.min(self.options.revolution_ns);
        let at = turned_ns * zone.track_bytes / self.options.revolution_ns;
        let in_zone = (track - zone.first_track) * zone.track_bytes + at;
        let number = number as u64;
        let is_last = number + 1 == self.options.zones;
        number * self.zone_bytes + if is_last { in_zone } else { in_zone.min(self.zone_bytes) }
    }

    /// From `at` until `offset` comes under a head that is on its track, in nanoseconds.
    pub(super) fn turn_ns(&self, at: Time, offset: u64) -> u64 {
        let revolution_ns = self.options.revolution_ns;
        let angle = self.passage_ns(offset) % revolution_ns;
        let now = (at.0 + self.phase_ns) % revolution_ns;
        (angle + revolution_ns - now) % revolution_ns
    }

    /// How long the arm moves from byte to byte, in nanoseconds: nothing on one track, a switch between surfaces of one
    /// cylinder, else by the distance: two thirds as its root (the arm speeds up and brakes), one third as itself.
    pub(super) fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let (from, to) = (self.track(from), self.track(to));
        if from == to {
            return 0;
        }
        let distance = (from / self.options.surfaces).abs_diff(to / self.options.surfaces);
        if distance == 0 {
            return self.options.track_switch_ns;
        }
        let span = self.cylinders.saturating_sub(2).max(1);
        let part = ((distance - 1) * STROKE_PARTS / span).min(STROKE_PARTS);
        let root = (part * STROKE_PARTS).isqrt();
        let curve = (2 * root + part) / 3;
        let range = self.options.full_stroke_ns - self.options.track_to_track_ns;
        self.options.track_to_track_ns + range * curve / STROKE_PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testbed::scattered;
    use super::*;

    const SIZE: u64 = 4 << 30;

    fn geometry() -> Geometry {
        Geometry::new(DiskOptions::default(), SIZE, 0)
    }

    #[test]
    fn the_place_of_a_passage_is_the_byte_of_it_or_just_before() {
        let geometry = geometry();
        for n in 0..10_000 {
            let offset = scattered(n, SIZE / 4096, 4096);
            let back = geometry.offset_at(geometry.passage_ns(offset));
            assert!(back <= offset && offset - back < 4096, "{offset} comes back as {back}");
        }
    }

    #[test]
    fn a_transfer_that_goes_on_where_another_ended_waits_for_nothing() {
        let geometry = geometry();
        for n in 0..10_000 {
            let offset = scattered(n, SIZE / 4096 - 64, 4096);
            let begin = Time(geometry.turn_ns(Time(n), offset) + n);
            let end = Time(begin.0 + geometry.passage_ns(offset + 65_536) - geometry.passage_ns(offset));
            assert_eq!(geometry.turn_ns(end, offset + 65_536), 0, "after 64 KiB at {offset}");
        }
    }

    #[test]
    fn outer_tracks_carry_more_in_a_turn_than_inner_ones() {
        let geometry = geometry();
        let mb_per_s = |offset| {
            let span_ns = geometry.passage_ns(offset + (32 << 20)) - geometry.passage_ns(offset);
            (32 << 20) * 1000 / span_ns
        };
        let (outer, inner) = (mb_per_s(0), mb_per_s(SIZE - (64 << 20)));
        assert!((119..=121).contains(&outer) && (71..=73).contains(&inner), "{outer} and {inner} MB/s");
    }

    #[test]
    fn seeks_grow_with_the_distance_and_are_3_3_ms_on_average() {
        let geometry = geometry();
        let far: Vec<u64> = (0..16).map(|n| geometry.seek_ns(0, SIZE / 16 * n)).collect();
        assert!(far.is_sorted() && far[0] == 0, "{far:?}");
        assert!((6_700_000..=6_800_000).contains(&geometry.seek_ns(0, SIZE - 4096)));
        let places = |n| scattered(n, SIZE / 4096, 4096);
        let total: u64 = (0..20_000).map(|n| geometry.seek_ns(places(n), places(n + 1))).sum();
        let mean = total / 20_000;
        assert!((3_200_000..=3_400_000).contains(&mean), "{mean} ns");
    }

    #[test]
    fn a_disk_of_a_few_blocks_works_too() {
        let geometry = Geometry::new(DiskOptions::default(), 16 * 4096, 123);
        assert!(geometry.seek_ns(0, 15 * 4096) <= DiskOptions::default().full_stroke_ns);
        assert!(geometry.turn_ns(Time(7), 15 * 4096) < DiskOptions::default().revolution_ns);
    }
}
