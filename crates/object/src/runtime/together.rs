//! One question for all who wait for its answer.
//!
//! An answer serves whoever came before its question was asked. So whoever comes while a question is under way waits for the next one,
//! and that serves all who came meanwhile.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use ithaca_env::Env;
use ithaca_env::sync::oneshot;
use ithaca_log::client::ClientError;

/// Those who wait for a question that is not asked yet, each with what it is about.
pub(super) struct Together<Q, A> {
    shared: Rc<Shared<Q, A>>,
}

/// Somebody who waits, and what for.
pub(super) type Waiting<Q, A> = (Q, oneshot::Sender<Result<A, ClientError>>);

struct Shared<Q, A> {
    waiting: RefCell<Vec<Waiting<Q, A>>>,
    is_asking: Cell<bool>,
}

impl<Q, A> Default for Together<Q, A> {
    fn default() -> Self {
        Self { shared: Rc::new(Shared { waiting: RefCell::default(), is_asking: Cell::default() }) }
    }
}

impl<Q: 'static, A: 'static> Together<Q, A> {
    /// Waits for the answer of the next question, which `ask` asks for all who wait and answers each of them. Dropping it leaves the
    /// question to the others.
    pub(super) async fn join<F: Future<Output = ()> + 'static>(
        &self,
        env: &Env,
        about: Q,
        ask: impl Fn(Vec<Waiting<Q, A>>) -> F + 'static,
    ) -> Result<A, ClientError> {
        let (sender, answer) = oneshot::channel();
        self.shared.waiting.borrow_mut().push((about, sender));
        if !self.shared.is_asking.replace(true) {
            let (shared, asking) = (Rc::clone(&self.shared), env.clone());
            env.spawn(async move {
                // Whoever is about to ask may join.
                asking.yield_now().await;
                loop {
                    let served = shared.waiting.take();
                    if served.is_empty() {
                        break;
                    }
                    ask(served).await;
                }
                shared.is_asking.set(false);
            });
        }
        answer.await.unwrap_or(Err(ClientError::Closed))
    }
}
