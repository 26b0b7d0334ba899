//! Reading at another replica while the last one is silent, cannot be reached, or serves the epoch no more.
//!
//! ```text
//!   last replica    ── Read ──────────────── … ───────────────► answers, late or never
//!   another                ── Read, committed ──► answers what is on every replica, or refuses
//!                   ├─ patience ─┤
//! ```
//!
//! The first answer that says something counts, and the other is not waited for. A read asks one other replica at the most.
//!
//! Nobody can tell by waiting whether a replica is silent or busy, and a load that is heavy must not be asked for twice. So a read
//! waits for four times what the slowest ones have taken of late, which grows with the load while the read waits; for no longer than
//! 200 ms only where its replica has answered nothing at all for so long. And of all that wait for a replica one at a time asks
//! another one. If that one answers first, and the last one has answered nothing else meanwhile, it is *late*: all that
//! wait for it ask elsewhere at once. (docs/protocol/read.md)

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::sync::{Permit, Semaphore};
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
/// If reads take long because there are many, that is no reason to ask for more. Then so many times as long as the slowest take,
const PATIENCE_FACTOR: u32 = 4;
/// and no longer than this where the replica answers nothing.
const PATIENCE_MAX: Duration = Duration::from_millis(200);
/// How soon a slow read is forgotten: by one part in so many for each that is quicker.
const SLOWEST_PARTS: u32 = 8;

/// While reads are answered elsewhere, a newer layout is looked for so often.
const LEARN_EVERY: Duration = Duration::from_millis(100);

/// What a client remembers of the replicas that it reads at.
#[derive(Default)]
pub(super) struct Replicas {
    /// How long a last replica takes to answer a read: the slowest of late.
    slowest: Cell<Duration>,
    /// What is known of each.
    known: RefCell<BTreeMap<NodeId, Known>>,
    /// When a newer layout was looked for because of such a read.
    learned: Cell<Option<Time>>,
    /// Reads that another replica has answered.
    elsewhere: Cell<u64>,
}

/// A replica that was read at.
struct Known {
    /// It has left a read without an answer for too long, and has answered none since.
    is_late: bool,
    answered_at: Time,
    /// Leave, for one read at a time, to ask another replica because of patience.
    turns: Semaphore,
}

impl Default for Known {
    fn default() -> Self {
        Self { is_late: false, answered_at: Time::ZERO, turns: Semaphore::new(1) }
    }
}

impl Replicas {
    fn is_late(&self, node: NodeId) -> bool {
        self.known.borrow().get(&node).is_some_and(|known| known.is_late)
    }

    fn set_late(&self, node: NodeId) {
        self.known.borrow_mut().entry(node).or_default().is_late = true;
    }

    fn turns(&self, node: NodeId) -> Semaphore {
        self.known.borrow_mut().entry(node).or_default().turns.clone()
    }

    /// Another replica has answered what `node` was asked for at `began`.
    fn overtaken(&self, node: NodeId, began: Time, now: Time) {
        if self.silent(node, began, now) >= self.patience_for_another() {
            self.set_late(node);
        }
    }

    /// How long `node` has answered nothing, although it was asked at `began`.
    fn silent(&self, node: NodeId, began: Time, now: Time) -> Duration {
        let answered_at = self.known.borrow().get(&node).map_or(began, |known| known.answered_at);
        now.since(answered_at.max(began))
    }

    /// How long `node` may take for what it was asked at `began` before another replica is asked.
    fn patience(&self, node: NodeId, began: Time, now: Time) -> Duration {
        if self.is_late(node) {
            // Both are asked from the beginning, so that it shows when it is back.
            return Duration::ZERO;
        }
        let patience = (self.slowest.get() * PATIENCE_FACTOR).max(PATIENCE_MIN);
        if self.silent(node, began, now) < PATIENCE_MAX { patience } else { patience.min(PATIENCE_MAX) }
    }

    /// How long that one may take if the last replica cannot answer: then a newer layout is of more use.
    fn patience_for_another(&self) -> Duration {
        (self.slowest.get() * PATIENCE_FACTOR).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// The last replica has answered now a read that was asked at `began`.
    fn answered(&self, node: NodeId, began: Time, now: Time) {
        let took = now.since(began);
        let mut known = self.known.borrow_mut();
        let known = known.entry(node).or_default();
        (known.is_late, known.answered_at) = (false, now);
        let forgotten = self.slowest.get() * (SLOWEST_PARTS - 1) / SLOWEST_PARTS;
        self.slowest.set(forgotten.max(took));
    }

    /// The replica to ask instead of the last one: the nearest that is not late.
    fn another(&self, earlier: &[NodeId]) -> Option<NodeId> {
        let prompt = earlier.iter().rev().find(|&&node| !self.is_late(node));
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
        if earlier.is_empty() {
            return ask(last, false).await;
        }
        let began = self.env.now();
        let mut first = pin!(ask(last, false));
        let (failed, turn) = match race(first.as_mut(), self.turn_to_ask_elsewhere(last, began)).await {
            Ended::First(answer) if is_final(&answer) => return self.answered(last, began, answer),
            Ended::First(failed) => (Some(failed), None),
            Ended::Second(turn) => (None, turn),
        };
        let another = self.replicas.another(earlier).expect("there are earlier ones");
        let mut second = pin!(ask(another, true));
        let failed = match failed {
            Some(failed) => failed,
            None => match race(first.as_mut(), second.as_mut()).await {
                Ended::First(answer) if is_final(&answer) => return self.answered(last, began, answer),
                Ended::First(failed) => failed,
                Ended::Second(Ok(runs)) => {
                    self.replicas.overtaken(last, began, self.env.now());
                    return Ok(self.answered_elsewhere(runs));
                }
                // The other one cannot say; the last one may yet.
                Ended::Second(Err(_)) => {
                    drop(turn);
                    self.learn_again();
                    return self.answered(last, began, first.await);
                }
            },
        };
        match race(second.as_mut(), self.env.sleep(self.replicas.patience_for_another())).await {
            Ended::First(answer) => answer.map(|runs| self.answered_elsewhere(runs)).or(failed),
            Ended::Second(()) => {
                self.replicas.set_late(another);
                failed
            }
        }
    }

    /// Waits until what `node` was asked for at `began` is to be asked for elsewhere. No other read of that node is, but those that are
    /// asked for at once because it is known to be late, while what is given back lives.
    async fn turn_to_ask_elsewhere(&self, node: NodeId, began: Time) -> Option<Permit> {
        let mut turn = None;
        loop {
            let now = self.env.now();
            let waited = now.since(began);
            let left = self.replicas.patience(node, began, now).saturating_sub(waited);
            if left > Duration::ZERO {
                turn = None;
                let silent = self.replicas.silent(node, began, now);
                self.env.sleep(left.min(PATIENCE_MAX.saturating_sub(silent))).await;
            } else if self.replicas.is_late(node) {
                return None;
            } else if turn.is_some() {
                return turn;
            } else {
                // Whoever had it before may have found out how it is.
                turn = Some(self.replicas.turns(node).acquire(1).await);
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
            self.replicas.answered(last, began, self.env.now());
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

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn another_replica_is_asked_after_a_few_times_what_reads_take_and_at_once_after_one_that_was_late() {
        // Too early doubles the load of a cluster that is busy; too late, and readers stand still.
        let replicas = Replicas::default();
        let (node, ms) = (NodeId(3), Duration::from_millis);
        assert_eq!(replicas.patience(node, at(0), at(1)), PATIENCE_MIN);
        (0..100).for_each(|_| replicas.answered(node, at(0), at(10)));
        assert_eq!(replicas.patience(node, at(10), at(11)), ms(40));
        replicas.answered(node, at(0), at(900));
        assert_eq!(replicas.patience(node, at(0), at(901)), ms(3600), "it is busy");
        assert_eq!(replicas.patience(node, at(0), at(1099)), ms(3600));
        assert_eq!(replicas.patience(node, at(0), at(1100)), PATIENCE_MAX, "it is silent");
        (0..100).for_each(|_| replicas.answered(node, at(1000), at(1001)));
        assert_eq!(replicas.patience(node, at(1001), at(1002)), PATIENCE_MIN, "the slow one is forgotten");
        replicas.set_late(node);
        assert_eq!(replicas.patience(node, at(1001), at(1002)), Duration::ZERO);
        replicas.answered(node, at(1002), at(1003));
        assert!(replicas.patience(node, at(1003), at(1004)) > Duration::ZERO, "it is back");
    }

    #[test]
    fn a_replica_is_late_that_was_silent_for_the_whole_patience_when_another_one_answered() {
        // All that waits for it is asked for elsewhere then: of one that is busy that would be everything once more.
        let replicas = Replicas::default();
        let node = NodeId(3);
        replicas.answered(node, at(0), at(5));
        replicas.overtaken(node, at(0), at(24));
        assert!(!replicas.is_late(node));
        replicas.overtaken(node, at(6), at(25));
        assert!(!replicas.is_late(node), "it was asked a moment later");
        replicas.overtaken(node, at(0), at(25));
        assert!(replicas.is_late(node));
    }

    #[test]
    fn the_nearest_replica_that_is_not_late_is_asked_and_a_late_one_rather_than_none() {
        let replicas = Replicas::default();
        let earlier = [NodeId(1), NodeId(2)];
        assert_eq!(replicas.another(&earlier), Some(NodeId(2)));
        replicas.set_late(NodeId(2));
        assert_eq!(replicas.another(&earlier), Some(NodeId(1)));
        replicas.set_late(NodeId(1));
        assert_eq!(replicas.another(&earlier), Some(NodeId(2)));
        assert_eq!(replicas.another(&[]), None);
    }
}
