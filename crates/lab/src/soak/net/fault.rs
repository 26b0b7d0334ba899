//! What goes wrong, and when: a list of events that a seed decides, each of one fault or of two at once.

use std::time::Duration;

use ithaca_env::sim::Random;

/// Packets lost out of a hundred.
const LOSSES: [u64; 3] = [5, 20, 50];
/// Packets out of a thousand that are answered with a reset.
const RESETS: [u64; 3] = [1, 10, 100];
/// Events out of a hundred that begin while the cluster still gets over the one before.
const AT_ONCE_PERCENT: u64 = 30;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL, and a start with a monotonic clock that began at another time.
    Kill,
    /// SIGKILL of all nodes at once.
    KillAll,
    /// SIGSTOP and SIGCONT.
    Pause,
    /// Nothing comes or goes.
    Isolated,
    /// The same, and whoever tries is told so.
    IsolatedReset,
    /// Two nodes do not reach each other.
    Apart,
    /// The same, and they are told so.
    ApartReset,
    /// A node does not hear one other.
    Deaf,
    /// Nobody hears a node.
    Mute,
    /// No client reaches a node, while the nodes reach each other.
    NoClients,
    /// Some packets are lost.
    Loss,
    /// Some packets are answered with a reset.
    Resets,
    /// Writes hang.
    HungDisk,
    /// Writes hang again and again.
    SlowDisk,
    /// The file system has no room to grow, and the log fills what there is.
    FullDisk,
    /// The file system loses its power.
    PowerCut,
    /// A killed node has lost its data directory and is replaced.
    Wiped,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 17] = [
        Self::Kill,
        Self::KillAll,
        Self::Pause,
        Self::Isolated,
        Self::IsolatedReset,
        Self::Apart,
        Self::ApartReset,
        Self::Deaf,
        Self::Mute,
        Self::NoClients,
        Self::Loss,
        Self::Resets,
        Self::HungDisk,
        Self::SlowDisk,
        Self::FullDisk,
        Self::PowerCut,
        Self::Wiped,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillAll => "kill of all",
            Self::Pause => "pause",
            Self::Isolated => "isolated",
            Self::IsolatedReset => "isolated with resets",
            Self::Apart => "two apart",
            Self::ApartReset => "two apart with resets",
            Self::Deaf => "deaf to one",
            Self::Mute => "mute",
            Self::NoClients => "no clients",
            Self::Loss => "loss",
            Self::Resets => "resets",
            Self::HungDisk => "hung disk",
            Self::SlowDisk => "slow disk",
            Self::FullDisk => "full disk",
            Self::PowerCut => "power cut",
            Self::Wiped => "wiped",
        }
    }

    /// Whether it may come beside another. A full drive needs the log to go on, or it would not be filled; data that is
    /// lost must be the only data that is not there.
    fn may_pair(self) -> bool {
        !matches!(self, Self::KillAll | Self::FullDisk | Self::Wiped)
    }

    /// Whether the cluster must have got over everything before: this takes a copy away for good.
    fn waits(self) -> bool {
        matches!(self, Self::Wiped | Self::FullDisk)
    }
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// To which node.
    pub node: usize,
    /// The node at the other end, for links between two.
    pub other: usize,
    /// How much, for what has an amount.
    pub amount: u64,
}

impl Fault {
    fn draw(random: &mut Random, kind: Kind, node: usize, nodes: usize) -> Self {
        let other = (node + random.below(nodes as u64 - 1) as usize) % nodes + 1;
        let amounts = if kind == Kind::Loss { LOSSES } else { RESETS };
        Self { kind, node, other, amount: amounts[random.below(3) as usize] }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, node, other, amount } = self;
        match kind {
            Kind::KillAll => write!(f, "{}", kind.name()),
            Kind::Apart | Kind::ApartReset | Kind::Deaf => write!(f, "{}: {node}-{other}", kind.name()),
            Kind::Loss => write!(f, "{amount} % {}: {node}", kind.name()),
            Kind::Resets => write!(f, "{amount} per mille {}: {node}", kind.name()),
            _ => write!(f, "{}: {node}", kind.name()),
        }
    }
}

/// Faults that begin and are healed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// One or two, at different nodes.
    pub faults: Vec<Fault>,
    /// How long they last.
    pub hold: Duration,
    /// Whether the cluster has got over the event before.
    pub waits: bool,
}

impl Event {
    /// What results call it.
    pub fn name(&self) -> &'static str {
        match &self.faults[..] {
            [fault] => fault.kind.name(),
            _ => "two at once",
        }
    }
}

/// One event of each of `kinds`, in an order of its own, and `pairs` of two faults among them. A drive that has no room is
/// filled first: later it might be full before its turn. Then come drives that hang: a node that is slow waits the longer before
/// it returns the more often it was taken out before.
pub fn plan(
    random: &mut Random,
    kinds: &[Kind],
    nodes: usize,
    pairs: u64,
    hold_seconds: (f64, f64),
) -> Vec<Event> {
    let mut events = Vec::new();
    let mut event = |random: &mut Random, faults: Vec<Fault>| {
        let hold = Duration::from_secs_f64(random.within(hold_seconds.0, hold_seconds.1));
        let waits = faults.iter().any(|fault| fault.kind.waits()) || !random.percent(AT_ONCE_PERCENT);
        events.push(Event { faults, hold, waits });
    };
    let node = |random: &mut Random| 1 + random.below(nodes as u64) as usize;
    for &kind in kinds {
        let node = node(random);
        let fault = Fault::draw(random, kind, node, nodes);
        event(random, vec![fault]);
    }
    let may_pair: Vec<Kind> = kinds.iter().copied().filter(|kind| kind.may_pair()).collect();
    for _ in 0..if may_pair.is_empty() { 0 } else { pairs } {
        let first = node(random);
        let second = (first + random.below(nodes as u64 - 1) as usize) % nodes + 1;
        let at = |random: &mut Random, node| {
            let kind = may_pair[random.below(may_pair.len() as u64) as usize];
            Fault::draw(random, kind, node, nodes)
        };
        let faults = vec![at(random, first), at(random, second)];
        event(random, faults);
    }
    for last in (1..events.len()).rev() {
        events.swap(last, random.below(last as u64 + 1) as usize);
    }
    events.sort_by_key(|event| match event.faults[0].kind {
        Kind::FullDisk => 0,
        Kind::HungDisk | Kind::SlowDisk => 1,
        _ => 2,
    });
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_every_kind_once_and_its_faults_are_at_different_nodes() {
        for seed in 0..200 {
            let events = plan(&mut Random::new(seed), &Kind::ALL, 3, 5, (1.0, 2.0));
            assert_eq!(events[0].faults[0].kind, Kind::FullDisk);
            for kind in Kind::ALL {
                let alone = events.iter().filter(|event| event.faults.len() == 1);
                assert_eq!(alone.filter(|event| event.faults[0].kind == kind).count(), 1, "{kind:?}");
            }
            for Event { faults, waits, .. } in events {
                assert!(
                    faults.iter().all(|fault| (1..=3).contains(&fault.node) && fault.node != fault.other)
                );
                assert!((1..=3).contains(&faults[0].other));
                if let [first, second] = faults[..] {
                    assert_ne!(first.node, second.node);
                    assert!(first.kind.may_pair() && second.kind.may_pair());
                }
                assert!(waits || faults[0].kind != Kind::Wiped, "a copy more might be missing already");
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_plan_twice() {
        let plan = |seed| plan(&mut Random::new(seed), &Kind::ALL, 5, 3, (1.0, 2.0));
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }
}
