//! Reading at another replica while the last one is silent, cannot be reached, or serves the epoch no more.
//!
//! ```text
//!   last replica    ── Read ──────────────── … ───────────────► answers, late or never
//!   another                ── Read, committed ──► answers what is on every replica, or refuses
//!                   ├─ patience ─┤
//! ```
//!
//! The first answer that says something counts, and the other is not waited for. A read asks one other replica at the most, so that
//! a cluster that is merely slow is asked for twice as much, never for more. (docs/protocol/read.md)

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::task::{Ended, race};

use super::connection::CallError;
use super::error::{ClientError, Phase};
use super::read::{Origin, UnitRuns};
use super::view::View;
use super::{Client, Inner};
use crate::pos::{AddrRange, NodeId};
use crate::wire::{Message, Read, ReceivedRuns, Refusal};

/// The last replica may take so long before another one is asked: longer than most reads of a disk, and a small part of the time that a
/// failed node is missed in.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
/// If reads take long because there are many, that is no reason to ask for more. Then so many times as long as they usually take,
const PATIENCE_FACTOR: u32 = 4;
/// and no longer than this.
const PATIENCE_MAX: Duration = Duration::from_millis(200);
/// How much of the usual time is that of the latest read: one part in so many.
const USUAL_PARTS: u32 = 8;

/// While reads are answered elsewhere, a newer layout is looked for so often.
const LEARN_EVERY: Duration = Duration::from_millis(100);

/// What a client remembers of the replicas that it reads at.
#[derive(Default)]
pub(super) struct Replicas {
    /// How long a last replica takes to answer a read.
    usual: Cell<Duration>,
    /// Those that have left a read without an answer for too long, and have answered none since.
    late: RefCell<BTreeSet<NodeId>>,
    /// When a newer layout was looked for because of such a read.
    learned: Cell<Option<Time>>,
    /// Reads that another replica has answered.
    elsewhere: Cell<u64>,
}

impl Replicas {
    /// How long `node` may take before another replica is asked.
    fn patience(&self, node: NodeId) -> Duration {
        match self.late.borrow().contains(&node) {
            // Both are asked from the beginning, so that it shows when it is back.
            true => Duration::ZERO,
            false => self.patience_for_another(),
        }
    }

    /// How long that one may take if the last replica cannot answer: then a newer layout is of more use.
    fn patience_for_another(&self) -> Duration {
        (self.usual.get() * PATIENCE_FACTOR).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// The last replica has answered a read after this time.
    fn answered(&self, node: NodeId, took: Duration) {
        self.late.borrow_mut().remove(&node);
        self.usual.set((self.usual.get() * (USUAL_PARTS - 1) + took) / USUAL_PARTS);
    }

    /// The replica to ask instead of the last one: the nearest that is not late.
    fn another(&self, earlier: &[NodeId]) -> Option<NodeId> {
        let late = self.late.borrow();
        let prompt = earlier.iter().rev().find(|node| !late.contains(node));
        prompt.or(earlier.last()).copied()
    }
}

impl Client {
    /// How many reads of this client, of pieces of ranges and of positions, another replica than the last has answered.
    pub fn reads_elsewhere(&self) -> u64 {
        self.inner.replicas.elsewhere.get()
    }
}

impl Inner {
    /// Asks for `ranges` of the stripe that `replicas` hold, up to `limit_bytes`: the last replica, and another one if that does not
    /// answer soon or cannot. The runs cover the ranges in order and without gaps, up to the limit or to what is certain.
    pub(super) async fn read_at(
        self: &Rc<Self>,
        view: &View,
        replicas: &[NodeId],
        ranges: Vec<AddrRange>,
        limit_bytes: u32,
    ) -> Result<UnitRuns, ClientError> {
        let ask = |unit, committed| {
            let ranges = ranges.clone();
            self.read_one(view, unit, Read { limit_bytes, committed, ranges })
        };
        self.ask_replicas(replicas, ask).await
    }

    /// Asks the last of `replicas`, and another one for what is committed if that does not answer soon or cannot.
    pub(super) async fn ask_replicas<R, F>(
        self: &Rc<Self>,
        replicas: &[NodeId],
        ask: impl Fn(NodeId, bool) -> F,
    ) -> Result<R, ClientError>
    where
        F: Future<Output = Result<R, ClientError>>,
    {
        let (&last, earlier) = replicas.split_last().expect("a stripe has replicas");
        let Some(another) = self.replicas.another(earlier) else {
            return ask(last, false).await;
        };
        let began = self.env.now();
        let mut first = pin!(ask(last, false));
        let failed = match race(first.as_mut(), self.env.sleep(self.replicas.patience(last))).await {
            Ended::First(answer) if is_final(&answer) => return self.answered(last, began, answer),
            Ended::First(failed) => Some(failed),
            Ended::Second(()) => None,
        };
        let mut second = pin!(ask(another, true));
        let failed = match failed {
            Some(failed) => failed,
            None => {
                self.replicas.late.borrow_mut().insert(last);
                match race(first.as_mut(), second.as_mut()).await {
                    Ended::First(answer) if is_final(&answer) => return self.answered(last, began, answer),
                    Ended::First(failed) => failed,
                    Ended::Second(Ok(runs)) => return Ok(self.answered_elsewhere(runs)),
                    // The other one cannot say; the last one may yet.
                    Ended::Second(Err(_)) => {
                        self.learn_again();
                        return self.answered(last, began, first.await);
                    }
                }
            }
        };
        match race(second.as_mut(), self.env.sleep(self.replicas.patience_for_another())).await {
            Ended::First(answer) => answer.map(|runs| self.answered_elsewhere(runs)).or(failed),
            Ended::Second(()) => {
                self.replicas.late.borrow_mut().insert(another);
                failed
            }
        }
    }

    /// How long a replica may take before what it was asked for is looked for elsewhere.
    pub(super) fn patience(&self) -> Duration {
        self.replicas.patience_for_another()
    }

    fn answered<R>(
        &self,
        last: NodeId,
        began: Time,
        answer: Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        if answer.is_ok() {
            self.replicas.answered(last, self.env.now().since(began));
        }
        answer
    }

    fn answered_elsewhere<R>(self: &Rc<Self>, runs: R) -> R {
        self.replicas.elsewhere.set(self.replicas.elsewhere.get() + 1);
        self.learn_again();
        runs
    }

    /// The last replica does not do as the layout says: there may be a newer one. Looks for it now and then.
    fn learn_again(self: &Rc<Self>) {
        let now = self.env.now();
        if self.replicas.learned.get().is_none_or(|learned| now.since(learned) >= LEARN_EVERY) {
            self.replicas.learned.set(Some(now));
            self.watch_layout();
        }
    }

    /// One read of one unit.
    pub(super) async fn read_one(
        self: &Rc<Self>,
        view: &View,
        unit: NodeId,
        read: Read,
    ) -> Result<UnitRuns, ClientError> {
        let (runs, data, origin) = self.ask_unit::<_, ReceivedRuns>(view, unit, read).await?;
        Ok(UnitRuns { origin, runs, data })
    }

    /// One question to one unit about its entries.
    pub(super) async fn ask_unit<M: Message, R: Message>(
        self: &Rc<Self>,
        view: &View,
        unit: NodeId,
        question: M,
    ) -> Result<(R, Bytes, Origin), ClientError> {
        let deadline = self.deadline();
        let connection = self.connection(view, unit, deadline).await?;
        let epoch = view.layout.epoch;
        let origin = Origin { addr: view.addr(unit), epoch, phase: Phase::Read };
        match connection.call::<_, R>(&self.env, epoch, &question, deadline).await {
            Ok((answer, data, _)) => Ok((answer, data, origin)),
            Err(error) => Err(view.by_position(unit, origin.failed(error))),
        }
    }
}

/// Whether the last replica's answer is one that no other replica makes better: anything but that it is gone, or does not serve what it
/// is asked. Without a lease it finds nothing where it is asked, and then nothing is on every replica.
fn is_final<R>(answer: &Result<R, ClientError>) -> bool {
    let error = match answer {
        Err(ClientError::Node { error, .. }) => error,
        // It has lost everything.
        Err(ClientError::NoCluster { .. }) => return false,
        _ => return true,
    };
    match error {
        CallError::Lost(_) | CallError::TimedOut => false,
        CallError::Refused(refusal) => !matches!(
            refusal,
            Refusal::Sealed { .. }
                | Refusal::NotServing { .. }
                | Refusal::Failed
                | Refusal::Overloaded { .. }
                | Refusal::WrongNode { .. }
        ),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_replica_is_asked_after_a_few_times_what_a_read_takes_and_at_once_after_one_that_was_late() {
        // Too early doubles the load of a cluster that is busy; too late, and readers stand still.
        let replicas = Replicas::default();
        let (node, ms) = (NodeId(3), Duration::from_millis);
        assert_eq!(replicas.patience(node), PATIENCE_MIN);
        (0..100).for_each(|_| replicas.answered(node, ms(10)));
        assert!((ms(39)..=ms(40)).contains(&replicas.patience(node)), "{:?}", replicas.patience(node));
        (0..100).for_each(|_| replicas.answered(node, ms(900)));
        assert_eq!(replicas.patience(node), PATIENCE_MAX);
        replicas.late.borrow_mut().insert(node);
        assert_eq!(replicas.patience(node), Duration::ZERO);
        replicas.answered(node, ms(1));
        assert!(replicas.patience(node) > Duration::ZERO, "it is back");
    }

    #[test]
    fn the_nearest_replica_that_is_not_late_is_asked_and_a_late_one_rather_than_none() {
        let replicas = Replicas::default();
        let earlier = [NodeId(1), NodeId(2)];
        assert_eq!(replicas.another(&earlier), Some(NodeId(2)));
        replicas.late.borrow_mut().insert(NodeId(2));
        assert_eq!(replicas.another(&earlier), Some(NodeId(1)));
        replicas.late.borrow_mut().insert(NodeId(1));
        assert_eq!(replicas.another(&earlier), Some(NodeId(2)));
        assert_eq!(replicas.another(&[]), None);
    }
}
