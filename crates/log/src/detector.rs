//! Which nodes of a cluster seem to be gone, and whether the cluster should go on without them. A pure core.
//!
//! Every node beats to every other. A node is suspected when it has not answered for a while, or when nobody listens at its
//! address any more. Whoever suspects a node may propose a layout without it, so that a wrong suspicion costs time and never
//! data; what is here keeps such layouts few:
//!
//! * A node is lost when most of the nodes that can be heard suspect it. If only a few do, a link is broken and not a node:
//!   then it is lost after [`Timing::one_sided_after`], and only for nodes with a lower id than its own, so that two that
//!   cannot hear each other do not take each other out.
//! * A node that writes ten times slower than the median of the others, for two seconds, is lost as well, at most one in ten
//!   seconds.
//! * Nodes propose one after the other, in the order of their ids, so that nearly always one does.
//! * A node that was taken out comes back by itself once it has heard most of the others without a break for
//!   [`Timing::return_after`], or for [`Timing::slow_rest`] if it was slow. If it is taken out again soon after, it waits twice as
//!   long each time, up to a bound, unless fewer nodes than copies are in use. It does not come while most of those that it hears do not
//!   hear it, because it listens elsewhere than the layout says, say: they would take it out again at once, for ever. Nor does it while
//!   it is cut off from one of those in use that the others hear.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ithaca_env::Time;

use crate::planted::{Planted, PlantedBug};
use crate::pos::NodeId;
use crate::wire::{Account, NodeState};

/// How long things take until they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From one beat to the next.
    pub beat: Duration,
    /// A node that has not answered for so long is suspected.
    pub silent_after: Duration,
    /// Beats in a row that found nobody listening, after which a node is suspected.
    pub refusals: u32,
    /// A node that only a few suspect is lost after this.
    pub one_sided_after: Duration,
    /// Each node waits so long for every node with a lower id before it proposes itself.
    pub turn: Duration,
    /// A node is slow if its writes take so many times the median of the others'.
    pub slow_factor: u32,
    /// And for so long.
    pub slow_after: Duration,
    /// Time between two nodes that are taken out for being slow.
    pub slow_rest: Duration,
    /// A node that was out has to hear the others for so long before it comes back.
    pub return_after: Duration,
    /// A node that has been in use for so long again may be taken out as if it were the first time.
    pub forgiven_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(100),
            silent_after: Duration::from_millis(350),
            refusals: 2,
            one_sided_after: Duration::from_secs(2),
            turn: Duration::from_millis(60),
            slow_factor: 10,
            slow_after: Duration::from_secs(2),
            slow_rest: Duration::from_secs(10),
            return_after: Duration::from_secs(1),
            forgiven_after: Duration::from_secs(60),
        }
    }
}

/// Writes that take less than this are never slow, whatever the others' take.
const SLOW_FLOOR_US: u32 = 5_000;
/// The longest wait before a return.
const RETURN_MAX: Duration = Duration::from_secs(32);

/// What a node knows of another.
#[derive(Clone, Debug)]
struct Peer {
    /// When it answered last, or when it was first heard of.
    heard: Time,
    /// Whether it has ever answered.
    has_answered: bool,
    /// Beats since then that found nobody listening.
    refusals: u32,
    /// Since when it has been suspected.
    suspected: Option<Time>,
    /// What it said last.
    account: Account,
    /// Since when it has been slow.
    slow: Option<Time>,
}

/// Watches the other nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Detector {
    me: NodeId,
    timing: Timing,
    peers: BTreeMap<NodeId, Peer>,
    /// When most of the others began to be heard without a break.
    steady: Option<Time>,
    last_slow: Option<Time>,
    own: Own,
    planted: Planted,
}

/// What the node knows of its own part.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// Since when it has been in use; `None` if it is not.
    used: Option<Time>,
    /// When it was taken out last.
    out: Option<Time>,
    /// How often in a row it was taken out soon after it had come back.
    outs: u32,
    /// Whether it was slow when it was taken out last.
    was_slow: bool,
    /// When it has looked at the others last.
    ticked: Option<Time>,
    /// When it has gone on after it stood still for so long that the others suspected it.
    resumed: Option<Time>,
}

impl Detector {
    /// A detector for the node `me`, which knows nobody yet.
    pub fn new(me: NodeId, timing: Timing, planted: Planted) -> Self {
        Self {
            me,
            timing,
            peers: BTreeMap::new(),
            steady: None,
            last_slow: None,
            own: Own::default(),
            planted,
        }
    }

    /// These are the cluster's nodes from now on.
    pub fn watch(&mut self, now: Time, nodes: impl Iterator<Item = NodeId>) {
        let nodes: BTreeSet<NodeId> = nodes.filter(|&node| node != self.me).collect();
        self.peers.retain(|node, _| nodes.contains(node));
        for node in nodes {
            self.peers.entry(node).or_insert_with(|| Peer {
                heard: now,
                has_answered: false,
                refusals: 0,
                suspected: None,
                account: Account { node, ..Account::default() },
                slow: None,
            });
        }
    }

    /// A node has answered a beat. Whether that is news: it hears others than before, or stands otherwise.
    pub fn answered(&mut self, now: Time, account: Account) -> bool {
        if let Some(peer) = self.peers.get_mut(&account.node) {
            peer.heard = now;
            peer.has_answered = true;
            peer.refusals = 0;
            peer.suspected = None;
        }
        self.told(account)
    }

    /// A node has beaten to this one, and says so of itself: no answer, since it need not hear this one. Whether that is news.
    pub fn told(&mut self, account: Account) -> bool {
        let Some(peer) = self.peers.get_mut(&account.node) else { return false };
        let is_news = peer.account.suspects != account.suspects || peer.account.state != account.state;
        peer.account = account;
        is_news
    }

    /// When the next node will have been silent for long enough to be suspected, if none answers until then.
    pub fn silent_at(&self) -> Option<Time> {
        let heard = self.peers.values().filter(|peer| peer.suspected.is_none()).map(|peer| peer.heard);
        heard.min().map(|heard| heard + self.timing.silent_after)
    }

    /// Nobody listens at a node's address. Whether it has just become suspect by that.
    pub fn refused(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else { return false };
        peer.refusals = peer.refusals.saturating_add(1);
        peer.refusals == self.timing.refusals
    }

    /// Time has passed: decides anew who is suspected, and who is slow.
    pub fn tick(&mut self, now: Time) {
        let Timing { silent_after, refusals, slow_factor, .. } = self.timing;
        self.resumes(now);
        self.own.ticked = Some(now);
        let medians: BTreeMap<NodeId, Option<u32>> =
            self.peers.keys().map(|&node| (node, self.median_write_us(node))).collect();
        for (node, peer) in &mut self.peers {
            let is_silent = now.since(peer.heard) >= silent_after || peer.refusals >= refusals;
            peer.suspected = if is_silent { peer.suspected.or(Some(now)) } else { None };
            let is_slow = is_slow(peer.account.write_us, medians[node], slow_factor);
            peer.slow = if is_slow && !is_silent { peer.slow.or(Some(now)) } else { None };
        }
        let heard = self.peers.values().filter(|peer| peer.suspected.is_none()).count();
        let is_majority = 2 * (heard + 1) > self.peers.len() + 1;
        self.steady = if is_majority { self.steady.or(Some(now)) } else { None };
    }

    /// The median of what the nodes other than `node` say of their writes; `None` if none of them writes.
    fn median_write_us(&self, node: NodeId) -> Option<u32> {
        let others = self.peers.iter().filter(|(other, peer)| **other != node && peer.suspected.is_none());
        let mut times: Vec<u32> =
            others.map(|(_, peer)| peer.account.write_us).filter(|&us| us > 0).collect();
        times.sort_unstable();
        (!times.is_empty()).then(|| times[(times.len() - 1) / 2])
    }

    /// A newer layout has come: whether the node itself is in use there; and how long its own writes took before.
    pub fn note_used(&mut self, now: Time, is_used: bool, write_us: u32) {
        if is_used {
            self.own.used.get_or_insert(now);
        } else if let Some(since) = self.own.used.take() {
            let is_again = self.own.out.is_some() && now.since(since) < self.timing.forgiven_after;
            self.own.outs = if is_again { self.own.outs + 1 } else { 0 };
            self.resumes(now);
            // A write that was under way while the whole node stood still says nothing of its drive.
            let stood = self.own.resumed.is_some_and(|at| now.since(at) < self.timing.slow_after);
            let is_slow = is_slow(write_us, self.median_write_us(self.me), self.timing.slow_factor);
            self.own.was_slow = is_slow && !stood;
            self.own.out = Some(now);
        }
    }

    /// Notes that the node has stood still, as a virtual machine that is paused does, if nothing was looked at for long.
    fn resumes(&mut self, now: Time) {
        if self.own.ticked.is_some_and(|last| now.since(last) >= self.timing.silent_after) {
            self.own.resumed = Some(now);
        }
    }

    /// Whether the node, which is not in use, has heard most of the others for long enough to come back. One that `is_needed`,
    /// because too few are in use, waits no longer than the first time.
    pub fn may_return(&self, now: Time, is_needed: bool) -> bool {
        let Timing { slow_rest, return_after, .. } = self.timing;
        let first = if self.own.was_slow { slow_rest } else { return_after };
        let longer = first.saturating_mul(1 << self.own.outs.min(16)).min(RETURN_MAX);
        let wait = if is_needed { return_after } else { longer };
        self.steady
            .is_some_and(|steady| now.since(self.own.out.map_or(steady, |out| out.max(steady))) >= wait)
    }

    /// Whether most of the nodes that this one hears do not hear it.
    pub fn is_unheard(&self) -> bool {
        let heard = || self.peers.values().filter(|peer| peer.suspected.is_none());
        2 * heard().filter(|peer| peer.account.suspects.contains(&self.me)).count() > heard().count()
    }

    /// Whether the link to one of `in_use` is broken, which most of the nodes that are heard do hear: whatever this node proposes now would take
    /// that one out, since it could not be sealed, or be followed by a layout without this one.
    pub fn is_cut_off_from_some(&self, in_use: &BTreeSet<NodeId>) -> bool {
        self.peers.iter().filter(|(node, _)| in_use.contains(node)).any(|(&node, peer)| {
            match peer.suspected {
                Some(_) => !self.most_suspect(node),
                None => peer.account.suspects.contains(&self.me),
            }
        })
    }

    /// Nodes that this one does not hear, in order: what it tells the others.
    pub fn suspects(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.suspected.is_some()).map(|(&node, _)| node).collect()
    }

    /// Whether most of the cluster is heard.
    pub fn is_steady(&self) -> bool {
        self.steady.is_some()
    }

    /// Nodes that said last that they have no room, in order.
    pub fn full(&self) -> BTreeSet<NodeId> {
        let full = self.peers.iter().filter(|(_, peer)| peer.account.state == NodeState::Full);
        full.map(|(&node, _)| node).collect()
    }

    /// Whether every other node has answered at least once.
    pub fn has_heard_all(&self) -> bool {
        self.peers.values().all(|peer| peer.has_answered)
    }

    /// Of `in_use`, the nodes that the cluster should go on without, as far as it is this node's turn to say so. Empty if
    /// this node does not hear a majority of the cluster: it is itself that is cut off then.
    pub fn lost(&self, now: Time, in_use: &BTreeSet<NodeId>) -> Vec<NodeId> {
        if self.steady.is_none() && !self.planted.is(PlantedBug::CutOffNodeEjects) {
            return Vec::new();
        }
        let mut lost = Vec::new();
        for (&node, peer) in self.peers.iter().filter(|(node, _)| in_use.contains(node)) {
            let since = match peer.suspected {
                Some(since) if self.most_suspect(node) => Some(since),
                Some(since) if node > self.me && now.since(since) >= self.timing.one_sided_after => {
                    Some(since)
                }
                Some(_) => None,
                None if matches!(peer.account.state, NodeState::Leaving | NodeState::Failed) => {
                    Some(peer.heard)
                }
                None => peer.slow.filter(|&since| {
                    now.since(since) >= self.timing.slow_after
                        && self.last_slow.is_none_or(|last| now.since(last) >= self.timing.slow_rest)
                }),
            };
            let turn = self.timing.turn * self.turns_before(in_use);
            if since.is_some_and(|since| now.since(since) >= turn) {
                lost.push(node);
            }
        }
        // One slow node at a time.
        let is_slow = |node: &NodeId| self.peers.get(node).is_some_and(|peer| peer.slow.is_some());
        if let Some(first) = lost.iter().position(is_slow) {
            let first = lost[first];
            lost.retain(|node| !is_slow(node) || *node == first);
        }
        lost
    }

    /// A layout without these nodes was decided.
    pub fn taken_out(&mut self, now: Time, nodes: &[NodeId]) {
        for node in nodes {
            if let Some(peer) = self.peers.get_mut(node)
                && peer.slow.take().is_some()
            {
                self.last_slow = Some(now);
            }
        }
    }

    /// Whether most of the nodes that this one hears, itself among them, do not hear `node`.
    fn most_suspect(&self, node: NodeId) -> bool {
        let heard = self.peers.iter().filter(|(other, peer)| **other != node && peer.suspected.is_none());
        let (mut voters, mut votes) = (1, 1);
        for (_, peer) in heard {
            voters += 1;
            votes += usize::from(peer.account.suspects.contains(&node));
        }
        2 * votes > voters
    }

    /// Nodes in use with a lower id that are heard: they go first.
    fn turns_before(&self, in_use: &BTreeSet<NodeId>) -> u32 {
        let lower = self.peers.range(..self.me);
        lower.filter(|(node, peer)| in_use.contains(node) && peer.suspected.is_none()).count() as u32
    }
}

/// Whether a node that takes `own_us` to store a write is slow where the others take `median_us`.
fn is_slow(own_us: u32, median_us: Option<u32>, factor: u32) -> bool {
    median_us.is_some_and(|median| own_us >= SLOW_FLOOR_US && own_us / factor.max(1) >= median.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn account(node: u64, suspects: &[u64]) -> Account {
        Account {
            node: NodeId(node),
            suspects: suspects.iter().map(|&node| NodeId(node)).collect(),
            ..Account::default()
        }
    }

    fn watching(me: u64, count: u64) -> (Detector, BTreeSet<NodeId>) {
        let mut detector = Detector::new(NodeId(me), Timing::default(), Planted::NONE);
        let nodes: BTreeSet<NodeId> = (1..=count).map(NodeId).collect();
        detector.watch(at(0), nodes.iter().copied());
        (detector, nodes)
    }

    /// Answers of `nodes` at `ms`, each with its suspects, and then a tick.
    fn beat(detector: &mut Detector, ms: u64, answers: &[(u64, &[u64])]) {
        for &(node, suspects) in answers {
            detector.answered(at(ms), account(node, suspects));
        }
        detector.tick(at(ms));
    }

    #[test]
    fn a_silent_node_is_lost_when_most_of_those_heard_suspect_it() {
        let (mut detector, nodes) = watching(1, 3);
        for ms in (0..400).step_by(100) {
            beat(&mut detector, ms, &[(2, &[])]);
            let expected: &[NodeId] = if ms < 350 { &[] } else { &[NodeId(3)] };
            assert_eq!(detector.suspects(), expected, "{ms}");
        }
        beat(&mut detector, 400, &[(2, &[])]);
        assert_eq!(detector.lost(at(400), &nodes), [], "node 2 still hears it");
        beat(&mut detector, 500, &[(2, &[3])]);
        assert_eq!(detector.lost(at(500), &nodes), [NodeId(3)]);
        assert_eq!(detector.lost(at(500), &[NodeId(2)].into()), [], "it is out already");
    }

    #[test]
    fn a_node_that_nobody_listens_for_is_suspected_at_once_and_forgiven_when_it_answers() {
        let (mut detector, _) = watching(2, 3);
        detector.refused(NodeId(1));
        beat(&mut detector, 10, &[(3, &[])]);
        assert_eq!(detector.suspects(), []);
        detector.refused(NodeId(1));
        beat(&mut detector, 20, &[(3, &[])]);
        assert_eq!(detector.suspects(), [NodeId(1)]);
        beat(&mut detector, 30, &[(1, &[]), (3, &[])]);
        assert_eq!(detector.suspects(), []);
    }

    #[test]
    fn who_hears_no_majority_takes_nobody_out() {
        let (mut detector, nodes) = watching(1, 3);
        for ms in (0..3000).step_by(100) {
            beat(&mut detector, ms, &[]);
            assert_eq!(detector.lost(at(ms), &nodes), []);
        }
        assert!(!detector.is_steady());
        let mut planted = Detector { planted: Planted::bug(PlantedBug::CutOffNodeEjects), ..detector };
        planted.tick(at(3100));
        assert_ne!(planted.lost(at(3100), &nodes), []);
    }

    #[test]
    fn a_broken_link_takes_out_the_higher_of_its_two_ends_and_late() {
        let (mut low, nodes) = watching(1, 3);
        let (mut high, _) = watching(2, 3);
        for ms in (0..=2300).step_by(100) {
            beat(&mut low, ms, &[(3, &[])]);
            beat(&mut high, ms, &[(3, &[])]);
            assert_eq!(low.lost(at(ms), &nodes), [], "{ms}");
        }
        beat(&mut low, 2400, &[(3, &[])]);
        beat(&mut high, 9000, &[(3, &[])]);
        assert_eq!(low.lost(at(2400), &nodes), [NodeId(2)]);
        assert_eq!(high.lost(at(9000), &nodes), [], "the lower one goes first, and it is enough");
    }

    #[test]
    fn the_lowest_that_is_heard_proposes_first() {
        let (mut detector, nodes) = watching(3, 4);
        for ms in (0..=400).step_by(100) {
            beat(&mut detector, ms, &[(1, &[4]), (2, &[4])]);
        }
        // Suspected at 400 (silent for 350 ms), and two nodes go first.
        assert_eq!(detector.lost(at(500), &nodes), []);
        assert_eq!(detector.lost(at(520), &nodes), [NodeId(4)]);
    }

    #[test]
    fn a_slow_node_is_lost_after_two_seconds_and_only_one_of_them() {
        let (mut detector, nodes) = watching(1, 5);
        let mut beat = |ms| {
            for (node, write_us) in [(2, 1_000), (3, 900), (4, 100_000), (5, 90_000)] {
                detector.answered(at(ms), Account { write_us, ..account(node, &[]) });
            }
            detector.tick(at(ms));
            let lost = detector.lost(at(ms), &nodes);
            detector.taken_out(at(ms), &lost);
            lost
        };
        let lost: Vec<(u64, Vec<NodeId>)> = (0..14_000).step_by(100).map(|ms| (ms, beat(ms))).collect();
        let lost: Vec<_> = lost.into_iter().filter(|(_, lost)| !lost.is_empty()).collect();
        assert_eq!(lost.len(), 2, "{lost:?}");
        assert_eq!((lost[0].0, &lost[0].1[..]), (2_000, &[NodeId(4)][..]));
        assert!(lost[1].0 >= 12_000, "{lost:?}");
    }

    #[test]
    fn what_the_others_say_in_their_own_beats_counts_and_is_no_sign_that_they_hear_this_one() {
        // Else a node that is gone is missed up to a beat later, when this one has asked them.
        let (mut detector, nodes) = watching(1, 3);
        beat(&mut detector, 0, &[(2, &[]), (3, &[])]);
        beat(&mut detector, 100, &[(2, &[])]);
        assert_eq!(detector.silent_at(), Some(at(350)));
        detector.tick(at(350));
        assert_eq!((detector.suspects(), detector.lost(at(350), &nodes)), (vec![NodeId(3)], vec![]));
        assert!(detector.told(account(2, &[3])), "that is news");
        assert!(!detector.told(account(2, &[3])), "and then no more");
        assert_eq!(detector.lost(at(350), &nodes), [NodeId(3)]);
        assert_eq!(detector.silent_at(), Some(at(450)), "node 2 has not answered since");
        detector.told(account(2, &[]));
        detector.tick(at(450));
        assert_eq!(detector.suspects(), [NodeId(2), NodeId(3)]);
        assert_eq!(detector.silent_at(), None);
        assert!(!detector.told(account(4, &[1])), "it is no member");
    }

    #[test]
    fn a_node_that_leaves_is_lost_at_once() {
        let (mut detector, nodes) = watching(1, 3);
        detector.answered(at(0), Account { state: NodeState::Leaving, ..account(3, &[]) });
        beat(&mut detector, 0, &[(2, &[])]);
        assert_eq!(detector.lost(at(0), &nodes), [NodeId(3)]);
    }

    #[test]
    fn a_node_that_is_taken_out_again_and_again_comes_back_later_each_time() {
        let (mut detector, _) = watching(1, 3);
        beat(&mut detector, 0, &[(2, &[]), (3, &[])]);
        let mut now_ms = 0;
        for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000] {
            detector.note_used(at(now_ms), true, 0);
            detector.note_used(at(now_ms + 500), false, 0);
            now_ms += 500 + wait_ms;
            assert!(!detector.may_return(at(now_ms - 1), false), "{wait_ms}");
            assert!(detector.may_return(at(now_ms), false), "{wait_ms}");
            assert!(detector.may_return(at(now_ms - wait_ms + 1_000), true), "it is needed");
        }
        detector.note_used(at(now_ms), true, 0);
        detector.note_used(at(now_ms + 60_000), false, 0);
        assert!(detector.may_return(at(now_ms + 61_000), false), "it was in use for a minute");
    }

    #[test]
    fn a_node_is_unheard_while_most_of_those_that_it_hears_say_so() {
        let (mut detector, _) = watching(3, 4);
        for (ms, answers, is_unheard) in [
            // Node 4 is taken to be there until it has been silent for a while.
            (0, [(1, &[3][..]), (2, &[3])], true),
            (100, [(1, &[3]), (2, &[])], false),
            (200, [(1, &[2, 4]), (2, &[3, 4])], false),
            (300, [(1, &[3]), (2, &[3])], true),
        ] {
            beat(&mut detector, ms, &answers);
            assert_eq!(detector.is_unheard(), is_unheard, "{ms}");
        }
        detector.tick(at(3_000));
        assert!(!detector.is_unheard(), "nobody is heard");
    }

    #[test]
    fn who_is_cut_off_from_one_in_use_that_the_others_hear_is_told_by_either_end() {
        let (mut detector, nodes) = watching(3, 4);
        for (ms, answers, is_cut_off) in [
            (0, vec![(1, &[][..]), (2, &[]), (4, &[])], false),
            (400, vec![(1, &[]), (4, &[])], true),
            (500, vec![(1, &[2]), (4, &[2])], false),
            (600, vec![(1, &[]), (2, &[3]), (4, &[])], true),
            (700, vec![(1, &[]), (2, &[]), (4, &[])], false),
        ] {
            beat(&mut detector, ms, &answers);
            assert_eq!(detector.is_cut_off_from_some(&nodes), is_cut_off, "{ms}");
        }
        beat(&mut detector, 1_200, &[(1, &[]), (2, &[])]);
        assert!(detector.is_cut_off_from_some(&nodes));
        assert!(!detector.is_cut_off_from_some(&[NodeId(1), NodeId(2)].into()), "node 4 is out already");
    }

    #[test]
    fn a_node_that_stood_still_is_not_slow() {
        let answered = |detector: &mut Detector, ms| {
            for node in [2, 3] {
                detector.answered(at(ms), Account { write_us: 1_000, ..account(node, &[]) });
            }
            detector.tick(at(ms));
        };
        // When it looked at the others before it was told, at 2,600, that it is out.
        let (always, stood) = ((100..2_600).step_by(100).collect(), vec![100]);
        let has_looked_since = vec![100, 2_590];
        for (looks, is_slow) in [(always, true), (stood, false), (has_looked_since, false)] {
            let (mut detector, _) = watching(1, 3);
            answered(&mut detector, 0);
            detector.note_used(at(0), true, 0);
            looks.iter().for_each(|ms| answered(&mut detector, *ms));
            detector.note_used(at(2_600), false, 2_500_000);
            (2_600..=3_700).step_by(100).for_each(|ms| answered(&mut detector, ms));
            assert_eq!(detector.may_return(at(3_700), false), !is_slow, "{looks:?}");
        }
    }

    #[test]
    fn a_slow_node_stays_out_longer() {
        let (mut detector, _) = watching(1, 3);
        for node in [2, 3] {
            detector.answered(at(0), Account { write_us: 1_000, ..account(node, &[]) });
        }
        detector.tick(at(0));
        detector.note_used(at(0), true, 0);
        detector.tick(at(300));
        detector.note_used(at(500), false, 100_000);
        assert!(!detector.may_return(at(10_499), false));
        assert!(detector.may_return(at(10_500), false));
    }
}
