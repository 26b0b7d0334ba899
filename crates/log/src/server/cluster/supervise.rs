//! Whether something has to be decided: what the cluster should change, as far as a node sees and it is its turn to say so.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::task::race;

use super::member::Member;
use super::order;
use super::reconfigure::reconfigure;
use super::room;
use crate::detector::Detector;
use crate::layout::{Change, Layout, Node as Listed, NodeState as Standing};
use crate::limits;
use crate::pos::NodeId;
use crate::wire::NodeState;

/// How often a node looks at what it knows of the others, if there are no news of them and none falls silent.
const TICK: Duration = Duration::from_millis(25);
/// News that come together are looked at together.
const NEWS_WAIT: Duration = Duration::from_millis(2);
/// A node whose epoch is over waits so long for another one to propose the next.
const OVER_PATIENCE: Duration = Duration::from_millis(800);
/// So many ranges that are trimmed wholly are worth a layout of their own.
const TRIMMED_RANGES: usize = 64;
/// The longest wait after an attempt to change the layout that came to nothing.
const RETRY_MAX: Duration = Duration::from_millis(100);

/// Looks at the cluster from time to time and proposes what it needs.
pub(super) async fn supervise(member: Weak<Member>) {
    let mut told: Vec<NodeId> = Vec::new();
    loop {
        let Some(strong) = member.upgrade() else { return };
        let env = strong.env.clone();
        let now = env.now();
        let (news, ticket) = (Rc::clone(&strong.news), strong.news.ticket());
        strong.detector.borrow_mut().tick(now);
        room::look(&strong);
        if let Some(layout) = strong.keeper.latest() {
            room::guard(&strong, &layout);
        }
        let suspects = strong.detector.borrow().suspects();
        if suspects != told {
            told = suspects;
            strong.stirred.ring();
        }
        let has_changed = strong.look_after(&env).await;
        if !has_changed && let Some(layout) = strong.keeper.latest() {
            order::carry_out(&strong, &layout).await;
        }
        let silent_at = strong.detector.borrow().silent_at();
        drop(strong);
        let next = env.now() + TICK;
        env.sleep(NEWS_WAIT).await;
        race(env.sleep_until(silent_at.map_or(next, |at| at.min(next))), news.after(ticket)).await;
    }
}

impl Member {
    /// Whether the epoch of `layout`, the latest that this node knows, is over, as far as it can tell: its unit serves it no
    /// more, or a majority of the acceptors grants no lease on it.
    pub(super) fn is_over(&self, layout: &Layout) -> bool {
        let unit = self.node.unit.get();
        layout.epoch <= self.began_in
            || unit.is_some_and(|unit| unit.check_epoch(layout.epoch).is_err())
            || self.node.leases.check(layout.epoch).is_err()
    }

    /// Proposes what the cluster needs, if it needs anything; whether a newer layout came of it.
    async fn look_after(self: &Rc<Self>, env: &Env) -> bool {
        let Some(layout) = self.keeper.latest() else { return false };
        let Some(change) = self.wanted(&layout) else { return false };
        match reconfigure(self, &layout, &change).await {
            Ok(_) => {
                self.detector.borrow_mut().taken_out(env.now(), &change.lost);
                true
            }
            Err(why) => {
                tracing::info!(node = self.options.id.0, epoch = layout.epoch.0, %why, "no new layout");
                let wait = env.random_u64() % RETRY_MAX.as_nanos() as u64;
                env.sleep(Duration::from_nanos(wait)).await;
                false
            }
        }
    }

    /// What the cluster should change, as far as this node sees and it is its turn to say so.
    fn wanted(&self, layout: &Layout) -> Option<Change> {
        let (now, me) = (self.env.now(), self.options.id);
        let detector = self.detector.borrow();
        let in_use: BTreeSet<NodeId> = layout.in_use().collect();
        // A node that was removed has no say.
        let own = layout.node(me)?;
        let lost = detector.lost(now, &layout.missed_if_lost().collect());
        if !lost.is_empty() {
            return Some(Change { lost, ..Change::default() });
        }
        if !detector.is_steady() {
            return None;
        }
        if matches!(self.account().state, NodeState::Leaving | NodeState::Failed) {
            return None;
        }
        let change_to = |node: Listed| Change { joined: vec![node], ..Change::default() };
        let is_cut_off = detector.is_cut_off_from_some(&in_use);
        // What a leaving node holds is copied from it in an epoch that its unit serves, which after a restart is a new one.
        if !in_use.contains(&me) && own.state != Standing::Leaving {
            let is_needed = layout.units().count() < usize::from(layout.replicas);
            let may_come = own.state == Standing::Out
                && detector.may_return(now, is_needed)
                && (is_needed || self.has_ranges_left(layout));
            let comes = may_come && self.is_heard(&detector, own) && !is_cut_off;
            return room::standing(self, layout, own).filter(|_| comes).map(change_to);
        }
        if self.is_over(layout) {
            // Whoever ended the epoch may have come to nothing; an earlier life of this node did.
            let all_here = !detector.suspects().iter().any(|node| in_use.contains(node));
            let known = self.over_since.get().filter(|(epoch, _)| *epoch == layout.epoch);
            let (_, since) = known.unwrap_or((layout.epoch, now));
            self.over_since.set(Some((layout.epoch, since)));
            let is_restart = layout.epoch <= self.began_in && all_here && detector.has_heard_all();
            return (is_restart || now.since(since) >= OVER_PATIENCE).then(Change::default);
        }
        self.over_since.set(None);
        // What follows can wait.
        if is_cut_off {
            return None;
        }
        if let Some(node) = room::standing(self, layout, own) {
            return Some(change_to(node));
        }
        if layout.trimmed_ranges(self.trimmed.get()) >= TRIMMED_RANGES {
            return Some(Change::default());
        }
        if self.completed.borrow().is_empty() {
            return None;
        }
        // What another layout has listed meanwhile, or does not want here any more, is left out.
        let missing = layout.missing();
        self.completed.borrow_mut().retain(|copied| missing.contains(copied));
        let completed = self.completed.borrow().clone();
        // Each layout interrupts those who append: what is copied soon is listed with it.
        (!completed.is_empty() && !self.more_come(now)).then(|| Change { completed, ..Change::default() })
    }

    /// Whether `layout` has room for what changes when a node comes in that is not needed. Where it has not, that is told once.
    fn has_ranges_left(&self, layout: &Layout) -> bool {
        let is_short = layout.is_short_of_ranges();
        let was_short = self.is_short_of_ranges.replace(is_short);
        if is_short && !was_short {
            let (node, ranges, max) =
                (self.options.id.0, layout.ranges.len(), limits::LAYOUT_RANGES_MAX_COUNT);
            tracing::warn!(
                node,
                ranges,
                max,
                "nodes have come and gone too often: this one stays out until a prefix of the log is trimmed"
            );
        }
        !is_short
    }

    /// Whether the others hear this node, which stands in the layout as `own`. Where they do not, that is told once: nobody else can know that it
    /// listens elsewhere, or that something keeps the others out.
    fn is_heard(&self, detector: &Detector, own: &Listed) -> bool {
        let is_unheard = detector.is_unheard();
        if is_unheard && !self.is_unheard.get() {
            let (node, address) = (own.id.0, &own.address);
            tracing::warn!(node, %address, "the others do not reach this node at its address in the layout: it stays out until they do");
        }
        self.is_unheard.set(is_unheard);
        !is_unheard
    }
}
