//! A volume as it is opened to be used, by `serve` and `mount`: what is blank among the sides of a mirror, or not there yet, becomes a new side of it.
//!
//! A path says nothing of which side it was, and a disk that is not mounted looks like one that is new. So a new side comes in place of one
//! that the volume knows to be lost, because a write failed on it or the volume was served without it, or beside those that it has; while one
//! that counts is missing nothing is opened, made or changed.

use std::fmt;
use std::path::{Path, PathBuf};

use ithaca_chain::{ChainOptions, ChangeError, DriveId, Drives, OpenError, identify};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::real::files;
use ithaca_volume::socket::{DriveState, Summary};
use ithaca_volume::{Volume, VolumeError, VolumeSettings};

use super::arguments::DirArgs;
use super::{failed, links, open_failed, refuse_others, refuse_twice};
use crate::failure::Failure;
use crate::fsck::drive_failed;
use crate::json::{Object, array, quoted};

/// What may be done where a side that counts is missing.
const WAY_OUT: &str = "if it is lost, serve the volume once without it, and then with a new one in its place";

/// What may be done where a side was cut short, or does not say any more what it is.
pub const CUT_WAY_OUT: &str = "a side of a mirror can be left out: serve the volume once without it, remove its file, and serve it with a new one in its place";

/// What lies at the paths that were given.
#[derive(Default)]
struct Found {
    /// Drives that say that they are a volume's, and whatever else is to be refused by whoever opens them.
    members: Vec<Vec<Drive>>,
    /// Sides that are to be made.
    new: Vec<New>,
}

/// A side that is to be made.
struct New {
    path: PathBuf,
    /// None if nothing is there.
    drive: Option<Drive>,
    /// Why it is not known what is there.
    fault: Option<OpenError>,
    /// A drive that it is to hold the same as.
    beside: Drive,
}

/// Opens the volume of these directories, and gives it the sides that are new. They are rebuilt while it is used.
pub async fn open(env: &Env, at: &DirArgs, chain: ChainOptions) -> Result<Volume, Failure> {
    refuse_twice(at)?;
    let Found { members, mut new } = look(env, at).await?;
    let chain = ChainOptions { needs_sides: !new.is_empty(), ..chain };
    let settings = VolumeSettings { chain, ..VolumeSettings::default() };
    let volume = Volume::open(env, Drives::from(members), settings).await.map_err(|error| {
        let is_of_sides = matches!(
            error,
            VolumeError::Chain(OpenError::DriveMissing { .. } | OpenError::StaleDrive { .. })
        );
        match new.iter_mut().find_map(|it| it.fault.take()) {
            // What cannot be told may be what is missing.
            Some(fault) if is_of_sides => failed(fault.into()),
            _ if is_of_sides && !new.is_empty() => failed(error).and(WAY_OUT),
            _ => open_failed(error, at),
        }
    })?;
    for it in new {
        if let Err(failure) = add(env, &volume, it).await {
            // What has failed is told; the volume is as it was.
            let _ = volume.close().await;
            return Err(failure);
        }
    }
    Ok(volume)
}

/// The sides of a volume that are rebuilt from here on, one after the other.
pub struct Rebuilt(Vec<String>);

impl Rebuilt {
    /// Those of a volume that was opened right now. Nothing is written to one that is read-only.
    pub fn of(volume: &Volume) -> Self {
        let is_behind = |state| matches!(state, DriveState::Stale | DriveState::Rebuilding { .. });
        let drives = Summary::of(volume).drives.into_iter();
        let behind = drives.filter(|it| is_behind(it.state) && !volume.is_read_only());
        Self(behind.map(|it| it.drive).collect())
    }

    /// Adds them to an object.
    pub fn add_to(&self, object: Object) -> Object {
        if self.0.is_empty() {
            return object;
        }
        object.raw("rebuilding", &array(self.0.iter().map(|drive| quoted(drive))))
    }
}

impl fmt::Display for Rebuilt {
    /// As the end of a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|drive| write!(f, ", rebuilding {drive}"))
    }
}

/// Looks what is at each path. Writes nothing.
async fn look(env: &Env, at: &DirArgs) -> Result<Found, Failure> {
    let mut found = Found::default();
    for link in links(&at.dirs) {
        let (mut members, mut others) = (Vec::new(), Vec::new());
        for path in link {
            let open = OpenDrive { path: path.clone(), create_bytes: None, read_only: false };
            let drive = match env.open_drive(open).await {
                Err(error @ DriveError::NotFound { .. }) => {
                    others.push((path, None, error.into()));
                    continue;
                }
                opened => opened.map_err(drive_failed)?,
            };
            match identify(&drive).await {
                Ok(None) => {
                    let fault = OpenError::NotAChain { drive: drive.name() };
                    others.push((path, Some(drive), fault));
                }
                // It may be what a start has left that was killed while it made the side; the chain tells.
                Err(fault @ OpenError::SuperblockLost { valid: 0 | 1, .. }) => {
                    others.push((path, Some(drive), fault))
                }
                Ok(Some(_)) | Err(_) => members.push(drive),
            }
        }
        refuse_others(members.iter()).await?;
        for (path, drive, fault) in others {
            let Some(beside) = members.first().cloned() else { return Err(failed(fault.into())) };
            let fault = Some(fault).filter(|fault| matches!(fault, OpenError::SuperblockLost { .. }));
            found.new.push(New { path, drive, fault, beside });
        }
        found.members.push(members);
    }
    Ok(found)
}

/// Makes one of the new sides.
async fn add(env: &Env, volume: &Volume, new: New) -> Result<(), Failure> {
    let New { path, drive, fault, beside } = new;
    let drive = match drive {
        Some(drive) => drive,
        None => make(env, &path, beside.size_bytes()).await?,
    };
    let added = volume.add_side(id_of(volume, &beside), drive).await;
    added.map_err(|error| match (error, fault) {
        (ChangeError::Open(OpenError::NotBlank { .. }), Some(fault)) => failed(fault.into()),
        (ChangeError::Open(error), _) => failed(error.into()),
        (ChangeError::Stopped(error), _) => failed(error.into()),
        (other, _) => Failure::unreachable(other.to_string()),
    })?;
    tracing::info!(drive = %path.display(), "a side of a mirror is new: it is being rebuilt");
    Ok(())
}

/// Makes a file in a directory that is there: where a disk was, there may be nothing, not even that.
async fn make(env: &Env, path: &Path, bytes: u64) -> Result<Drive, Failure> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !files::is_dir(dir) {
        let told = format!(
            "{}: no such directory: a new side of a mirror is made in one that is there",
            dir.display()
        );
        return Err(Failure::usage(told));
    }
    let open = OpenDrive { path: path.to_owned(), create_bytes: Some(bytes), read_only: false };
    env.open_drive(open).await.map_err(drive_failed)
}

/// The drive of the volume that was opened at the same path.
fn id_of(volume: &Volume, drive: &Drive) -> DriveId {
    let name = drive.name();
    let found = volume.info().chain.links.into_iter().find(|link| link.drive == name);
    found.expect("the volume was opened with it").id
}
