//! A growable buffer whose bytes begin on a block boundary, as `O_DIRECT` wants them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use crate::limits::BLOCK_BYTES;
use crate::real::prefer_large_pages;

/// Freed memory that one thread keeps for its next buffers, in bytes. A large buffer from the system costs a page
/// fault for every 4 KiB, which is more than filling it.
const POOL_MAX_BYTES: usize = 32 << 20;
/// Buffers of up to so many pages are kept by their exact size: reads of the drive need many, all alike, and the allocator
/// splits and joins its memory for each.
const SMALL_MAX_PAGES: usize = 8;
/// Larger buffers than those, up to this size, are left to the allocator.
const LARGE_MIN_BYTES: usize = 64 << 10;
/// Bytes of a large page: to pin a buffer for a drive the system looks up one where it would look up 512, and the drive is told of one piece.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Buffers of these sizes are parts of a large page, each of the same size.
const PART_BYTES: RangeInclusive<usize> = LARGE_PAGE_BYTES / 8..=LARGE_PAGE_BYTES / 2;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::new()) };
}

struct Pool {
    /// By their pages, one at index 0.
    small: [Vec<Memory>; SMALL_MAX_PAGES],
    /// The one that was given back last at the end.
    large: Vec<Memory>,
    bytes: usize,
}

impl Pool {
    const fn new() -> Self {
        Self { small: [const { Vec::new() }; SMALL_MAX_PAGES], large: Vec::new(), bytes: 0 }
    }

    /// Where buffers of so many bytes are kept, if they are.
    fn shelf(&mut self, bytes: usize) -> Option<&mut Vec<Memory>> {
        match bytes / BLOCK_BYTES {
            pages @ 1..=SMALL_MAX_PAGES => Some(&mut self.small[pages - 1]),
            _ => (bytes >= LARGE_MIN_BYTES).then_some(&mut self.large),
        }
    }

    fn take(&mut self, wanted: usize) -> Option<Memory> {
        let shelf = self.shelf(wanted)?;
        let fits = |memory: &Memory| memory.capacity >= wanted && memory.capacity <= wanted + wanted / 4;
        let memory = shelf.iter().rposition(fits).map(|found| shelf.remove(found))?;
        self.bytes -= memory.capacity;
        Some(memory)
    }

    /// Keeps the memory, or gives it back if it is of a size that is not kept. Large ones make room for it, the one first that was not used for
    /// longest: else a pool of sizes that nobody needs any more would serve nobody.
    fn put(&mut self, memory: Memory) -> Option<Memory> {
        let capacity = memory.capacity;
        if capacity > POOL_MAX_BYTES || self.shelf(capacity).is_none() {
            return Some(memory);
        }
        while self.bytes + capacity > POOL_MAX_BYTES && !self.large.is_empty() {
            self.bytes -= self.large.remove(0).capacity;
        }
        let is_full = self.bytes + capacity > POOL_MAX_BYTES;
        match self.shelf(capacity) {
            Some(shelf) if !is_full => shelf.push(memory),
            _ => return Some(memory),
        }
        self.bytes += capacity;
        None
    }
}

/// Whole pages, aligned to a page: an allocation, or a part of one.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
    /// The large page that it is a part of.
    whole: Option<Arc<Memory>>,
}

#[expect(unsafe_code, reason = "a plain memory block, owned and not shared until it is frozen")]
// SAFETY: an allocation or a part is owned by one buffer alone, and plain bytes may be used from any thread.
unsafe impl Send for Memory {}

#[expect(unsafe_code, reason = "shared references only read")]
// SAFETY: through `&Memory` and `&PageBuf` the bytes can only be read.
unsafe impl Sync for Memory {}

/// Of an allocation.
fn layout_of(capacity: usize) -> Layout {
    let align = if capacity < LARGE_PAGE_BYTES { BLOCK_BYTES } else { LARGE_PAGE_BYTES };
    Layout::from_size_align(capacity, align).expect("a capacity within isize")
}

/// Sizes of large buffers have three binary digits that count: so one that is given back serves the next, whose size is seldom the
/// very same.
fn rounded(bytes: usize) -> usize {
    if bytes < LARGE_MIN_BYTES {
        return bytes;
    }
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(BLOCK_BYTES))
}

impl Memory {
    #[expect(unsafe_code, reason = "std has no safe allocation with a chosen alignment")]
    fn allocate(capacity: usize) -> Self {
        assert!(capacity > 0 && capacity.is_multiple_of(BLOCK_BYTES), "whole pages");
        let layout = layout_of(capacity);
        // SAFETY: the layout is not of size zero (asserted above).
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if capacity >= LARGE_PAGE_BYTES {
            prefer_large_pages(start.as_ptr(), capacity);
        }
        Self { start, capacity, whole: None }
    }

    /// A part of a new large page; the other parts go to the pool.
    #[expect(unsafe_code, reason = "parts of an allocation are found by their distance from its start")]
    fn part(capacity: usize) -> Self {
        let whole = Arc::new(Self::allocate(LARGE_PAGE_BYTES));
        let part = |number| {
            // SAFETY: `number + 1` parts of `capacity` bytes lie within the page.
            let start = unsafe { whole.start.add(number * capacity) };
            Self { start, capacity, whole: Some(Arc::clone(&whole)) }
        };
        (1..LARGE_PAGE_BYTES / capacity).map(part).for_each(Self::give_back);
        part(0)
    }

    /// Memory of at least `bytes`, from the pool if something there is not much too large.
    fn take(bytes: usize) -> Self {
        let wanted = rounded(bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES));
        let pooled = POOL.try_with(|pool| pool.try_borrow_mut().ok()?.take(wanted));
        pooled.ok().flatten().unwrap_or_else(|| match PART_BYTES.contains(&wanted) {
            true => Self::part(wanted),
            false => Self::allocate(wanted),
        })
    }

    /// Back to the pool of this thread, if that has room.
    fn give_back(self) {
        let mut memory = Some(self);
        // A thread that is ending has no pool any more; the memory is then freed by its destructor.
        let _ = POOL.try_with(|pool| {
            if let Ok(mut pool) = pool.try_borrow_mut() {
                memory = memory.take().and_then(|memory| pool.put(memory));
            }
        });
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "frees what `allocate` allocated")]
    fn drop(&mut self) {
        if self.whole.is_none() {
            // SAFETY: `start` came from `alloc` with this very layout and is freed once, here: parts share it by their `whole`.
            unsafe { dealloc(self.start.as_ptr(), layout_of(self.capacity)) }
        }
    }
}

/// Bytes in whole pages, aligned to a page in memory. Grows by [`extend`](PageBuf::extend), which writes the memory
/// once; becomes a shared [`Bytes`] without a copy, padded with zeros to a page's end.
#[derive(Default)]
pub struct PageBuf {
    memory: Option<Memory>,
    /// Bytes `[0, len)` are initialised; those after are not.
    len: usize,
}

impl PageBuf {
    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { memory: (capacity > 0).then(|| Memory::take(capacity)), len: 0 }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.resize(len);
        buf
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.capacity)
    }

    fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().map_or(NonNull::dangling(), |memory| memory.start)
    }

    /// Makes room for `more` bytes after those there are.
    fn reserve(&mut self, more: usize) {
        let needed = self.len + more;
        if needed <= self.capacity() {
            return;
        }
        let mut grown = Self { memory: Some(Memory::take(needed.max(2 * self.capacity()))), len: 0 };
        grown.extend(self.as_slice());
        *self = grown;
    }

    /// Appends `bytes`.
    #[expect(
        unsafe_code,
        reason = "fills memory that is not initialised yet, so that it is written only once"
    )]
    pub fn extend(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        // SAFETY: `reserve` made room for the bytes after `len`; the source is another allocation, because this one is
        // borrowed exclusively.
        unsafe {
            let end = self.start().as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
    }

    /// The room after what was written, for the system to fill.
    #[expect(unsafe_code, reason = "a view of the part that was not written")]
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        let (start, len, capacity) = (self.start(), self.len, self.capacity());
        // SAFETY: `[len, capacity)` lies in one allocation (or is empty), and bytes that may be uninitialised need not be
        // initialised; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(len).cast(), capacity - len) }
    }

    /// Counts the first `more` bytes of [`spare`](Self::spare) as written.
    ///
    /// # Safety
    /// They are there and were written.
    #[expect(unsafe_code, reason = "what the system has filled need not be written again")]
    pub(crate) unsafe fn advance(&mut self, more: usize) {
        self.len += more;
    }

    /// Makes it `len` bytes long: cut, or extended with zeros.
    #[expect(unsafe_code, reason = "fills memory that is not initialised yet")]
    pub fn resize(&mut self, len: usize) {
        if len > self.len {
            let more = len - self.len;
            self.reserve(more);
            // SAFETY: `reserve` made room for `more` bytes after `len`.
            unsafe { std::ptr::write_bytes(self.start().as_ptr().add(self.len), 0, more) }
        }
        self.len = len;
    }

    /// Pads with zeros to the end of the page.
    pub fn pad_to_page(&mut self) {
        self.resize(self.len.next_multiple_of(BLOCK_BYTES));
    }

    /// What was written.
    #[expect(unsafe_code, reason = "a view of the part that was written")]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `[0, len)` is initialised and lies in one allocation (or is empty); the lifetime is that of `self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }

    /// What was written, to change in place.
    #[expect(unsafe_code, reason = "a view of the part that was written")]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }

    /// A copy of these bytes that begins on a block boundary.
    pub fn copy_of(bytes: &[u8]) -> Bytes {
        Self::paged(bytes).slice(..bytes.len())
    }

    /// The same, padded with zeros to whole blocks, as drives want it.
    pub fn paged(bytes: &[u8]) -> Bytes {
        let mut copy = Self::with_capacity(bytes.len());
        copy.extend(bytes);
        copy.freeze()
    }

    /// Shares it, padded to whole pages, without a copy.
    pub fn freeze(mut self) -> Bytes {
        self.pad_to_page();
        Bytes::from_owner(self)
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.give_back();
        }
    }
}

impl AsRef<[u8]> for PageBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_aligned_and_zero_padded() {
        let mut buf = PageBuf::with_capacity(10);
        buf.extend(b"hello");
        buf.extend(&[7; 5000]);
        assert_eq!(buf.len(), 5005);
        let shared = buf.freeze();
        assert_eq!(shared.len(), 8192);
        assert_eq!(shared.as_ptr() as usize % BLOCK_BYTES, 0);
        assert_eq!((&shared[..5], shared[5004], shared[5005]), (&b"hello"[..], 7, 0));
    }

    #[test]
    fn a_copy_is_aligned_and_no_longer_than_what_it_is_of() {
        for len in [1, 4096, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let copy = PageBuf::copy_of(&bytes);
            assert_eq!(copy, bytes);
            assert_eq!(copy.as_ptr() as usize % BLOCK_BYTES, 0, "{len} bytes");
        }
    }

    #[test]
    fn bytes_cut_off_do_not_come_back() {
        let mut buf = PageBuf::zeroed(0);
        buf.extend(&[9; 100]);
        buf.resize(10);
        buf.resize(50);
        assert_eq!(buf.as_slice()[9..12], [9, 0, 0]);
    }

    #[test]
    fn a_buffer_from_the_pool_shows_nothing_of_its_former_life() {
        for _ in 0..3 {
            let mut buf = PageBuf::with_capacity(100 << 10);
            buf.extend(&[1; 10]);
            buf.pad_to_page();
            assert!(buf.as_slice()[10..].iter().all(|&byte| byte == 0));
            buf.resize(100 << 10);
            assert!(buf.as_slice()[10..].iter().all(|&byte| byte == 0));
            buf.as_mut_slice().fill(0xff);
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "fills the room as the system does")]
    fn what_the_system_fills_counts_as_written_and_the_rest_is_zero() {
        for round in 1..4_u8 {
            let mut buf = PageBuf::with_capacity(5000);
            for byte in &mut buf.spare()[..4500] {
                byte.write(round);
            }
            // SAFETY: they have just been written.
            unsafe { buf.advance(4500) };
            let shared = buf.freeze();
            assert_eq!((shared.len(), shared[4499], shared[4500], shared[8191]), (8192, round, 0, 0));
        }
    }

    #[test]
    fn a_growing_buffer_keeps_what_it_has() {
        let mut buf = PageBuf::default();
        for round in 0..300_u32 {
            buf.extend(&[round as u8; 1000]);
        }
        let kept = (0..300_u32).all(|round| {
            buf.as_slice()[round as usize * 1000..][..1000].iter().all(|&byte| byte == round as u8)
        });
        assert!(kept);
    }
}
