//! Giving up what a unit holds and nobody needs from it: trims reach it only where a stripe lists it (docs/protocol/rebuild.md).
//!
//! * What lies at addresses that no stripe has any more is trimmed here without asking anybody.
//! * What lies on stripes that list others is kept, as it may be what the node comes back with; but what their replicas say is
//!   trimmed is trimmed here too.

use std::rc::{Rc, Weak};

use ithaca_env::task::race;

use super::member::Member;
use super::rebuild::{self, RebuildError};
use crate::layout::{Copy, Layout};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::server::unit_shell::{Copied, UnitShell};
use crate::unit::Holding;

/// Parts of what is held that one request gives up: the unit stores them together.
const PARTS_MAX: usize = limits::RANGES_MAX_COUNT / 2;

/// Gives up what nobody needs from this node, for as long as the member lives.
pub(super) async fn give_up_unneeded(member: Weak<Member>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, keeper) = (strong.env.clone(), Rc::clone(&strong.keeper));
        let (ticket, every) = (keeper.changed().ticket(), strong.options.find_trimmed_every);
        if let (Some(layout), Ok(unit)) = (keeper.latest(), strong.unit())
            && unit.check_epoch(layout.epoch).is_ok()
            && let Err(why) = give_up(&strong, &layout, &unit).await
        {
            tracing::info!(node = strong.options.id.0, epoch = layout.epoch.0, %why, "not all is given up yet");
        }
        drop(strong);
        race(keeper.changed().after(ticket), env.sleep(every)).await;
    }
}

async fn give_up(member: &Rc<Member>, layout: &Layout, unit: &Rc<UnitShell>) -> Result<(), RebuildError> {
    let (me, planted) = (member.options.id, member.options.planted);
    if planted.is(PlantedBug::UnneededKept) {
        return Ok(());
    }
    for unnamed in layout.unnamed() {
        give_up_unnamed(unit, layout.epoch, unnamed).await?;
    }
    for (start, stripe, extent) in layout.listed_elsewhere(me) {
        if !holds_any(unit, extent) {
            continue;
        }
        if planted.is(PlantedBug::KeptCopyGivenUp) {
            trim_held(unit, layout.epoch, extent).await?;
            continue;
        }
        let copy = Copy { start, stripe, node: me };
        // Whoever cannot be asked now is asked the next time.
        if let Err(why) = rebuild::take_trims(member, layout, &copy).await {
            tracing::debug!(node = me.0, %why, "trims of a stripe are not known yet");
        }
    }
    Ok(())
}

/// Gives up what is held at addresses of no stripe. Blocks that are wholly without one become one trimmed range, so that the
/// trims of a log that is trimmed as it grows do not add up; of the block of a stripe only what is held is touched.
async fn give_up_unnamed(unit: &Rc<UnitShell>, epoch: Epoch, unnamed: AddrRange) -> Result<(), RebuildError> {
    let whole_from = Addr(unnamed.start.0.next_multiple_of(limits::STRIPE_ADDRESSES)).min(unnamed.end);
    trim_held(unit, epoch, AddrRange::new(unnamed.start, whole_from)).await?;
    let blocks = AddrRange::new(whole_from, unnamed.end);
    let held = unit.parts(blocks);
    let is_trimmed = |holding: &Holding| *holding == Holding::Trimmed;
    let trims = held.iter().filter(|(_, holding)| is_trimmed(holding)).count();
    if trims <= 1 && !held.iter().any(|(_, holding)| is_held(*holding)) {
        return Ok(());
    }
    let mut start = blocks.start;
    for parts in held.chunks(PARTS_MAX) {
        let end = parts.last().map_or(start, |(part, _)| part.end);
        trim(unit, epoch, vec![AddrRange::new(start, end)]).await?;
        start = end;
    }
    Ok(())
}

async fn trim_held(unit: &Rc<UnitShell>, epoch: Epoch, range: AddrRange) -> Result<(), RebuildError> {
    let parts = unit.parts(range);
    let held: Vec<AddrRange> =
        parts.into_iter().filter(|(_, holding)| is_held(*holding)).map(|(part, _)| part).collect();
    for parts in held.chunks(PARTS_MAX) {
        trim(unit, epoch, parts.to_vec()).await?;
    }
    Ok(())
}

async fn trim(unit: &Rc<UnitShell>, epoch: Epoch, trimmed: Vec<AddrRange>) -> Result<(), RebuildError> {
    let copied = Copied { trimmed, ..Copied::default() };
    unit.restore(epoch, copied).await.map_err(RebuildError::Unit)
}

/// Whether the unit has a record of an address of `extent`, by its account.
pub(super) fn holds_any(unit: &UnitShell, extent: AddrRange) -> bool {
    unit.parts(extent).iter().any(|(_, holding)| is_held(*holding))
}

fn is_held(holding: Holding) -> bool {
    matches!(holding, Holding::Stored | Holding::Voided)
}
