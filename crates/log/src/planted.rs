//! Faults that are put into the cores on purpose, to see that the tests find them.

ithaca_env::planted_bugs! {
    /// The unit acknowledges a write when it is started, not when it is durable.
    AckBeforePersist,
    /// The unit answers a seal without storing it: a restart forgets it.
    SealWithoutPersist,
    /// The unit reports as its highest address only what is durable already when it is sealed.
    SealForgetsPending,
    /// The unit gives the highest address of now when a seal is repeated.
    RepeatedSealMoves,
    /// The unit lets a fill take the place of data.
    FillBeatsData,
    /// The unit accepts a write of a sealed epoch.
    StaleEpochAccepted,
    /// The unit says that an address is taken before what took it is durable.
    WrittenBeforeDurable,
    /// The unit shows entries to readers that are not durable.
    ReadBeforeDurable,
    /// The unit tells how far its addresses are resolved in an epoch that is over.
    BoundsAnyEpoch,
    /// The unit answers a read of what is committed with whatever it holds.
    CommittedUnchecked,
    /// The unit says that an address is trimmed before the last replica does, to whoever reads what is committed.
    TrimShownEarly,
    /// A trim is acknowledged while a replica that was left out may still show what it gave up.
    TrimNotHeld,
    /// The unit leaves out of an answer what its chain has no record of, without a word.
    LostEntrySkipped,
    /// Whoever gives up nodes proposes a layout of its own although another may have been decided with them.
    LossIgnoresAccepted,
    /// The unit says that a stream has nothing where nothing is yet.
    StreamLooksPastHoles,
    /// The unit does not look again at addresses that it has looked through for streams, whatever was stored there since.
    StreamBlockNotRenewed,
    /// The unit takes addresses that it has not looked at for such as a stream has nothing in.
    StreamFilterPresumes,
    /// The unit shows as a stream's what counts as junk.
    StreamShowsVoided,
    /// The client trims an entry of several streams as soon as one of them has released it.
    StreamReleasedByOne,
    /// The unit writes a whole run when a part of it is taken already.
    WholeRunWritten,
    /// A trim is answered without being stored.
    TrimWithoutPersist,
    /// A write is accepted where a hole was trimmed.
    TrimmedIsFree,
    /// The unit does not compare data with its checksum as it arrives.
    ChecksumIgnored,
    /// The unit goes on as if nothing had happened after its drive has failed.
    FailureIgnored,
    /// A restarted unit goes on in the epoch that it served before.
    ServesAfterRestart,
    /// A new sequencer starts one position too low.
    SequencerStartsLow,
    /// The sequencer grants positions in any epoch.
    SequencerAnyEpoch,
    /// The sequencer counts a range grant as one position.
    GrantOverlaps,
    /// The sequencer grants a batch that is sent again other positions.
    BatchGrantedTwice,
    /// The sequencer takes a batch that it may have forgotten for a new one.
    ForgottenIsNew,
    /// The sequencer grants positions whatever was written since the snapshot.
    ConditionUnchecked,
    /// The sequencer forgets that an append which names no part of a stream changes all of it.
    WholeKeyIgnored,
    /// The sequencer takes what it has forgotten the last write of for unwritten.
    EvictedIsUnwritten,
    /// The sequencer counts a group as one position of its streams.
    StreamPositionReused,
    /// A forwarder numbers entries behind one that was refused as if that had not been sent.
    NumbersCloseUp,
    /// The client says of a stripe's part the places of all its entries but the last.
    LastPlaceLeftOut,
    /// A new sequencer takes every stream for empty.
    StreamsForgotten,
    /// An append is answered when the first unit has written its part.
    FirstPartAnswers,
    /// An append counts as written although a unit has not written its part.
    RefusedPartCounts,
    /// A copy of a closed stripe is listed without the trims since it was made.
    TrimsNotTaken,
    /// A copy takes what the node holds of a stripe for what the replica holds, without comparing them.
    HeldCountsAsSame,
    /// A node keeps what it holds at addresses that no stripe has any more.
    UnneededKept,
    /// A node trims what it holds of stripes that do not list it, although it may come back with it.
    KeptCopyGivenUp,
    /// A copy of what a leaving node holds is listed before it is made.
    LetGoBeforeCopied,
    /// A node does not say that it has no room.
    FullNotTold,
    /// A node that had no room does not come back when it has some.
    FullStaysOut,
    /// A node takes for what it has lost whatever another replica holds.
    RepairUnchecked,
    /// A node says what is not there without a lease.
    LeaseIgnored,
    /// A node that hears no majority of the cluster takes others out.
    CutOffNodeEjects,
    /// The client writes to every replica of a stripe at once.
    ReplicasWrittenTogether,
    /// The client takes a write for done when the first replica has it.
    AckAfterFirstReplica,
    /// A node hands an entry on before it has it on stable storage.
    RelayBeforeDurable,
    /// A node that is to hand an entry on answers when it has it itself.
    RelayStopsShort,
    /// A fill makes junk of what is free on each replica, whatever the first one holds.
    FillSkipsCopy,
    /// A fill begins with the last replica.
    FilledFromLast,
    /// The acceptor takes a second layout for the same epoch, whatever it promised.
    TwoLayoutsAnEpoch,
    /// An acceptor that the latest layout does not name decides the next one.
    RemovedAcceptorVotes,
    /// The acceptor does not remember what it promised.
    AcceptorForgetsPromise,
    /// The acceptor answers before what the answer reveals is durable.
    AnswerBeforePersist,
    /// The proposer proposes its own layout although another may be decided already.
    ProposerIgnoresAccepted,
    /// The acceptor grants a lease although it has promised to decide the next epoch.
    LeaseAfterPromise,
    /// The acceptor that decides alone grants a lease after a restart, when it has forgotten its promise.
    LeaseAfterRestart,
    /// An acceptor that was restarted takes it that it had granted no lease before.
    GrantsForgotten,
    /// The holder counts its lease from when it was answered, not from when it asked.
    LeaseFromAnswer,
}
