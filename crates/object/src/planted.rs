//! Faults that are put into the core on purpose, to see that the tests find them.

ithaca_env::planted_bugs! {
    /// A transaction commits without a look at what it read: updates are lost.
    ReadsNotChecked,
    /// A record that is in the log twice is applied twice.
    RepetitionApplied,
    /// A checkpoint does not say which requests were applied, so what a record does depends on where its reader began.
    CheckpointForgetsRequests,
    /// A transaction reads what its view has by now: its reads are of several snapshots.
    SnapshotMoves,
    /// A transaction does not see what it has written itself.
    OwnWritesNotRead,
    /// What a transaction has written shows in its view before it is committed.
    OwnWritesStay,
    /// A nested transaction that was aborted commits with the outer one.
    NestedAbortKept,
    /// A transaction whose snapshot is too old for the sequencer goes on at a newer one without a look at what was written
    /// between the two.
    SuffixNotChecked,
    /// A transaction of one snapshot does not name what it writes.
    WritesNotChecked,
    /// A checkpoint says that it reflects one position more than it does.
    CheckpointLacksLast,
    /// A checkpoint that is stored after a newer one is taken, though its chunks may be trimmed as those of a torn one.
    LateCheckpointTaken,
    /// What is below a checkpoint that was only begun is forgotten.
    ForgetBeforeComplete,
    /// A catalog that is stored in its stream is trimmed up to there, and not to where what was stored ends.
    CatalogCutAtItself,
    /// What somebody holds is forgotten.
    ForgetIgnoresPins,
    /// What is below a checkpoint is trimmed, though values of a store lie there that the checkpoint points to.
    ForgetIgnoresValues,
    /// A view that lies behind what was forgotten goes on without it.
    GapNotSeen,
    /// A watch that lags behind is told of the last change only.
    WatchLeavesOut,
    /// A node answers as if its view reflected what it was asked for, before it does.
    RemoteAnswersEarly,
    /// A key of a composed map is looked for where the map had it when it was read last.
    OtherStateAssumed,
}
