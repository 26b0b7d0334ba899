//! Where a program has its memory from. A lookup in tables of many megabytes costs what it takes to find each page of them, which in
//! a virtual machine is a multiple of what it takes to read there: of pages of 2 MiB there are few to be found (docs/decisions/0028).

use std::ffi::c_long;
use std::sync::OnceLock;
use std::time::Duration;

use libmimalloc_sys::mi_option_t;

use crate::Env;

/// For a program's `#[global_allocator]`: it has its memory in large pages where the system has such for who asks for them.
pub use mimalloc::MiMalloc as Allocator;

/// `mi_option_purge_delay`, for which the library has no name here.
const PURGE_DELAY: mi_option_t = 15;
/// A program that is busy takes again within this what it has freed.
const PURGE_DELAY_MS: c_long = 1000;
/// Between two looks for what has been free for long.
const COLLECT_INTERVAL: Duration = Duration::from_secs(10);

/// How memory is given back, all that is free or what has been so for long, in a program that has [`Allocator`]. Others are made without
/// the library.
static COLLECT: OnceLock<fn(bool)> = OnceLock::new();

/// To be called first by a program that has [`Allocator`]. It keeps what was freed for a second, and large parts for ten, before the
/// system gets them back: of a large page of which a part was given back the rest is small pages, and without this, with a hundredth
/// of that time, a busy program has little else. Who has set `MIMALLOC_PURGE_DELAY`, in milliseconds, has what that says.
#[expect(unsafe_code, reason = "the library has no safe way to set it")]
pub fn keep_freed_memory() {
    // SAFETY: it only sets a number, which every thread reads as a whole.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
    COLLECT.get_or_init(|| collect);
}

#[expect(unsafe_code, reason = "the library has no safe way to ask for it")]
fn collect(is_forced: bool) {
    // SAFETY: it touches only what nobody has.
    unsafe { libmimalloc_sys::mi_collect(is_forced) }
}

/// Gives the system back all that is free.
pub(super) fn give_back() {
    if let Some(collect) = COLLECT.get() {
        collect(true);
    }
}

/// Gives the system back what has been free for long: a task of a program that serves and has [`Allocator`]. Without it that happens
/// only where memory is taken and freed, so that one with nothing to do would keep all that it has ever needed. It never ends.
pub async fn give_back_idle_memory(env: Env) {
    loop {
        env.sleep(COLLECT_INTERVAL).await;
        collect(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the library has no safe way to ask for it")]
    fn the_delay_is_the_one_that_is_set() {
        // SAFETY: it only reads a number.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 10, "as the library begins, of 2.3");
        keep_freed_memory();
        assert_eq!(delay(), PURGE_DELAY_MS);
    }
}
