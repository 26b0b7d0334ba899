//! One value from one task to another.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use thiserror::Error;

/// The sender was dropped without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the sender went away without an answer")]
pub struct Closed;

enum State<T> {
    Empty,
    Waiting(Waker),
    Full(T),
    Closed,
}

/// Sends the value. Dropping it unsent closes the channel.
pub struct Sender<T> {
    state: Rc<RefCell<State<T>>>,
}

/// A future of the value.
pub struct Receiver<T> {
    state: Rc<RefCell<State<T>>>,
}

/// A channel for one value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State::Empty));
    (Sender { state: Rc::clone(&state) }, Receiver { state })
}

impl<T> Sender<T> {
    /// Hands the value over; it is dropped if nobody waits any more.
    pub fn send(self, value: T) {
        let before = self.state.replace(State::Full(value));
        if let State::Waiting(waker) = before {
            waker.wake();
        }
    }

    /// Whether the receiver is gone.
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.state) == 1
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        if matches!(*state, State::Full(_)) {
            return;
        }
        if let State::Waiting(waker) = std::mem::replace(&mut *state, State::Closed) {
            drop(state);
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Full(value) => Poll::Ready(Ok(value)),
            State::Closed => Poll::Ready(Err(Closed)),
            State::Empty | State::Waiting(_) => {
                *state = State::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
