//! Whether a chain can be shown as it was right before a group that is lost.
//!
//! What the group held is not known. It may have been copies of records of any age, whose segments a cleaner has freed since: then those
//! are missing at every version. So a census from before it is needed, and all that it names:
//!
//! ```text
//!   segments that the census names    │ census │ group │ group │ lost │ group │ …
//!   all as they were ────────────────►│◄── all of them there ─►│◄── left out
//! ```
//!
//! * Whatever was needed when the census was made lay in a segment that it names, or before it in its own. If each of those is in the
//!   same use still, all of that is there, whoever has made copies of it since.
//! * Whatever was appended since lies in the groups behind it. If none is missing up to the lost one, all of that is there.
//!
//! So nothing that counted right before the lost group is missing. Nor is there anything newer: every closed segment that the census does not
//! name is left out, and so is what stands behind the lost group. docs/decisions/0023 has the argument at length.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Recovered;
use super::judge::{ClosedLaps, Judged, KeptSegment};
use crate::catalog::{Catalog, SegmentState};
use crate::error::{NoRescue, OpenError};
use crate::format::Census;
use crate::links::Links;
use crate::options::ChainOptions;
use crate::planted::PlantedBug;

/// The first groups that are lost, and what lies behind them: none of it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The segment of the lost groups.
    pub segment: u32,
    /// Byte in the segment.
    pub offset: u32,
    /// Their sequence numbers, as far as they are known.
    pub seqs: Range<u64>,
    /// Groups behind them that are there.
    pub groups: u64,
    /// The highest version of a record in those; 0 if there is none.
    pub newest_version: u64,
}

/// What the last census before a lost group says.
pub(super) struct Before {
    named: Census,
    /// Of the segment that it stands in: what is in use for the first time since has a higher one.
    lap: u64,
}

/// Looks for a census before the lost group; there is none to look for if no group is lost. Errors: `AnyAge`, `NoCensus`.
pub(super) fn before(judged: &Judged, closed: &ClosedLaps) -> Result<Option<Before>, NoRescue> {
    let Some(lost) = &judged.left_out else { return Ok(None) };
    let (segment, offset) = (lost.segment, lost.offset);
    // Its segment is closed, or one behind it: those count as a whole, so the log does not end before it.
    if closed.values().any(|end| end.last_seq >= lost.seqs.start) {
        return Err(NoRescue::AnyAge { segment, offset });
    }
    let groups = || judged.segments.iter().flat_map(|kept| &kept.groups);
    let teller = groups().filter(|group| group.area.census.is_some()).last();
    let teller = teller.ok_or(NoRescue::NoCensus { segment, offset })?;
    let told_at = teller.head.identity.seq;
    let since = groups().filter(|group| group.head.identity.seq >= told_at).count() as u64;
    if told_at + since != lost.seqs.start {
        return Err(NoRescue::NoCensus { segment, offset });
    }
    // Where the trailer of a segment is harmed, and what was filled next is in another use, nothing tells whether its last groups are there.
    let seqs: BTreeSet<u64> = groups().map(|group| group.head.identity.seq).collect();
    let unbroken_from = (1..=told_at).rev().take_while(|seq| seqs.contains(seq)).last().unwrap_or(told_at);
    let is_ended = |kept: &&KeptSegment| {
        let last = kept.groups.last().map(|group| group.head.identity.seq);
        closed.contains_key(&kept.lap) || last.is_none_or(|last| last + 1 >= unbroken_from)
    };
    if let Some(KeptSegment { segment, .. }) = judged.segments.iter().find(|kept| !is_ended(kept)) {
        return Err(NoRescue::AnyAge { segment: *segment, offset: 0 });
    }
    let named = teller.area.census.clone().unwrap_or_default();
    Ok(Some(Before { named, lap: teller.head.identity.lap }))
}

/// Why a chain cannot be opened of which that is known too: one without a group to begin with cannot for the same reason.
pub(super) fn why_not(
    error: OpenError,
    before: Option<&Result<Option<Before>, NoRescue>>,
    links: &Links,
) -> OpenError {
    match (error, before) {
        (OpenError::CheckpointLost { .. }, Some(Err(why))) => {
            OpenError::NoRescue { drive: links.names(), why: why.clone() }
        }
        (error, _) => error,
    }
}

/// Whether all is there that counted then, as the catalog has what counts; leaves in it what counted then, and nothing else. Errors:
/// `AnyAge`, `Freed`.
pub(super) fn check(
    before: Option<Before>,
    recovered: &Recovered,
    catalog: &mut Catalog,
    options: &ChainOptions,
) -> Result<(), NoRescue> {
    if let Some(damage) = recovered.damage.iter().find(|damage| damage.is_of_groups()) {
        return Err(NoRescue::AnyAge { segment: damage.segment, offset: damage.offset });
    }
    let (Some(Before { named, lap }), Some(lost)) = (before, &recovered.left_out) else { return Ok(()) };
    let is_planted = options.planted.is(PlantedBug::RescueIgnoresFreed);
    let is_as_it_was = |segment| is_planted || catalog.lap_of(segment).is_some_and(|now| now < lap);
    if let Some(freed) = named.iter().cloned().flatten().find(|&segment| !is_as_it_was(segment)) {
        return Err(NoRescue::Freed { freed, segment: lost.segment, offset: lost.offset });
    }
    // The same of a cleaner's segment, which is read by its groups then.
    let is_bare = |segment: &u32| catalog.closed(*segment).is_some_and(|closed| closed.directory_bytes == 0);
    if let Some(segment) = named.iter().cloned().flatten().find(is_bare) {
        return Err(NoRescue::AnyAge { segment, offset: 0 });
    }
    // What a cleaner has filled since may hold copies of what stands behind the lost group.
    let is_named = |segment| named.iter().any(|range| range.contains(&segment));
    let later: Vec<u32> =
        catalog.all_closed().map(|(segment, _)| segment).filter(|&segment| !is_named(segment)).collect();
    later.into_iter().for_each(|segment| catalog.forget(segment, SegmentState::Ready));
    Ok(())
}
