//! What operators ask a node for: carried out one after the other, as a change of layout like any other.
//!
//! An order is about the layout that its sender knew, and is carried out in no later epoch. A node that stood still may come upon one that another node
//! has carried out long ago, and that an operator has undone since.

use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;

use super::member::Member;
use super::reconfigure::{Decided, ReconfigureError, reconfigure};
use crate::layout::Layout;
use crate::pos::Epoch;
use crate::server::reply::ReplyRoute;
use crate::wire::{ChangeCluster, ClusterChanged, Refusal};

/// Orders that wait at the most.
const ORDERS_MAX: usize = 16;
/// How long an order is tried. Whoever gave it may ask another node then.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an operator wants, and who is answered.
pub(super) struct Order {
    asked: ChangeCluster,
    epoch: Epoch,
    route: ReplyRoute,
    until: Time,
}

/// Takes an order; it is carried out when nothing else has to change.
pub(super) fn take(member: &Rc<Member>, route: ReplyRoute, asked: ChangeCluster) {
    let mut orders = member.orders.borrow_mut();
    if orders.len() >= ORDERS_MAX {
        let (pending, limit) = (orders.len() as u64, ORDERS_MAX as u64);
        return route.refuse(Refusal::Overloaded { pending, limit });
    }
    let (epoch, until) = (route.epoch(), member.env.now() + PATIENCE);
    orders.push_back(Order { asked, epoch, route, until });
}

/// Does what the next order asks for, or answers it if it is done or cannot be done.
pub(super) async fn carry_out(member: &Rc<Member>, layout: &Layout) {
    let front = |order: &Order| (layout.change_for(&order.asked), order.epoch, order.until);
    let next = member.orders.borrow().front().map(front);
    let Some((wanted, epoch, until)) = next else { return };
    let Some(change) = wanted else { return answer(member, Ok(layout.epoch)) };
    if layout.epoch < epoch && member.env.now() < until {
        return;
    }
    // A node that was removed has no say.
    if layout.epoch != epoch || layout.node(member.options.id).is_none() {
        return answer(member, Err(Refusal::NotChanged { epoch: layout.epoch }));
    }
    match reconfigure(member, layout, &change).await {
        // Another layout may be older than the loss.
        Ok(Decided::Own) if !change.replaced.is_empty() => answer(member, Ok(epoch.next())),
        // Whether it is so by now shows the layout that was decided, which may be another's.
        Ok(_) => {}
        Err(why) => {
            tracing::info!(node = member.options.id.0, epoch = layout.epoch.0, %why, "an order is not carried out");
            if matches!(why, ReconfigureError::Change(_)) || member.env.now() >= until {
                answer(member, Err(Refusal::NotChanged { epoch: layout.epoch }));
            }
        }
    }
}

fn answer(member: &Rc<Member>, outcome: Result<Epoch, Refusal>) {
    let Some(Order { route, .. }) = member.orders.borrow_mut().pop_front() else { return };
    match outcome {
        Ok(epoch) => route.send_in(epoch, &ClusterChanged { epoch }),
        Err(refusal) => route.refuse(refusal),
    }
}
