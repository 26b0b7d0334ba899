//! The drives of a node's unit: which there are, and orders to change them while it serves.
//!
//! ```text
//!   ChangeDrives ──► order ──► carried out, one after the other ──► DrivesChanged
//!        │                          ▲
//!        └── the same again ────────┘ waits for the one that is under way
//! ```
//!
//! An order that was taken is carried out whether anybody waits for it or not. What a change is, step by step, is the chain's
//! (docs/protocol/drives.md).

mod change;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{LinkStats, SideState};
use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_env::task::{TaskHandle, race};

use super::remembered::Remembered;
use super::reply::ReplyRoute;
use super::tasks::Tasks;
use super::unit_shell::UnitShell;
use crate::limits;
use crate::pos::NodeId;
use crate::wire::{ChangeDrives, DriveChange, Drives, DrivesChanged, Refusal, UnitDrive};

/// Orders that a node has at the most, the one that it carries out among them.
const ORDERS_MAX: usize = 16;

/// The drives of a unit, and what is to become of them.
pub(super) struct DriveOrders {
    env: Env,
    node: NodeId,
    unit: Rc<UnitShell>,
    /// Bytes that a new drive is created with, unless the order says it.
    create_bytes: u64,
    /// Where the drives are, for the next start.
    remembered: Rc<Remembered>,
    /// Those that were taken; the first one is being carried out.
    orders: RefCell<VecDeque<Rc<Order>>>,
    /// Rings when one is taken.
    taken: Notify,
}

/// A change that was asked for.
struct Order {
    change: DriveChange,
    /// What came of it, once it is over.
    outcome: RefCell<Option<DrivesChanged>>,
    /// Rings then.
    ended: Notify,
}

impl DriveOrders {
    /// Takes orders for the drives of `unit`, and goes on with those that an earlier life was not done with. The task carries them out;
    /// abort it to stop the unit where it stands.
    pub(super) fn start(
        env: &Env,
        node: NodeId,
        unit: &Rc<UnitShell>,
        create_bytes: u64,
        remembered: &Rc<Remembered>,
    ) -> (Rc<Self>, TaskHandle<()>) {
        let drives = Rc::new(Self {
            env: env.clone(),
            node,
            unit: Rc::clone(unit),
            create_bytes,
            remembered: Rc::clone(remembered),
            orders: RefCell::default(),
            taken: Notify::default(),
        });
        drives.go_on();
        let working = env.spawn(carry_out(Rc::clone(&drives)));
        (drives, working)
    }

    /// Takes up removals that a stop or a crash has interrupted.
    fn go_on(&self) {
        let links = self.unit.chain().stats().links;
        let held = self.remembered.unit(self.node).map(|paths| paths.held).unwrap_or_default();
        for link in held.iter().filter(|link| link.is_leaving) {
            let is_of = |drive: &&LinkStats| link.sides.iter().any(|side| *side == Path::new(&drive.drive));
            let Some(number) = links.iter().find(is_of).map(|drive| drive.link) else { continue };
            let sides = links.iter().filter(|drive| drive.link == number && drive.is_there);
            let paths = sides.map(|drive| drive.drive.clone()).collect();
            self.take(DriveChange::Remove { paths });
        }
    }

    /// The drives of the unit, in the order of its chain.
    pub(super) fn list(&self) -> Drives {
        let stats = self.unit.chain().stats();
        let drives = stats.links.iter().map(|link| unit_drive(link, stats.segment_bytes));
        Drives { node: self.node, drives: drives.collect() }
    }

    /// Takes an order, unless the same one is under way, and answers when it is over, or after a while all the same.
    pub(super) fn change(self: &Rc<Self>, waits: &Rc<Tasks>, route: ReplyRoute, asked: ChangeDrives) {
        let ChangeDrives { node, wait_ms, change } = asked;
        if node != self.node {
            return route.refuse(Refusal::WrongNode { node: self.node });
        }
        let Some(order) = self.take(change) else {
            let (pending, limit) = (ORDERS_MAX as u64, ORDERS_MAX as u64);
            return route.refuse(Refusal::Overloaded { pending, limit });
        };
        if waits.len() >= limits::WAITS_MAX_COUNT {
            return route.send(&self.outcome(&order));
        }
        let (drives, span) = (Rc::clone(self), Duration::from_millis(wait_ms.into()));
        waits.spawn(&self.env, async move {
            let is_over = || order.outcome.borrow().is_some().then_some(());
            race(order.ended.until(is_over), drives.env.sleep(span)).await;
            route.send(&drives.outcome(&order));
        });
    }

    /// The order to do so: the one that is under way, or a new one. `None` if there are too many.
    fn take(&self, mut change: DriveChange) -> Option<Rc<Order>> {
        if let DriveChange::Remove { paths } = &mut change {
            paths.sort();
        }
        let mut orders = self.orders.borrow_mut();
        let taken: Vec<&DriveChange> = orders.iter().map(|order| &order.change).collect();
        if let Some(same) = same_order(&taken, &change) {
            return Some(Rc::clone(&orders[same]));
        }
        if orders.len() >= ORDERS_MAX {
            return None;
        }
        let order = Rc::new(Order { change, outcome: RefCell::default(), ended: Notify::default() });
        orders.push_back(Rc::clone(&order));
        self.taken.ring();
        Some(order)
    }

    /// What came of an order, or how far it is.
    fn outcome(&self, order: &Order) -> DrivesChanged {
        let outcome = order.outcome.borrow().clone();
        outcome.unwrap_or_else(|| {
            let stats = self.unit.chain().stats();
            let left = stats.links.iter().filter(|link| link.is_leaving).map(|link| link.segments_live).max();
            DrivesChanged::UnderWay { left: left.unwrap_or(0) }
        })
    }
}

/// Carries out orders as they are taken, for as long as the unit serves.
async fn carry_out(drives: Rc<DriveOrders>) {
    loop {
        let order = drives.taken.until(|| drives.orders.borrow().front().cloned()).await;
        let node = drives.node.0;
        let outcome = match drives.carry_out(&order.change).await {
            Ok(()) => {
                tracing::info!(node, change = ?order.change, "the unit's drives are changed");
                DrivesChanged::Done
            }
            Err(error) => {
                match error.is_of_order() {
                    // Whoever asked is told.
                    true => tracing::info!(node, %error, "an order about drives is refused"),
                    false => tracing::warn!(node, %error, "the unit's drives are not changed as was asked"),
                }
                error.to_outcome()
            }
        };
        order.outcome.replace(Some(outcome));
        drives.orders.borrow_mut().pop_front();
        order.ended.ring();
    }
}

/// Which of the orders that were taken, in their order, does what `change` asks for. None if a later one is about one of its drives, and may
/// undo it.
fn same_order(orders: &[&DriveChange], change: &DriveChange) -> Option<usize> {
    let is_about = |order: &&DriveChange| paths_of(order).any(|path| paths_of(change).any(|own| own == path));
    orders.iter().rposition(is_about).filter(|&last| orders[last] == change)
}

/// Every drive that a change names.
fn paths_of(change: &DriveChange) -> impl Iterator<Item = &String> {
    let (of, paths) = match change {
        DriveChange::Add { paths, .. } | DriveChange::Remove { paths } => (None, paths),
        DriveChange::Mirror { of, paths, .. } => (Some(of), paths),
    };
    of.into_iter().chain(paths)
}

fn unit_drive(link: &LinkStats, segment_bytes: u64) -> UnitDrive {
    let path = if link.is_there { cut(&link.drive, limits::DRIVE_PATH_MAX_BYTES) } else { "" };
    UnitDrive {
        id: link.id,
        link: link.link,
        is_tail: link.is_tail,
        is_stale: link.state == SideState::Stale,
        is_asleep: link.is_asleep,
        is_leaving: link.is_leaving,
        is_there: link.is_there,
        segments: link.segments,
        free: link.segments_free,
        live: link.segments_live,
        data_bytes: link.data_bytes,
        size_bytes: link.segments * segment_bytes,
        path: path.to_owned(),
    }
}

/// As much of a text as so many bytes hold.
fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    fn remove(path: &str) -> DriveChange {
        DriveChange::Remove { paths: paths(&[path]) }
    }

    fn add(path: &str) -> DriveChange {
        DriveChange::Add { paths: paths(&[path]), create_bytes: 0 }
    }

    fn mirror(of: &str, path: &str) -> DriveChange {
        DriveChange::Mirror { of: of.to_owned(), paths: paths(&[path]), create_bytes: 0 }
    }

    /// The order among `taken` that is waited for, if it is not a new one.
    fn same(taken: &[DriveChange], change: &DriveChange) -> Option<usize> {
        same_order(&taken.iter().collect::<Vec<_>>(), change)
    }

    #[test]
    fn the_same_order_again_waits_for_the_first_unless_another_one_about_its_drives_comes_between() {
        // Whoever removed the drive last would be told that it is done, and then it would be added.
        let taken = [remove("/a"), add("/b"), remove("/c")];
        assert_eq!(same(&taken, &remove("/a")), Some(0));
        assert_eq!(same(&taken, &add("/b")), Some(1));
        assert_eq!(same(&taken, &add("/a")), None);
        for between in [add("/a"), mirror("/b", "/a"), mirror("/a", "/b")] {
            let taken = [remove("/a"), between.clone()];
            assert_eq!(same(&taken, &remove("/a")), None, "{between:?}");
            assert_eq!(same(&taken, &between), Some(1));
        }
        let taken = [remove("/a"), add("/a"), remove("/a"), add("/b")];
        assert_eq!(same(&taken, &remove("/a")), Some(2));
    }
}
