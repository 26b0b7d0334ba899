//! The chain against its model, on simulated drives.
//!
//! * [`model`]: what a chain must hold after a prefix of the batches that were appended.
//! * [`world`]: a process that works on a chain, checks what it reads, and is killed and started again.
//! * [`crashes`]: power cuts and kills at every I/O point, in recovery too; many lives with random knobs.
//! * [`drives`]: several drives: placement, crashes, refused sets of drives.
//! * [`changes`]: drives that come and go, with crashes at every point.
//! * [`cleaning`]: segments of which something is left, cleaned, at the tail and in the body; damage is kept.
//! * [`closing`]: chains that are closed while something is under way.
//! * [`interrupted`]: cleaning with crashes at every point.
//! * [`mirrors`]: links with several sides, which fail, are stale, and are made equal after crashes.
//! * [`notary`]: who knows, elsewhere, that a side lacks something that could not be told so.
//! * [`rebuilds`]: sides that are being rebuilt while something else happens to their link.
//! * [`repairs`]: what one side lacks is written to it again, also if nobody waits for that any more, and what if that fails.
//! * [`parts`]: groups that the sides have not alike, while some of it cannot be read.
//! * [`slow`]: sides that hang or are far slower than another.
//! * [`silent`]: sides that do not answer for a while, and what is not known meanwhile.
//! * [`scrub`]: harm that is found without being asked for.
//! * [`damage`]: flipped bits in every block, torn tails and damaged middles told apart.
//! * [`control`]: what lost groups said of releases and of the owner's state.
//! * [`space`]: full drives, the reserve, recycling, growing.
//! * [`busy`]: drives that refuse reads for a while.
//! * [`cache`]: a cache drive, to which anything may happen.
//! * [`ranges`]: several ranges of keys read by one plan.
//! * [`refusals`]: drives of the wrong chain, of a newer format, cut short, half created.
//! * [`unread`]: reads that fail while a drive is removed.
//! * [`harm`]: reads that fail are no harm, and harm that is not there any more is not named.
//! * [`owned`]: keys with versions, whose owner is told where records lie.
//! * [`late`]: owners of many versions: their state before the first record, reads of stretches, garbage that is told of late.
//! * [`planted`]: deliberate faults, each caught by the checks above (with the feature `planted-bugs`).

mod asked;
mod busy;
mod cache;
mod changes;
mod cleaning;
mod closing;
mod control;
mod crashes;
mod damage;
mod drives;
mod faltering;
mod harm;
mod interrupted;
mod late;
mod metadata;
mod mirrors;
mod model;
mod notary;
mod owned;
mod parts;
#[cfg(feature = "planted-bugs")]
mod planted;
mod ranges;
mod rebuilds;
mod refusals;
mod repairs;
mod scrub;
mod silent;
mod slow;
mod space;
mod unread;
mod world;
