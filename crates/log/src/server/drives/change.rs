//! One change of a unit's drives: what is asked for is checked, and then is the chain's to do.

use std::path::{Path, PathBuf};

use ithaca_chain::{ChangeError, DriveId, LinkStats, OpenError};
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use thiserror::Error;

use super::super::remembered::{RememberError, UnitPaths};
use super::{DriveOrders, cut};
use crate::limits;
use crate::wire::{DriveChange, DriveRefusal, DrivesChanged};

/// Why the drives are not as was asked for.
#[derive(Debug, Error)]
pub(super) enum NotChanged {
    /// It could be any file, by where the node was started.
    #[error("{path}: not an absolute path")]
    NotAbsolute {
        /// The path.
        path: String,
    },
    /// A start could not be given it: there it separates sides.
    #[error("{path}: a path with a + in it cannot be a drive")]
    HasPlus {
        /// The path.
        path: String,
    },
    /// Two sides cannot be the same drive.
    #[error("{path}: named twice")]
    Twice {
        /// The path.
        path: String,
    },
    /// It is a side of something else.
    #[error("{path}: a drive of the unit already, of link {link}")]
    Elsewhere {
        /// The path.
        path: String,
        /// Its link.
        link: u32,
    },
    /// Sides of a mirrored link leave together, which is to be said.
    #[error("{path}: is mirrored by {other}, which leaves with it: name both, as A+B")]
    Mirrored {
        /// The path.
        path: String,
        /// Another side.
        other: String,
    },
    /// It is on its way out.
    #[error("{path}: is being removed")]
    Leaving {
        /// The path.
        path: String,
    },
    /// The unit has none there.
    #[error("{path}: no drive of the unit, which has {has}")]
    NoSuchDrive {
        /// The path.
        path: String,
        /// What it has.
        has: String,
    },
    /// The next start would not know where to look for it.
    #[error("{path}: {error}")]
    Forgotten {
        /// The path.
        path: String,
        /// Why not.
        error: RememberError,
    },
    /// The drive cannot be opened.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The chain says no.
    #[error("{}", naming(path, error))]
    Chain {
        /// The drive that it is about.
        path: String,
        /// What it says.
        error: Box<ChangeError>,
    },
}

/// What the chain says, with the drive's name before it where that is not in it.
fn naming(path: &str, error: &ChangeError) -> String {
    let line = match error {
        ChangeError::HoldsRecords { drive, segments } => {
            format!(
                "{drive}: harm keeps entries there, in {segments} segments; trim those that are not needed"
            )
        }
        ChangeError::Unread { drive, segments } => {
            format!(
                "{drive}: reads failed while its entries were moved, {segments} segments are left; try again"
            )
        }
        error => error.to_string(),
    };
    if line.contains(path) { line } else { format!("{path}: {line}") }
}

impl NotChanged {
    fn of_chain(path: &str, error: ChangeError) -> Self {
        Self::Chain { path: path.to_owned(), error: Box::new(error) }
    }

    /// For whoever asked.
    pub(super) fn to_outcome(&self) -> DrivesChanged {
        let told = cut(&self.to_string(), limits::DRIVES_TOLD_MAX_BYTES).to_owned();
        DrivesChanged::Refused { why: self.why(), told }
    }

    /// Whether the chain has stopped or was closed meanwhile, so that it is for the next start to find out what came of it.
    fn is_open(&self) -> bool {
        matches!(self, Self::Chain { error, .. } if matches!(**error, ChangeError::Stopped(_)))
    }

    /// Whether it was not even begun, because of what was asked for.
    pub(super) fn is_of_order(&self) -> bool {
        use DriveRefusal::{Impossible, NoSuchDrive, Unfit};
        matches!(self.why(), Impossible | NoSuchDrive | Unfit)
    }

    fn why(&self) -> DriveRefusal {
        match self {
            Self::NotAbsolute { .. }
            | Self::HasPlus { .. }
            | Self::Twice { .. }
            | Self::Elsewhere { .. }
            | Self::Mirrored { .. } => DriveRefusal::Impossible,
            Self::NoSuchDrive { .. } => DriveRefusal::NoSuchDrive,
            Self::Forgotten { error: RememberError::Unfit { .. }, .. } => DriveRefusal::Impossible,
            Self::Leaving { .. } | Self::Forgotten { .. } => DriveRefusal::Failed,
            Self::Drive(error) if error.is_unfit() => DriveRefusal::Unfit,
            Self::Drive(_) => DriveRefusal::Failed,
            Self::Chain { error, .. } => why(error),
        }
    }
}

fn why(error: &ChangeError) -> DriveRefusal {
    match error {
        ChangeError::NoSuchDrive { .. } => DriveRefusal::NoSuchDrive,
        ChangeError::LastDrive { .. } => DriveRefusal::Impossible,
        ChangeError::Open(OpenError::TooManyDrives { .. } | OpenError::BadMirror { .. }) => {
            DriveRefusal::Impossible
        }
        ChangeError::NoRoom { .. } => DriveRefusal::NoRoom,
        ChangeError::HoldsRecords { .. } => DriveRefusal::Damaged,
        ChangeError::Open(OpenError::Drive(_))
        | ChangeError::Unread { .. }
        | ChangeError::Stopped(_)
        | ChangeError::Refused(_) => DriveRefusal::Failed,
        ChangeError::Open(_) => DriveRefusal::Unfit,
    }
}

impl DriveOrders {
    /// Makes it so. What is so already is left alone.
    pub(super) async fn carry_out(&self, change: &DriveChange) -> Result<(), NotChanged> {
        match change {
            DriveChange::Add { paths, create_bytes } => self.add(paths, None, *create_bytes).await,
            DriveChange::Mirror { of, paths, create_bytes } => {
                let of = self.find(of)?;
                self.add(paths, Some(of), *create_bytes).await
            }
            DriveChange::Remove { paths } => self.remove(paths).await,
        }
    }

    /// Adds the drives at `paths` to the link of one that the unit has, or as a link of their own.
    async fn add(
        &self,
        paths: &[String],
        beside: Option<LinkStats>,
        create_bytes: u64,
    ) -> Result<(), NotChanged> {
        check_paths(paths)?;
        let known: Vec<LinkStats> = paths.iter().filter_map(|path| self.find(path).ok()).collect();
        let beside = beside.or_else(|| known.first().cloned());
        if let Some(beside) = &beside {
            if beside.is_leaving {
                return Err(NotChanged::Leaving { path: beside.drive.clone() });
            }
            if let Some(other) = known.iter().find(|drive| drive.link != beside.link) {
                return Err(NotChanged::Elsewhere { path: other.drive.clone(), link: other.link });
            }
        }
        let new: Vec<&String> =
            paths.iter().filter(|path| known.iter().all(|it| it.drive != **path)).collect();
        let Some(first) = new.first() else { return Ok(()) };
        let links: Vec<PathBuf> = beside.iter().map(|beside| PathBuf::from(&beside.drive)).collect();
        let sides: Vec<PathBuf> = new.iter().map(PathBuf::from).collect();
        // Before the first of them can be a member: a start after a crash finds it.
        self.remember(first, |before| before.with_sides(&links, &sides)).await?;
        let added = self.add_each(&new, beside, create_bytes).await;
        self.remember_members(first, &added).await;
        added
    }

    async fn add_each(
        &self,
        paths: &[&String],
        mut beside: Option<LinkStats>,
        create_bytes: u64,
    ) -> Result<(), NotChanged> {
        for &path in paths {
            let drive = self.open(path, create_bytes).await?;
            let added = self.add_one(drive, beside.as_ref().map(|drive| drive.id)).await;
            added.map_err(|error| NotChanged::of_chain(path, error))?;
            beside = Some(self.find(path)?);
        }
        Ok(())
    }

    /// Removes the link of which the drives at `paths` are all the sides that are there.
    async fn remove(&self, paths: &[String]) -> Result<(), NotChanged> {
        let mut named = Vec::new();
        for path in paths {
            named.push(self.find(path)?);
        }
        let drive = &named[0];
        if let Some(other) = named.iter().find(|other| other.link != drive.link) {
            return Err(NotChanged::Elsewhere { path: other.drive.clone(), link: other.link });
        }
        let links = self.unit.chain().stats().links;
        let is_unnamed = |other: &LinkStats| {
            other.link == drive.link && other.is_there && named.iter().all(|named| named.id != other.id)
        };
        if let Some(other) = links.into_iter().find(is_unnamed) {
            return Err(NotChanged::Mirrored { path: drive.drive.clone(), other: other.drive });
        }
        let sides: Vec<PathBuf> = named.iter().map(|drive| PathBuf::from(&drive.drive)).collect();
        // Moving what is needed may take long: a start goes on with it.
        self.remember(&drive.drive, |before| before.with_leaving(&sides, true)).await?;
        let removed = self.unit.chain().remove_drive(drive.id).await;
        let removed = removed.map_err(|error| NotChanged::of_chain(&drive.drive, error));
        self.remember_members(&drive.drive, &removed).await;
        removed
    }

    /// Remembers where the drives are from now on.
    async fn remember(
        &self,
        path: &str,
        change: impl FnOnce(&UnitPaths) -> UnitPaths,
    ) -> Result<(), NotChanged> {
        let has = || UnitPaths::default().with_held(&self.unit.chain().stats().links);
        let before = self.remembered.unit(self.node).unwrap_or_else(has);
        let remembered = self.remembered.set(self.node, change(&before)).await;
        remembered.map_err(|error| NotChanged::Forgotten { path: path.to_owned(), error })
    }

    /// Remembers where the drives are after a change, unless its outcome is the next start's to find out, which then goes on with it.
    async fn remember_members(&self, path: &str, outcome: &Result<(), NotChanged>) {
        if outcome.as_ref().is_err_and(NotChanged::is_open) {
            return;
        }
        let links = self.unit.chain().stats().links;
        let members = |before: &UnitPaths| {
            let sides: Vec<PathBuf> = links.iter().map(|drive| PathBuf::from(&drive.drive)).collect();
            before.with_held(&links).with_leaving(&sides, false)
        };
        if let Err(error) = self.remember(path, members).await {
            // What is remembered is enough to find them.
            tracing::warn!(node = self.node.0, %error, "where the drives are is not up to date for the next start");
        }
    }

    async fn add_one(&self, drive: Drive, beside: Option<DriveId>) -> Result<DriveId, ChangeError> {
        let chain = self.unit.chain();
        match beside {
            Some(beside) => chain.add_side(beside, drive).await,
            None => chain.add_drive(drive).await,
        }
    }

    async fn open(&self, path: &str, create_bytes: u64) -> Result<Drive, DriveError> {
        let create_bytes = if create_bytes == 0 { self.create_bytes } else { create_bytes };
        let open = OpenDrive { path: path.into(), create_bytes: Some(create_bytes), read_only: false };
        self.env.open_drive(open).await
    }

    /// The drive of the unit at this path.
    fn find(&self, path: &str) -> Result<LinkStats, NotChanged> {
        let links = self.unit.chain().stats().links;
        let has: Vec<&str> = links.iter().map(|drive| drive.drive.as_str()).collect();
        let none = NotChanged::NoSuchDrive { path: path.to_owned(), has: has.join(", ") };
        links.into_iter().find(|drive| drive.is_there && drive.drive == path).ok_or(none)
    }
}

/// Refuses what can never be drives of one link.
fn check_paths(paths: &[String]) -> Result<(), NotChanged> {
    for (nth, path) in paths.iter().enumerate() {
        let is_named_before = paths[..nth].contains(path);
        let path = path.clone();
        if !Path::new(&path).is_absolute() {
            return Err(NotChanged::NotAbsolute { path });
        }
        if path.contains('+') {
            return Err(NotChanged::HasPlus { path });
        }
        if is_named_before {
            return Err(NotChanged::Twice { path });
        }
    }
    Ok(())
}
