//! Which positions nothing can come to stand below any more.
//!
//! The sequencer's tail is no such position: what it has granted and nobody has written is granted again after a change of epoch. A
//! snapshot at such a tail would later have entries below it that those who read it have not seen. So whatever reads a
//! snapshot makes sure first that its last position is decided: the next epoch then begins above it. One tail serves [all who
//! wait](super::together): it is asked for after they began.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::client::{ClientError, EntryKind, Phase};
use ithaca_log::pos::{Epoch, LogPos};

use super::Inner;
use super::together::{Together, Waiting};

/// Looks at a position that somebody is writing, before it is waited for as any hole.
const LOOKS_MAX: u32 = 16;
/// The wait between.
const LOOK_WAIT: Duration = Duration::from_micros(250);
/// How often a tail is asked for until one is decided.
const ATTEMPTS_MAX: u32 = 16;
/// The wait between.
const ATTEMPT_WAIT: Duration = Duration::from_millis(2);

/// Below this position nothing is granted any more: in no later epoch, and in this one all of it is.
#[derive(Default)]
pub(super) struct Decided {
    below: Cell<LogPos>,
    /// Of the entries whose epoch is known the highest, and that epoch.
    highest: Cell<Option<(LogPos, Epoch)>>,
    tails: Together<(), LogPos>,
}

impl Decided {
    /// Up to where it is known to be so.
    pub(super) fn below(&self) -> LogPos {
        self.below.get()
    }

    /// An entry stands at `pos`: every later grant lies above it.
    pub(super) fn stands(&self, pos: LogPos) {
        self.below.set(self.below.get().max(LogPos(pos.0 + 1)));
    }

    /// An entry stands at `pos`, which was granted in `epoch`.
    pub(super) fn stands_in(&self, pos: LogPos, epoch: Epoch) {
        self.stands(pos);
        self.highest.set(self.highest.get().max(Some((pos, epoch))));
    }

    /// Up to where it is known that everything was granted in `epoch` or before: a sequencer of that epoch whose tail is above this knew of all
    /// of it when it said so, however long ago that was.
    pub(super) fn granted_by(&self, epoch: Epoch) -> LogPos {
        let highest = self.highest.get().filter(|(_, granted)| *granted <= epoch);
        highest.map_or(LogPos(0), |(pos, _)| LogPos(pos.0 + 1))
    }
}

impl Inner {
    /// The log's tail, decided: above everything that was acknowledged before the call.
    pub(super) async fn decided_tail(self: &Rc<Self>) -> Result<LogPos, ClientError> {
        let inner = Rc::clone(self);
        let decide = move |served: Vec<Waiting<(), LogPos>>| {
            let inner = Rc::clone(&inner);
            async move {
                let tail = inner.decide_tail().await;
                served.into_iter().for_each(|((), sender)| sender.send(tail.clone()));
            }
        };
        self.decided.tails.join(&self.env, (), decide).await
    }

    /// Asks for the tail until the position below it is decided.
    async fn decide_tail(&self) -> Result<LogPos, ClientError> {
        let mut before = None;
        for _ in 0..ATTEMPTS_MAX {
            let told = self.client.stream_tails(&[]).await?;
            let now = (told.epoch, told.tail);
            // Its last position was junk before, and the epoch goes on: it ends above.
            if now.1 <= self.decided.below() || before == Some(now) {
                if now.1 > LogPos(0) {
                    self.decided.stands(LogPos(now.1.0 - 1));
                }
                return Ok(now.1);
            }
            if self.look_at_last(now.1).await? {
                return Ok(now.1);
            }
            before = Some(now);
            self.env.sleep(ATTEMPT_WAIT).await;
        }
        Err(ClientError::Slow { phase: Phase::Check, waited: ATTEMPT_WAIT * ATTEMPTS_MAX })
    }

    /// Has the last position below `tail`, which is not 0, decided, waiting for whoever writes there; whether an entry stands there.
    async fn look_at_last(&self, tail: LogPos) -> Result<bool, ClientError> {
        let last = LogPos(tail.0 - 1);
        for _ in 0..LOOKS_MAX {
            match self.client.read(last).await {
                Ok(entry) if entry.kind == EntryKind::Data => {
                    self.decided.stands(last);
                    return Ok(true);
                }
                Ok(_) => return Ok(false),
                Err(ClientError::Unwritten { .. }) => self.env.sleep(LOOK_WAIT).await,
                Err(error) => return Err(error),
            }
        }
        let found = self.client.read_range(last, tail).await?;
        let stands = found.iter().any(|entry| entry.pos == last && entry.kind == EntryKind::Data);
        if stands {
            self.decided.stands(last);
        }
        Ok(stands)
    }

    /// Makes sure that nothing can come to stand below `snapshot` any more; false if the log does not reach it.
    pub(super) async fn decide(self: &Rc<Self>, snapshot: LogPos) -> Result<bool, ClientError> {
        if snapshot <= self.decided.below() || self.look_at_last(snapshot).await? {
            return Ok(true);
        }
        Ok(self.decided_tail().await? >= snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_granted_by_an_epoch_ends_where_a_later_one_may_have_granted() {
        let decided = Decided::default();
        assert_eq!(decided.granted_by(Epoch(9)), LogPos(0));
        decided.stands(LogPos(40));
        assert_eq!(decided.granted_by(Epoch(9)), LogPos(0), "of which epoch is not known");
        decided.stands_in(LogPos(20), Epoch(3));
        decided.stands_in(LogPos(10), Epoch(2));
        let granted = [2, 3, 4].map(|epoch| decided.granted_by(Epoch(epoch)));
        assert_eq!(granted, [LogPos(0), LogPos(21), LogPos(21)]);
        assert_eq!(decided.below(), LogPos(41));
    }
}
