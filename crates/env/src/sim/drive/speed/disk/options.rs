//! The numbers of a disk. Where each comes from stands in docs/drives.md.

/// The numbers of a disk; the default is one of 10,000 rpm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// One turn of the platters, in nanoseconds.
    pub revolution_ns: u64,
    /// Zones of equal capacity, from the outer tracks inwards; not 0.
    pub zones: u64,
    /// Bytes of a track in the outermost zone.
    pub outer_track_bytes: u64,
    /// Bytes of a track in the innermost zone; between them evenly.
    pub inner_track_bytes: u64,
    /// Tracks of one cylinder: surfaces that the arm reaches without moving.
    pub surfaces: u64,
    /// From one track to the next, of the same cylinder or not, while bytes flow, in nanoseconds. Tracks are laid out
    /// shifted by as much, so that a long transfer never misses a turn.
    pub track_switch_ns: u64,
    /// The shortest movement of the arm, in nanoseconds.
    pub track_to_track_ns: u64,
    /// The longest movement of the arm, in nanoseconds.
    pub full_stroke_ns: u64,
    /// What a write waits longer than a read for the arm to stand still, in nanoseconds.
    pub write_settle_ns: u64,
    /// From the arrival of a request until the arm can start on it, in nanoseconds.
    pub command_ns: u64,
    /// Requests among which the elevator chooses; more wait outside in the order of their arrival. Not 0.
    pub queue_depth: usize,
    /// The link to the host, in bytes a microsecond (MB/s).
    pub link_bytes_per_us: u64,
    /// How far the idle head reads on behind a read, in bytes; 0 for not at all.
    pub read_ahead_bytes: u64,
    /// Bytes that the read buffer holds: the newest that passed under the head.
    pub read_buffer_bytes: u64,
    /// Bytes of volatile writes that the disk takes before they are on the platter; 0 switches the write cache off.
    pub write_cache_bytes: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            revolution_ns: 6_000_000,
            zones: 16,
            outer_track_bytes: 753_664,
            inner_track_bytes: 450_560,
            surfaces: 4,
            track_switch_ns: 250_000,
            track_to_track_ns: 200_000,
            full_stroke_ns: 6_800_000,
            write_settle_ns: 400_000,
            command_ns: 100_000,
            queue_depth: 32,
            link_bytes_per_us: 600,
            read_ahead_bytes: 2 << 20,
            read_buffer_bytes: 8 << 20,
            write_cache_bytes: 0,
        }
    }
}

impl DiskOptions {
    /// Panics if the numbers contradict each other.
    pub(super) fn check(&self) {
        assert!(self.revolution_ns > 0 && self.zones > 0 && self.surfaces > 0, "platters that hold nothing");
        assert!(self.inner_track_bytes > 0, "tracks that hold nothing");
        assert!(self.inner_track_bytes <= self.outer_track_bytes, "inner tracks longer than outer ones");
        assert!(self.track_to_track_ns <= self.full_stroke_ns, "a short movement slower than a long one");
        assert!(self.queue_depth > 0 && self.link_bytes_per_us > 0, "a disk that takes nothing");
        assert!(self.read_ahead_bytes <= self.read_buffer_bytes, "a buffer smaller than what is read ahead");
    }
}
