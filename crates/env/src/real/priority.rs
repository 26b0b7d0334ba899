//! Lets threads that wait for a drive run as soon as it has answered.

/// Asks the system to run this thread, whenever it is ready, before every ordinary one; it stays so until the thread ends,
/// and threads and processes that it starts are ordinary. For threads that hardly compute: they take a processor from
/// whoever has it. Who may not ask for it (no `CAP_SYS_NICE`) goes on as before.
///
/// Without it a thread that a drive has woken runs at the scheduler's next tick if neighbours keep the processors busy: a
/// flush of 60 us then takes 4 ms. A higher niceness is not enough, because it counts within one session only.
#[expect(unsafe_code, reason = "no safe library calls sched_setscheduler")]
pub fn run_at_once() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads `lowest`, which is initialised and outlives it; thread 0 is the calling one.
    // A refusal is fine: only latency depends on it.
    let _ =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_at_once_or_as_before_and_its_children_as_before() {
        // A real-time policy that reached threads started later could starve the machine.
        let policy = || std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
        let policy = move || policy().lines().find(|line| line.starts_with("policy")).map(str::to_owned);
        let ordinary = policy();
        let child = std::thread::spawn(move || {
            run_at_once();
            std::thread::spawn(policy).join().expect("no panic")
        });
        assert_eq!(child.join().expect("no panic"), ordinary);
    }
}
