//! The numbers of an SSD. Where each comes from stands in docs/drives.md.

/// The numbers of an SSD; the default is a SATA drive of 2012 without power-loss protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdOptions {
    /// Channels, which work at the same time; not 0.
    pub channels: u32,
    /// Pages of an erase block; a page is as large as a block of a drive (4 KiB).
    pub pages_per_block: u32,
    /// Pages that one program operation writes.
    pub pages_per_program: u32,
    /// Flash beyond the drive's size, in percent of it.
    pub spare_percent: u64,
    /// Reading a page into a channel's register, in nanoseconds.
    pub read_ns: u64,
    /// One program operation, in nanoseconds.
    pub program_ns: u64,
    /// Erasing a block, in nanoseconds.
    pub erase_ns: u64,
    /// Between a channel and the controller, in bytes a microsecond (MB/s).
    pub channel_bytes_per_us: u64,
    /// Each direction of the link to the host, likewise.
    pub link_bytes_per_us: u64,
    /// What each request keeps the controller busy, in nanoseconds: 1 s / this is the limit of requests a second.
    pub controller_ns: u64,
    /// What a read waits for the firmware besides, in nanoseconds.
    pub read_firmware_ns: u64,
    /// What every other request waits for it, in nanoseconds.
    pub write_firmware_ns: u64,
    /// Pages that the write buffer holds; not 0.
    pub buffer_pages: u32,
    /// What a sync takes once the write buffer is empty, in nanoseconds.
    pub flush_ns: u64,
}

impl Default for SsdOptions {
    fn default() -> Self {
        Self {
            channels: 8,
            pages_per_block: 256,
            pages_per_program: 4,
            spare_percent: 7,
            read_ns: 20_000,
            program_ns: 300_000,
            erase_ns: 2_000_000,
            channel_bytes_per_us: 400,
            link_bytes_per_us: 550,
            controller_ns: 10_000,
            read_firmware_ns: 150_000,
            write_firmware_ns: 40_000,
            buffer_pages: 64,
            flush_ns: 300_000,
        }
    }
}

impl SsdOptions {
    /// Panics if the numbers contradict each other.
    pub(super) fn check(&self) {
        assert!(self.channels > 0 && self.buffer_pages > 0, "a drive that takes nothing");
        assert!(self.channel_bytes_per_us > 0 && self.link_bytes_per_us > 0, "a link of no bandwidth");
        assert!(self.pages_per_program > 0 && self.pages_per_block > 0, "blocks that hold nothing");
        assert!(
            self.pages_per_block.is_multiple_of(self.pages_per_program),
            "a program operation across two blocks"
        );
    }
}
