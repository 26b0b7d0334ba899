//! What runs on threads of its own beside the loop: blocking calls and signals.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Handle;
use crate::Env;

/// Runs `job`, which may block, on a thread of the drive pool and waits for its result. For a few slow calls (reading a
/// file, a lookup), never on a hot path. Panics in a simulation, which has no threads.
pub async fn unblock<T: Send + 'static>(env: &Env, job: impl FnOnce() -> T + Send + 'static) -> T {
    let Some(handle) = env.real() else { panic!("no threads in a simulation") };
    let handle: &Handle = handle;
    handle.io_pool().run(job).await
}

/// Waits until nobody reads the standard output any more: the other end of its pipe or socket is closed. For ever where it goes to a file.
///
/// A thread of the pool waits, and goes on when the future is dropped: to be called once, by a process that ends after it.
pub async fn output_closed(env: &Env) {
    unblock(env, || {
        let out = std::io::stdout();
        // Errors and the end are told of unasked.
        let mut polled = [PollFd::new(&out, PollFlags::empty())];
        while poll(&mut polled, None) == Err(Errno::INTR) {}
    })
    .await
}

/// Waits for SIGINT or SIGTERM and returns its name. From the first call on, those signals no longer end the process
/// by themselves; a second signal does, for those who cannot wait.
pub async fn shutdown_signal() -> std::io::Result<&'static str> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let received: Arc<Mutex<(Option<i32>, Option<Waker>)>> = Arc::default();
    let thread_side = Arc::clone(&received);
    std::thread::Builder::new().name("ithaca-signals".into()).spawn(move || {
        let mut count = 0;
        for signal in signals.forever() {
            count += 1;
            if count > 1 {
                std::process::exit(128 + signal);
            }
            let waker = {
                let mut received = thread_side.lock().unwrap_or_else(PoisonError::into_inner);
                received.0 = Some(signal);
                received.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    })?;
    let signal = poll_fn(|cx| {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.1 = Some(cx.waker().clone());
        received.0.map_or(Poll::Pending, Poll::Ready)
    })
    .await;
    Ok(if signal == SIGINT { "SIGINT" } else { "SIGTERM" })
}
