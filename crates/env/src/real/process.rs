//! What the process costs.

use std::cell::RefCell;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// User and system time of this process so far, all threads, in microseconds.
pub fn cpu_us() -> u64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(spent.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(spent.tv_nsec).unwrap_or(0) / 1_000
}

/// Time that only goes on, since a moment before the process began.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Resident memory of this process in bytes; 0 if the system does not say.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Gives freed memory back to the system, wherever it lies in the heap: of glibc's allocator, and of ours where the program has that.
/// Others do it themselves, or never.
pub(crate) fn give_memory_back() {
    super::allocator::give_back();
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no safe library asks the allocator")]
    // SAFETY: it touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The user that this process acts as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The group that this process acts as.
pub fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Lets this process have as many descriptors at a time as the system lets it: the 1,024 that are usual are fewer than the connections of a
/// server and its drives.
pub fn raise_descriptors() -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// When a thread of this machine was started, in ticks since the system was; `None` if there is none of this number, or only what is
/// left of one that has ended. Errors: the system does not say, as when it is short of descriptors.
pub(super) fn started(thread: u32) -> std::io::Result<Option<u64>> {
    told(std::fs::read_to_string(format!("/proc/{thread}/stat")))
}

/// What the system tells of a thread.
fn told(stat: std::io::Result<String>) -> std::io::Result<Option<u64>> {
    match stat {
        Ok(stat) => Ok(started_of(&stat)),
        // It has ended before its file was opened, or since.
        Err(error) => match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => Ok(None),
            _ => Err(error),
        },
    }
}

fn started_of(stat: &str) -> Option<u64> {
    // The name before the last bracket may hold anything. What follows begins with the third field, the state.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_ascii_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// Random numbers that one call of the system gives: it takes as long for one as for these.
const RANDOM_AT_ONCE: usize = 32;

thread_local! {
    static RANDOM: RefCell<Vec<[u8; 8]>> = const { RefCell::new(Vec::new()) };
}

/// Random bits from the system.
pub(super) fn random_u64() -> u64 {
    RANDOM.with_borrow_mut(|left| {
        if left.is_empty() {
            let mut some = [0; RANDOM_AT_ONCE * 8];
            fill_random(&mut some);
            left.extend_from_slice(some.as_chunks().0);
        }
        u64::from_ne_bytes(left.pop().expect("it was filled"))
    })
}

fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the system gives no random numbers: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice() {
        let numbers: std::collections::BTreeSet<u64> = (0..1000).map(|_| random_u64()).collect();
        assert_eq!(numbers.len(), 1000);
    }

    #[test]
    fn memory_that_is_in_use_is_not_given_back() {
        let pieces: Vec<Vec<u8>> = (0..64).map(|nth| vec![nth; 100 << 10]).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|piece| piece[0] % 2 == 0);
        drop(freed);
        give_memory_back();
        assert!(kept.iter().zip((0..64).step_by(2)).all(|(piece, nth)| *piece == vec![nth; 100 << 10]));
    }

    #[test]
    fn as_many_descriptors_are_to_be_had_as_the_system_lets_it() {
        raise_descriptors().expect("within what is allowed");
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn a_thread_is_told_from_one_that_is_not_there() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).expect("positive");
        let started = |thread| started(thread).expect("the system says");
        assert!(started(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(own), started(own));
        assert_eq!(started(u32::MAX), None);
        let ended = std::thread::spawn(|| u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()));
        let ended = ended.join().expect("it ends").expect("positive");
        // What has ended is gone as soon as the system has noticed, which it may not have when `join` returns.
        while started(ended).is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_the_system_says_nothing_of_is_not_taken_for_one_that_has_ended() {
        // What it has begun would be ended, and what it does next taken for something else.
        let failed = |errno: rustix::io::Errno| Err(errno.into());
        assert_eq!(told(failed(rustix::io::Errno::NOENT)).expect("it is known"), None);
        assert_eq!(told(failed(rustix::io::Errno::SRCH)).expect("it ended while it was asked for"), None);
        for short in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            assert!(told(failed(short)).is_err(), "{short}");
        }
    }
}
