//! Faults that are put in on purpose, to see that the tests find them.

ithaca_env::planted_bugs! {
    /// A ticket counts as durable when its group is written out, before the drive answers.
    AckBeforeDurable,
    /// Groups are acknowledged as they complete, not in order.
    AckOutOfOrder,
    /// Recovery takes a group's records without looking at their checksums.
    RecoverySkipsChecksum,
    /// Recovery cuts the log at a damaged group although a later one proves that it was durable.
    CutDamagedMiddle,
    /// Keys that a lost group can have held are reported as if nothing had ever been written there.
    LostGroupForgotten,
    /// Recovery takes groups of an older lap of a recycled segment.
    StaleLapAccepted,
    /// Recovery takes groups that an earlier recovery had cut.
    StaleIncarnationAccepted,
    /// Recovery leaves segments as they are whose groups it has cut.
    CutSegmentKept,
    /// The checkpoint at the head of a new segment lacks the released keys.
    ReleaseForgottenAtRoll,
    /// Data may use the space that is kept for releases.
    ReserveNotKept,
    /// A segment is closed before the checkpoint in its successor is durable.
    ClosedBeforeCheckpoint,
    /// A segment is reused when its keys are asked to be released, before that is durable.
    RecycleBeforeDurable,
    /// Cold reads do not look at checksums.
    ReadSkipsChecksum,
    /// A drive that is being added takes records before every drive's superblock says that it is a member.
    AddUsedBeforeMember,
    /// An open does not look at the generation of the drives.
    GenerationIgnored,
    /// An open does not look at the generation that a notary was told.
    NotaryIgnored,
    /// A drive is removed although it holds records that are not released.
    RemovedWithRecords,
    /// The chain goes on in the new part of a file before the superblock says that it is there.
    GrowthNotRecorded,
    /// A write is acknowledged without a side before that side is durably marked as stale.
    DropNotPersisted,
    /// An open takes a stale side for a live one.
    StaleSideBelieved,
    /// Sides that a crash left different are not made equal again.
    SidesLeftUnequal,
    /// What one side cannot give is taken from another without a look at its checksum.
    RepairSkipsVerify,
    /// A side counts as live when its rebuild begins.
    RebuildCountsEarly,
    /// A segment is free before the copies of its records are durable.
    VictimFreedEarly,
    /// A segment is free although no durable group says yet that the copies of its records are durable.
    VictimFreedUnvouched,
    /// The cleaner leaves out a record that is not released.
    CleanerDropsLive,
    /// The cleaner moves released records too.
    CleanerIgnoresRelease,
    /// The cleaner leaves out a record that is damaged, and frees the segment.
    CleanerFreesDamaged,
    /// The groups that are left of a segment stand for its footer, whether or not they are all of them.
    FooterOfSomeGroups,
    /// What a cache drive holds at a block's place counts as the block, without a look at identity and checksum.
    CacheLineBelieved,
    /// A cached block of an earlier lap of its segment counts.
    CacheServesOldLap,
    /// Victims are free before the body segment with the copies is closed.
    BodyCountsEarly,
    /// A record is not moved because a segment that is about to be freed has it too.
    WaitingCountsAsCopy,
    /// The cleaner drops the junk of a deleted key although an older record of it is on a drive.
    TombstoneDroppedEarly,
    /// The owner is not told that a record has moved.
    OwnerNotToldOfMove,
    /// A place is read although its segment is in another use.
    ReadAtForgetsLap,
    /// A block in the read cache counts for any use of its segment.
    ReadCacheForgetsLap,
    /// What was written is remembered under the place behind its own.
    WrittenOnePlaceOff,
    /// An open takes what a metadata drive says of a segment without asking the segment.
    StaleMetadataBelieved,
    /// A group says that it repeats what those before it said of releases and state, and does not.
    ControlToldOnce,
    /// An open does not miss the segments that a census names.
    CensusIgnored,
    /// A rescue does not ask whether segments were freed since the last census before the lost group.
    RescueIgnoresFreed,
    /// A footer is put on the metadata drive before all groups that belong into it are durable.
    MetadataBeforeClose,
}
