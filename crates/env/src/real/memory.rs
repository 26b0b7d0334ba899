//! Memory files (`memfd_create`), mapped; and how the system holds tables.
//!
//! A page that is not there when it is touched ends the process (SIGBUS). So memory that comes from another process is taken only if
//! it cannot be made shorter, which seals say, for ever; if all of its pages are there; and if they are ordinary ones, of which the system
//! never runs out without ending somebody for it. What is left are the cases in which any memory ends a process, such as a page that cannot
//! be read back from swap.

use std::ptr::NonNull;

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::drive::PageBuf;
use crate::limits::BLOCK_BYTES;
use crate::memory::{MemoryError, check_size};

/// What the system calls the kind of file that has ordinary pages of memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Bytes that a block of a file's size stands for.
const STAT_BLOCK_BYTES: u64 = 512;
/// What the size must be safe from.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Has the system hold the whole pages among `bytes` from `start` on in large ones, as far as it has such.
#[expect(unsafe_code, reason = "no safe library advises of memory")]
pub(crate) fn prefer_large_pages(start: *const u8, bytes: usize) {
    let before = start.align_offset(BLOCK_BYTES);
    let Some(whole) = bytes.checked_sub(before).map(|left| left - left % BLOCK_BYTES) else { return };
    // SAFETY: whosever these pages are, what is in them stays as it is. An error says that the system goes on as before.
    let _ = unsafe {
        rustix::mm::madvise(start.wrapping_add(before).cast_mut().cast(), whole, Advice::LinuxHugepage)
    };
}

/// Memory of this process that others may have too.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> MemoryError {
    move |error| MemoryError::System { operation, message: error.to_string() }
}

impl Mapping {
    /// Memory of so many bytes, all 0, and what stands for it. Nobody can change its size.
    pub(crate) fn create(bytes: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ithaca", flags).map_err(failed("make a memory file"))?;
        let len = check_size(bytes as u64, usize::MAX)?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(failed("set the size of memory"))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(failed("take memory"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL).map_err(failed("seal memory"))?;
        Ok((Self::map(&fd, len)?, fd))
    }

    /// See [`MemoryHandle::open`](crate::memory::MemoryHandle::open).
    pub(crate) fn open(fd: OwnedFd, max_bytes: usize) -> Result<Self, MemoryError> {
        // Other files have no seals. Of a file in a file system of memory they say that nothing can be sealed.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| MemoryError::NotMemory)?;
        let kind = rustix::fs::fstatfs(&fd).map_err(failed("look at memory"))?.f_type;
        if u64::try_from(kind) != Ok(TMPFS_MAGIC) {
            return Err(MemoryError::NotMemory);
        }
        if !seals.contains(SEALS) {
            return Err(MemoryError::Unsealed);
        }
        let stat = rustix::fs::fstat(&fd).map_err(failed("look at memory"))?;
        let expected = u64::try_from(stat.st_size).unwrap_or(0);
        let len = check_size(expected, max_bytes)?;
        let found = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES);
        if found < expected {
            return Err(MemoryError::Holes { found, expected });
        }
        Self::map(&fd, len)
    }

    #[expect(unsafe_code, reason = "no safe library maps a file")]
    fn map(fd: &OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses where, so that nothing that is there is replaced.
        let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
        let start = NonNull::new(mapped.map_err(failed("map memory"))?.cast());
        Ok(Self { start: start.expect("the system maps nothing at 0"), len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Asserts that so many bytes are there.
    fn check(&self, at: usize, len: usize) {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {at} of {}", self.len);
    }

    #[expect(unsafe_code, reason = "other processes may write there, so that there can be no slice of it")]
    pub(crate) fn copy_out(&self, at: usize, len: usize) -> Bytes {
        self.check(at, len);
        let mut copy = PageBuf::with_capacity(len);
        let room = copy.spare();
        assert!(len <= room.len(), "there is room for {len} bytes");
        // SAFETY: the bytes are within what is mapped, which `check` asserts and which stays while `self` lives; the copy has room for
        // them, and they are its first ones after. No reference to what is mapped is made: any byte is one, whoever has written it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), room.as_mut_ptr().cast(), len);
            copy.advance(len);
        }
        copy.freeze().slice(..len)
    }

    #[expect(unsafe_code, reason = "other processes may read there, so that there can be no slice of it")]
    pub(crate) fn copy_in(&self, at: usize, data: &[u8]) {
        self.check(at, data.len());
        // SAFETY: the bytes are within what is mapped, which `check` asserts and which stays while `self` lives. Nobody has a reference
        // to what is mapped, so `data` lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.as_ptr().add(at), data.len()) }
    }
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "gives back what `map` has mapped")]
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, nothing refers to it, and nobody uses it after.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::PageBuf;

    const PAGE: usize = crate::limits::BLOCK_BYTES;

    /// A memory file of two pages with these seals.
    fn file(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).expect("memory");
        rustix::fs::ftruncate(&fd, 2 * PAGE as u64).expect("any size");
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 2 * PAGE as u64).expect("room");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("not sealed yet");
        fd
    }

    fn refused(fd: OwnedFd, max: usize) -> MemoryError {
        Mapping::open(fd, max).err().expect("not to be taken")
    }

    #[test]
    fn what_one_side_puts_there_the_other_side_takes() {
        let (one, fd) = Mapping::create(3 * PAGE).expect("memory");
        let other = Mapping::open(fd, 3 * PAGE).expect("sealed memory");
        one.copy_in(PAGE - 2, b"across");
        assert_eq!(&other.copy_out(PAGE - 3, 8)[..], b"\0across\0");
        other.copy_in(3 * PAGE - 1, b"x");
        drop(other);
        assert_eq!(&one.copy_out(3 * PAGE - 1, 1)[..], b"x", "what one has outlives the other's");
        assert_eq!(one.len(), 3 * PAGE);
    }

    #[test]
    fn a_table_in_large_pages_has_the_same_values_and_the_system_is_told() {
        for count in [0, 1, 511, 1024, 1 << 20] {
            let table = vec![3_u64; count];
            prefer_large_pages(table.as_ptr().cast(), size_of_val(&table[..]));
            assert!(table.len() == count && table.iter().all(|value| *value == 3), "{count}");
            if count < 1 << 20 || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
                continue;
            }
            let middle = &raw const table[count / 2] as usize;
            let maps = std::fs::read_to_string("/proc/self/smaps").expect("the system says what there is");
            let mut is_told = None;
            let mut is_here = false;
            for line in maps.lines() {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let bound = |text| usize::from_str_radix(text, 16);
                if let Some((Ok(start), Ok(end))) = range.map(|(start, end)| (bound(start), bound(end))) {
                    is_here = (start..end).contains(&middle);
                } else if is_here && let Some(flags) = line.strip_prefix("VmFlags:") {
                    is_told = Some(flags.split_whitespace().any(|flag| flag == "hg"));
                }
            }
            assert_eq!(is_told, Some(true));
        }
    }

    #[test]
    fn buffers_that_share_a_large_page_share_no_byte_and_outlive_each_other() {
        for kib in [256, 300, 512, 828, 1024] {
            let buffer = |value: u8| {
                let mut buf = PageBuf::zeroed(kib << 10);
                buf.as_mut_slice().fill(value);
                buf
            };
            let mut buffers: Vec<(u8, PageBuf)> = (0..40).map(|value| (value, buffer(value))).collect();
            // Some are given back by another thread, whose pool ends with it.
            let others = buffers.split_off(30);
            std::thread::Builder::new()
                .spawn(move || drop(others))
                .expect("a thread")
                .join()
                .expect("it ends");
            for next in 40..80 {
                drop(buffers.swap_remove(7));
                buffers.push((next, buffer(next)));
            }
            for (value, buf) in &buffers {
                assert!(buf.as_slice().iter().all(|byte| byte == value), "{kib} KiB, {value}");
                assert_eq!(buf.as_slice().as_ptr() as usize % BLOCK_BYTES, 0);
            }
        }
    }

    #[test]
    fn what_could_be_taken_away_is_refused() {
        let none = MemfdFlags::empty();
        assert_eq!(refused(file(none, SealFlags::empty()), 2 * PAGE), MemoryError::Unsealed);
        assert_eq!(refused(file(none, SealFlags::GROW), 2 * PAGE), MemoryError::Unsealed);
        assert_eq!(refused(file(none, SealFlags::SHRINK), 2 * PAGE), MemoryError::Unsealed);
        let holes = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::ftruncate(&holes, 2 * PAGE as u64).expect("any size");
        rustix::fs::fcntl_add_seals(&holes, SEALS).expect("not sealed yet");
        let expected = 2 * PAGE as u64;
        assert_eq!(refused(holes, 2 * PAGE), MemoryError::Holes { found: 0, expected });
    }

    #[test]
    fn what_is_no_memory_or_of_another_size_is_refused() {
        let (pipe, _) = std::io::pipe().expect("a pipe");
        assert_eq!(refused(pipe.into(), PAGE), MemoryError::NotMemory);
        // Where the system has huge pages at all.
        if let Ok(huge) = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB) {
            rustix::fs::fcntl_add_seals(&huge, SEALS).expect("not sealed yet");
            assert_eq!(refused(huge, PAGE), MemoryError::NotMemory);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE;
        let path = dir.path().join("file");
        let ordinary = rustix::fs::open(path, flags, rustix::fs::Mode::RWXU).expect("a file");
        rustix::fs::ftruncate(&ordinary, PAGE as u64).expect("any size");
        let said = refused(ordinary, PAGE);
        assert!(matches!(said, MemoryError::NotMemory | MemoryError::Unsealed), "{said}");
        let size = |found| MemoryError::Size { found, page: PAGE, max: PAGE };
        assert_eq!(refused(file(MemfdFlags::empty(), SEALS), PAGE), size(2 * PAGE as u64));
        let empty = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::fcntl_add_seals(&empty, SEALS).expect("not sealed yet");
        assert_eq!(refused(empty, PAGE), size(0));
        let odd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::ftruncate(&odd, 100).expect("any size");
        rustix::fs::fcntl_add_seals(&odd, SEALS).expect("not sealed yet");
        assert_eq!(refused(odd, PAGE), size(100));
        assert!(matches!(Mapping::create(100).err(), Some(MemoryError::Size { .. })));
    }

    #[test]
    fn what_nobody_else_may_write_to_is_refused() {
        let sealed = file(MemfdFlags::empty(), SEALS | SealFlags::WRITE);
        let said = refused(sealed, 2 * PAGE);
        assert!(matches!(said, MemoryError::System { operation: "map memory", .. }), "{said}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of 4096")]
    fn what_is_not_there_is_not_read() {
        let (memory, _) = Mapping::create(PAGE).expect("memory");
        memory.copy_out(PAGE - 1, 2);
    }
}
