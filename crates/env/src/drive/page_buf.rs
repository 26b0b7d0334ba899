//! A growable buffer whose bytes begin on a block boundary, as `O_DIRECT` wants them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use bytes::Bytes;

use crate::limits::BLOCK_BYTES;

/// Freed memory that one thread keeps for its next buffers, in bytes. A large buffer from the system costs a page
/// fault for every 4 KiB, which is more than filling it.
const POOL_MAX_BYTES: usize = 16 << 20;
/// Smaller buffers than this are left to the allocator.
const POOL_MIN_BUFFER_BYTES: usize = 64 << 10;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: Vec::new(), bytes: 0 }) };
}

struct Pool {
    free: Vec<Memory>,
    bytes: usize,
}

/// An allocation of whole pages, aligned to a page.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

impl Memory {
    #[expect(unsafe_code, reason = "std has no safe allocation with a chosen alignment")]
    fn allocate(capacity: usize) -> Self {
        assert!(capacity > 0 && capacity.is_multiple_of(BLOCK_BYTES), "whole pages");
        let layout = Layout::from_size_align(capacity, BLOCK_BYTES).expect("a capacity within isize");
        // SAFETY: the layout is not of size zero (asserted above).
        let start = unsafe { alloc(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, capacity },
            None => handle_alloc_error(layout),
        }
    }

    /// Memory of at least `bytes`, from the pool if something there is not much too large.
    fn take(bytes: usize) -> Self {
        let wanted = bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        if wanted < POOL_MIN_BUFFER_BYTES {
            return Self::allocate(wanted);
        }
        let pooled = POOL.try_with(|pool| {
            let mut pool = pool.try_borrow_mut().ok()?;
            let fits = |memory: &Memory| memory.capacity >= wanted && memory.capacity <= wanted + wanted / 4;
            let found = pool.free.iter().rposition(fits)?;
            let memory = pool.free.swap_remove(found);
            pool.bytes -= memory.capacity;
            Some(memory)
        });
        pooled.ok().flatten().unwrap_or_else(|| Self::allocate(wanted))
    }

    /// Back to the pool of this thread, if that has room.
    fn give_back(self) {
        if self.capacity < POOL_MIN_BUFFER_BYTES {
            return;
        }
        let capacity = self.capacity;
        let mut memory = Some(self);
        // A thread that is ending has no pool any more; the memory is then freed by its destructor.
        let _ = POOL.try_with(|pool| {
            if let Ok(mut pool) = pool.try_borrow_mut()
                && pool.bytes + capacity <= POOL_MAX_BYTES
            {
                pool.bytes += capacity;
                pool.free.extend(memory.take());
            }
        });
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "frees what `allocate` allocated")]
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.capacity, BLOCK_BYTES).expect("as it was allocated");
        // SAFETY: `start` came from `alloc` with this very layout and is freed once, here.
        unsafe { dealloc(self.start.as_ptr(), layout) }
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

#[expect(unsafe_code, reason = "a plain memory block, owned and not shared until it is frozen")]
// SAFETY: the buffer owns its memory alone, and plain bytes may be used from any thread.
unsafe impl Send for PageBuf {}

#[expect(unsafe_code, reason = "shared references only read")]
// SAFETY: through `&PageBuf` the bytes can only be read.
unsafe impl Sync for PageBuf {}

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
