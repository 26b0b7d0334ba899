//! Faults that are put into the core on purpose, to see that the tests find them.
//!
//! The selector exists only in tests and with the feature `planted-bugs`; elsewhere [`Planted::is`] is a constant `false`
//! and the faults are compiled out.

/// A fault. Each breaks the rule that its description names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlantedBug {
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
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::ReadsNotChecked,
        Self::RepetitionApplied,
        Self::CheckpointForgetsRequests,
        Self::SnapshotMoves,
        Self::OwnWritesNotRead,
        Self::OwnWritesStay,
        Self::NestedAbortKept,
        Self::SuffixNotChecked,
        Self::WritesNotChecked,
    ];
}

/// Which fault is in force, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(any(test, feature = "planted-bugs"))]
    bug: Option<PlantedBug>,
}

impl Planted {
    /// No fault.
    pub const NONE: Self = Self {
        #[cfg(any(test, feature = "planted-bugs"))]
        bug: None,
    };

    /// This fault.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub const fn bug(bug: PlantedBug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether it is in force.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub(crate) fn is(self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether it is in force: never, here.
    #[cfg(not(any(test, feature = "planted-bugs")))]
    pub(crate) const fn is(self, _bug: PlantedBug) -> bool {
        false
    }
}
