//! Faults that are put in on purpose, to see that the tests find them.

ithaca_env::planted_bugs! {
    /// Old versions count as garbage although a snapshot needs them.
    PinForgotten,
    /// The floor rises without being written: an open finds a lower one.
    FloorNotWritten,
    /// A transaction commits although what it has read was written meanwhile.
    ReadsNotChecked,
    /// A transaction is compared with the last commit only.
    WindowForgotten,
    /// A transaction does not see what it has written itself.
    OwnWritesNotRead,
    /// A block that is written in part replaces what others have written of it meanwhile.
    NotMerged,
    /// A flush returns when everything is handed over, before it is durable.
    FlushDoesNotWait,
    /// The blocks of a commit are handed over to the log in batches of their own.
    CommitInParts,
    /// A plain write of a part of a block is laid over what the block was when it was read, whatever was written since.
    PartOverOld,
    /// A client that works in a region reaches the blocks behind it.
    RegionEndIgnored,
    /// A transaction that was released to one user is given to any.
    HandleOfAnyUser,
    /// A client's request does not wait for earlier ones of its transaction.
    RequestsOvertake,
    /// A connection that ends leaves its transactions as they are.
    EndKeepsTransactions,
    /// A client gives the room of a request in its memory to the next one before the answer has come.
    SlotsNotHeld,
    /// A client that dies within a transaction releases it, as one that disconnects does.
    DeadClientReleases,
    /// A thread that dies leaves its transaction as it is.
    DeadThreadKeeps,
    /// A client's write that is to be stable is answered before it is.
    FuaAnsweredEarly,
    /// A block is said to be the same at the version that writes it again.
    SpanReachesOver,
    /// One update more than may be is left out.
    OneUpdateTooMany,
    /// What was durable some time ago is taken from the last note before, not from the first one after.
    AgeByEarlierNote,
    /// What a client has read is not remembered.
    ReadForgotten,
    /// What a client has written is not remembered.
    OwnWriteForgotten,
    /// Blocks that are read together may be of different versions.
    WalkDoesNotShrink,
}
