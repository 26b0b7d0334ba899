//! What the process costs.

use rustix::time::{ClockId, clock_gettime};

/// User and system time of this process so far, all threads, in microseconds.
pub fn cpu_us() -> u64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(spent.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(spent.tv_nsec).unwrap_or(0) / 1_000
}

/// Resident memory of this process in bytes; 0 if the system does not say.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The user that this process acts as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Random bits from the system.
pub(super) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the system gives no random numbers: {error}"),
        }
    }
    u64::from_ne_bytes(bytes)
}
