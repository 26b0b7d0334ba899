//! A file or the standard input, read by a thread of its own a bounded step ahead.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;

/// Bytes of one piece.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces read ahead at the most.
const AHEAD_MAX: usize = 8;

#[derive(Default)]
struct State {
    pieces: VecDeque<std::io::Result<Bytes>>,
    ended: bool,
    reader_gone: bool,
    waker: Option<Waker>,
}

/// Input as pieces of at most 256 KiB, as they come: a terminal or a pipe is not waited for to fill one.
pub struct Stdin {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Stdin {
    /// Reads the standard input.
    pub fn standard() -> std::io::Result<Self> {
        Self::of(std::io::stdin())
    }

    /// Reads a file, from its start.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory));
        }
        Self::of(file)
    }

    fn of(source: impl Read + Send + 'static) -> std::io::Result<Self> {
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let thread_side = Arc::clone(&shared);
        std::thread::Builder::new().name("ithaca-input".into()).spawn(move || pump(source, &thread_side))?;
        Ok(Self { shared })
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        poll_fn(|cx| {
            let mut state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(piece) = state.pieces.pop_front() {
                self.shared.1.notify_one();
                return Poll::Ready(Some(piece));
            }
            if state.ended {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).reader_gone = true;
        self.shared.1.notify_one();
    }
}

fn pump(mut source: impl Read, shared: &(Mutex<State>, Condvar)) {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let read = source.read(&mut piece).map(|len| {
            piece.truncate(len);
            Bytes::from(piece)
        });
        if read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {
            continue;
        }
        let end = read.as_ref().map_or(true, Bytes::is_empty);
        let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pieces.len() >= AHEAD_MAX && !state.reader_gone {
            state = shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if read.as_ref().map_or(true, |piece| !piece.is_empty()) {
            state.pieces.push_back(read);
        }
        state.ended = end;
        let stop = end || state.reader_gone;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        if stop {
            return;
        }
    }
}
