//! What a step of a plan does, and the kinds that swarm testing switches on and off.

use std::time::Duration;

use crate::sim::drive::{Budget, DriveFault};
use crate::sim::process::Death;

/// What a step does. Processes are named as in [`Sim::process`](crate::sim::Sim::process); links are named by a process
/// at each end and are those of the machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanAction {
    /// The process ends and is started again after `down`.
    End {
        /// Who.
        process: String,
        /// How.
        death: Death,
        /// Until it is started again.
        down: Duration,
    },
    /// The same, when it has passed `points` more I/O points.
    EndAtIo {
        /// Who.
        process: String,
        /// How.
        death: Death,
        /// I/O points to go, from the step's time.
        points: u64,
        /// Until it is started again.
        down: Duration,
    },
    /// The process stands still for `span`.
    Pause {
        /// Who.
        process: String,
        /// How long.
        span: Duration,
    },
    /// Every wake of the process costs it `cost` for `span`.
    SlowCpu {
        /// Who.
        process: String,
        /// CPU time of a wake.
        cost: Duration,
        /// How long.
        span: Duration,
    },
    /// Its monotonic clock runs fast or slow from now on.
    ClockRate {
        /// Who.
        process: String,
        /// By how much.
        ppm: i32,
    },
    /// Its wall clock jumps.
    WallJump {
        /// Who.
        process: String,
        /// By how much.
        ms: i64,
    },
    /// Something happens to a drive of its machine; nothing if the drive does not exist yet.
    Drive {
        /// Whose machine.
        process: String,
        /// The drive's name.
        drive: String,
        /// What happens. Offsets wrap around at the drive's end.
        fault: DriveFault,
    },
    /// Nothing gets from one to the other for `span`.
    Cut {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
        /// How long.
        span: Duration,
    },
    /// Nothing gets either way for `span`.
    Partition {
        /// One.
        one: String,
        /// The other.
        other: String,
        /// How long.
        span: Duration,
    },
    /// Partitioned and healed, `times` times, each for `span`.
    Flap {
        /// One.
        one: String,
        /// The other.
        other: String,
        /// Length of each state.
        span: Duration,
        /// How often.
        times: u32,
    },
    /// Every connection between the two breaks.
    Reset {
        /// One.
        one: String,
        /// The other.
        other: String,
    },
    /// The link from one to the other takes this much longer for `span`.
    SlowLink {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
        /// Added to the latency.
        latency: Duration,
        /// How long.
        span: Duration,
    },
}

/// A kind of fault, for swarm testing to switch on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is described at the action or drive fault of its name")]
pub enum FaultKind {
    Kill,
    PowerCut,
    Vanish,
    EndAtIo,
    Pause,
    SlowCpu,
    ClockRate,
    WallJump,
    FailWrites,
    FailSyncs,
    FailReads,
    NoSpace,
    LoseWrites,
    MisdirectWrites,
    Unreadable,
    BitRot,
    SlowDrive,
    StuckDrive,
    GoneDrive,
    Cut,
    Partition,
    Flap,
    Reset,
    SlowLink,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 24] = [
        FaultKind::Kill,
        FaultKind::PowerCut,
        FaultKind::Vanish,
        FaultKind::EndAtIo,
        FaultKind::Pause,
        FaultKind::SlowCpu,
        FaultKind::ClockRate,
        FaultKind::WallJump,
        FaultKind::FailWrites,
        FaultKind::FailSyncs,
        FaultKind::FailReads,
        FaultKind::NoSpace,
        FaultKind::LoseWrites,
        FaultKind::MisdirectWrites,
        FaultKind::Unreadable,
        FaultKind::BitRot,
        FaultKind::SlowDrive,
        FaultKind::StuckDrive,
        FaultKind::GoneDrive,
        FaultKind::Cut,
        FaultKind::Partition,
        FaultKind::Flap,
        FaultKind::Reset,
        FaultKind::SlowLink,
    ];

    /// What a system with one copy of its data owes in the face of it. With two good copies all are to be survived.
    pub fn budget(self) -> Budget {
        match self {
            FaultKind::LoseWrites
            | FaultKind::MisdirectWrites
            | FaultKind::Unreadable
            | FaultKind::BitRot
            | FaultKind::GoneDrive => Budget::Detect,
            _ => Budget::Survive,
        }
    }

    /// The kinds that a system with one copy must survive without losing anything.
    pub fn survivable() -> Vec<FaultKind> {
        Self::ALL.into_iter().filter(|kind| kind.budget() == Budget::Survive).collect()
    }

    pub(super) fn is_of_drive(self) -> bool {
        (FaultKind::FailWrites..=FaultKind::GoneDrive).contains(&self)
    }

    pub(super) fn is_of_link(self) -> bool {
        self >= FaultKind::Cut
    }
}
