//! Faults put into the system on purpose: the tests of the tests.

use ithaca_log::planted::Planted;
use ithaca_log::server::LocalOptions;

/// A fault of the system, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// The system as it is.
    #[default]
    None,
    /// A fault in a core of the log.
    #[cfg(feature = "planted-bugs")]
    Log(ithaca_log::planted::PlantedBug),
    /// A fault in the chain.
    #[cfg(feature = "planted-bugs")]
    Chain(ithaca_chain::PlantedBug),
}

impl Fault {
    /// Puts the fault into a cluster that is to be started.
    pub fn put(self, options: &mut LocalOptions) {
        match self {
            Fault::None => {
                let _ = options;
            }
            #[cfg(feature = "planted-bugs")]
            Fault::Log(bug) => {
                let planted = Planted::bug(bug);
                options.planted = planted;
                options.unit.planted = planted;
            }
            #[cfg(feature = "planted-bugs")]
            Fault::Chain(bug) => options.chain.planted = ithaca_chain::Planted::bug(bug),
        }
    }
}

impl Fault {
    /// The same fault for the clients.
    pub fn of_clients(self) -> Planted {
        match self {
            #[cfg(feature = "planted-bugs")]
            Fault::Log(bug) => Planted::bug(bug),
            _ => Planted::NONE,
        }
    }
}

/// A planted fault and what must find it.
#[cfg(feature = "planted-bugs")]
pub struct Planting {
    /// Its name.
    pub name: String,
    /// The fault.
    pub fault: Fault,
    /// What the scenario that must find it owes.
    pub budget: ithaca_env::sim::Budget,
}

/// Every fault that the scenarios of one node must find. Not among them is what one node that restarts as a whole and an
/// honest client library cannot bring to light: stale epochs, seals and rival layouts (found by the log's small-scope
/// exploration), what takes a drive that is all but full, and checksums that somebody else compares too (found by the
/// chain's own tests). Those that only harm brings to light are at the end.
#[cfg(feature = "planted-bugs")]
pub fn plantings() -> Vec<Planting> {
    use ithaca_chain::PlantedBug as ChainBug;
    use ithaca_env::sim::Budget;
    use ithaca_log::planted::PlantedBug as LogBug;
    let log = [
        LogBug::AckBeforePersist,
        LogBug::FillBeatsData,
        LogBug::WrittenBeforeDurable,
        LogBug::ReadBeforeDurable,
        LogBug::WholeRunWritten,
        LogBug::TrimWithoutPersist,
        LogBug::TrimmedIsFree,
        LogBug::SequencerStartsLow,
        LogBug::GrantOverlaps,
        LogBug::AnswerBeforePersist,
        LogBug::BatchGrantedTwice,
        LogBug::ForgottenIsNew,
        LogBug::ConditionUnchecked,
        LogBug::WholeKeyIgnored,
        LogBug::EvictedIsUnwritten,
        LogBug::StreamPositionReused,
        LogBug::StreamsForgotten,
        LogBug::LastPlaceLeftOut,
        LogBug::StreamLooksPastHoles,
        LogBug::StreamBlockNotRenewed,
        LogBug::StreamFilterPresumes,
        LogBug::StreamReleasedByOne,
        LogBug::FirstPartAnswers,
        LogBug::RefusedPartCounts,
        LogBug::ReplicasWrittenTogether,
        LogBug::AckAfterFirstReplica,
        LogBug::RelayBeforeDurable,
        LogBug::RelayStopsShort,
        LogBug::FillSkipsCopy,
        LogBug::FilledFromLast,
    ];
    let chain = [
        ChainBug::AckBeforeDurable,
        ChainBug::AckOutOfOrder,
        ChainBug::RecoverySkipsChecksum,
        ChainBug::StaleLapAccepted,
        ChainBug::ReleaseForgottenAtRoll,
    ];
    let log = log.into_iter().map(|bug| (format!("log/{bug:?}"), Fault::Log(bug)));
    let chain = chain.into_iter().map(|bug| (format!("chain/{bug:?}"), Fault::Chain(bug)));
    let plant = |budget| move |(name, fault)| Planting { name, fault, budget };
    let harm = [
        ("harm/CutDamagedMiddle", Fault::Chain(ChainBug::CutDamagedMiddle)),
        ("harm/LostGroupForgotten", Fault::Chain(ChainBug::LostGroupForgotten)),
        ("harm/ControlToldOnce", Fault::Chain(ChainBug::ControlToldOnce)),
        ("harm/LostEntrySkipped", Fault::Log(LogBug::LostEntrySkipped)),
    ];
    let harm = harm.map(|(name, fault)| (name.to_owned(), fault));
    let survived = log.chain(chain).map(plant(Budget::Survive));
    survived.chain(harm.into_iter().map(plant(Budget::Detect))).collect()
}

/// Every fault that the cluster scenario must find.
#[cfg(feature = "planted-bugs")]
pub fn in_cluster() -> Vec<ithaca_log::planted::PlantedBug> {
    use ithaca_log::planted::PlantedBug;
    vec![
        PlantedBug::TrimsNotTaken,
        PlantedBug::HeldCountsAsSame,
        PlantedBug::LetGoBeforeCopied,
        PlantedBug::CommittedUnchecked,
        PlantedBug::KeptCopyGivenUp,
        PlantedBug::UnneededKept,
        PlantedBug::FullStaysOut,
    ]
}

/// Every fault that the volume scenario must find: all that there are.
#[cfg(feature = "planted-bugs")]
pub fn in_volume() -> [ithaca_volume::PlantedBug; 14] {
    use ithaca_volume::PlantedBug;
    [
        PlantedBug::PinForgotten,
        PlantedBug::FloorNotWritten,
        PlantedBug::ReadsNotChecked,
        PlantedBug::WindowForgotten,
        PlantedBug::OwnWritesNotRead,
        PlantedBug::NotMerged,
        PlantedBug::PartOverOld,
        PlantedBug::FlushDoesNotWait,
        PlantedBug::SpanReachesOver,
        PlantedBug::OneUpdateTooMany,
        PlantedBug::AgeByEarlierNote,
        PlantedBug::ReadForgotten,
        PlantedBug::OwnWriteForgotten,
        PlantedBug::WalkDoesNotShrink,
    ]
}

/// Faults of the chain that the volume scenario must find.
#[cfg(feature = "planted-bugs")]
pub fn below_volume() -> [ithaca_chain::PlantedBug; 1] {
    [ithaca_chain::PlantedBug::WrittenOnePlaceOff]
}

/// Every fault that the objects scenario must find. Not among them is what needs transactions inside each other, a write that is in the
/// log twice, or a crash between two steps of a checkpoint; the models in the objects' own tests find those.
#[cfg(feature = "planted-bugs")]
pub fn in_objects() -> [ithaca_object::planted::PlantedBug; 13] {
    use ithaca_object::planted::PlantedBug;
    [
        PlantedBug::ReadsNotChecked,
        PlantedBug::SnapshotMoves,
        PlantedBug::OwnWritesNotRead,
        PlantedBug::OwnWritesStay,
        PlantedBug::SuffixNotChecked,
        PlantedBug::CheckpointLacksLast,
        PlantedBug::CatalogCutAtItself,
        PlantedBug::ForgetIgnoresPins,
        PlantedBug::ForgetIgnoresValues,
        PlantedBug::GapNotSeen,
        PlantedBug::RemoteAnswersEarly,
        PlantedBug::OtherStateAssumed,
        PlantedBug::WatchLeavesOut,
    ]
}
