//! What of a unit is on every replica: told to others, learned from them, and shown with leave.

use std::rc::Rc;

use super::UnitShell;
use crate::layout::Layout;
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch, NodeId};
use crate::server::reply::ReplyRoute;
use crate::unit::{Input, Listed, Readable};
use crate::wire::{Mark, Refusal};

impl UnitShell {
    /// From here on `layout` says in which stripes the unit is, which is that of `node`.
    pub(in crate::server) fn list(self: &Rc<Self>, layout: &Layout, node: NodeId) {
        let stripes = layout.ranges.iter().flat_map(|range| {
            range.stripes.iter().enumerate().filter_map(move |(number, stripe)| {
                let last = *stripe.replicas.last()?;
                let extent = range.addresses(number)?;
                let tail = range.address_from(number, layout.tail())?;
                let place = stripe.replicas.iter().position(|&replica| replica == node)?;
                Some(Listed { extent, is_first: place == 0, last: (last != node).then_some(last), tail })
            })
        });
        self.step(Input::Listed { epoch: layout.epoch, stripes: stripes.collect() });
    }

    /// How far stripes are complete whose last replica the unit is, some each time, by the layout of `epoch`; nothing if the unit
    /// has not come to that layout, or is past it.
    pub(in crate::server) fn marks(&self, epoch: Epoch) -> Vec<Mark> {
        let mut from = self.marked_from.get();
        let (known, marks) = self.core.borrow().marks(&mut from, limits::MARKS_MAX_COUNT);
        self.marked_from.set(from);
        if known == epoch { marks } else { Vec::new() }
    }

    /// Another node has marked stripes, by the layout of `epoch`.
    pub(in crate::server) fn mark(self: &Rc<Self>, from: NodeId, epoch: Epoch, marks: Vec<Mark>) {
        self.step(Input::Marked { from, epoch, marks });
    }

    /// Cuts `ranges` to what may be read of them now, or says why nothing may. `committed` asks for what is on every replica only.
    pub(super) fn cut_to_readable(
        &self,
        route: &ReplyRoute,
        ranges: &mut Vec<AddrRange>,
        committed: bool,
    ) -> Result<(), Refusal> {
        let core = self.core.borrow();
        match core.readable(route.epoch(), ranges, committed)? {
            Readable::Served => Ok(()),
            Readable::Complete(_) if !self.leases.may_show() => {
                core.check_epoch(route.epoch()).and(Err(Refusal::NoLease { epoch: route.epoch() }))
            }
            Readable::Complete(complete) => {
                *ranges = complete;
                Ok(())
            }
        }
    }

    /// Whether what was found for `ranges`, which were cut before, may still be shown: the epoch may have ended while the drive was
    /// read, or a part been trimmed.
    pub(super) fn check_readable(
        &self,
        route: &ReplyRoute,
        ranges: &[AddrRange],
        committed: bool,
    ) -> Result<(), Refusal> {
        let mut again = ranges.to_vec();
        self.cut_to_readable(route, &mut again, committed)?;
        if again == ranges {
            return Ok(());
        }
        let addr = ranges.first().map_or(Addr(0), |range| range.start);
        self.check_epoch(route.epoch()).and(Err(Refusal::NotComplete { addr }))
    }
}
