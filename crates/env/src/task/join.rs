//! Several futures in one task.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures ended, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended<A, B> {
    /// The one that was given first.
    First(A),
    /// The other.
    Second(B),
}

/// Waits for what ends first, and drops the other. If both are ready it is `first`.
pub async fn race<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> Ended<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(Ended::First(ended)),
        Poll::Pending => second.as_mut().poll(cx).map(Ended::Second),
    })
    .await
}

/// Runs all futures at the same time until each is done or one's result is `enough`. Results in the order of the futures;
/// `None` for those that were not done, which are dropped.
pub async fn gather<T>(futures: Vec<impl Future<Output = T>>, enough: impl Fn(&T) -> bool) -> Vec<Option<T>> {
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (slot, result) in running.iter_mut().zip(&mut results) {
            if let Some(future) = slot
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                let is_enough = enough(&value);
                (*slot, *result) = (None, Some(value));
                if is_enough {
                    return Poll::Ready(());
                }
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    type Boxed = Pin<Box<dyn Future<Output = u32>>>;

    fn look<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_ends_first_wins_and_of_two_that_are_ready_the_first() {
        assert_eq!(look(race(ready(1), ready(2))), Some(Ended::First(1)));
        assert_eq!(look(race(pending::<u32>(), ready(2))), Some(Ended::Second(2)));
        assert_eq!(look(race(pending::<u32>(), pending::<u32>())), None);
    }

    #[test]
    fn one_that_is_silent_is_waited_for_unless_another_is_enough() {
        let futures = || -> Vec<Boxed> { vec![Box::pin(pending()), Box::pin(ready(1)), Box::pin(ready(2))] };
        let gathered = |futures, enough| look(gather(futures, move |value| *value == enough));
        assert_eq!(gathered(futures(), 9), None);
        assert_eq!(gathered(futures(), 1), Some(vec![None, Some(1), None]));
        assert_eq!(gathered(futures().split_off(1), 9), Some(vec![Some(1), Some(2)]));
    }
}
