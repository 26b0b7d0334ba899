//! The drives of a unit: opens the chain that they hold, makes it when the cluster is new, and adds drives that are.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ithaca_chain::{Chain, ChainId, Identity, Label, LinkStats, OpenError, Recovered, identify};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::task::TaskHandle;

use super::local::{LocalOptions, StartError};
use super::unit_shell::UnitShell;
use crate::pos::{ClusterId, NodeId};

/// Opens a unit's chain, or creates it when the cluster is new.
///
/// A drive of a formed cluster that is not there, or that is blank, is added to the chain if the others are all of its drives:
/// otherwise one of them is lost.
pub(super) async fn open_unit(
    env: &Env,
    options: &LocalOptions,
    unit: usize,
    cluster: ClusterId,
    formed: bool,
) -> Result<(Rc<UnitShell>, TaskHandle<()>), StartError> {
    let links = options.unit_drives(unit);
    let node = NodeId(unit as u64 + 1);
    let label = Label::new(&format!("unit {}", node.0)).expect("a short label");
    // The chain's identity is the cluster's and the unit's, so that a drive of another cluster is refused.
    let identity = Identity { id: ChainId((cluster.0 ^ u128::from(node.0)).to_le_bytes()), label };
    let (chain, recovered) = if formed {
        open_formed(env, options, &links, node, &identity).await?
    } else {
        create_or_open(env, options, &links, &identity).await?
    };
    UnitShell::start(env, chain, recovered, options.unit)
        .map_err(|error| StartError::UnitState { path: names(&links), error })
}

async fn create_or_open(
    env: &Env,
    options: &LocalOptions,
    links: &[Vec<PathBuf>],
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut drives = Vec::new();
    for link in links {
        let mut sides = Vec::new();
        for path in link {
            sides.push(open_drive(env, path, Some(options.create_bytes)).await.map_err(OpenError::Drive)?);
        }
        drives.push(sides);
    }
    let chain_options = options.chain.clone();
    // The cluster's id is stored before, so a chain with that id is the work of a start that was interrupted.
    match Chain::create(env, drives.clone(), identity.clone(), chain_options.clone()).await {
        Err(OpenError::AlreadyThere { .. }) => {
            Ok(Chain::open(env, drives, Some(identity), chain_options).await?)
        }
        created => Ok((created?, Recovered::default())),
    }
}

async fn open_formed(
    env: &Env,
    options: &LocalOptions,
    links: &[Vec<PathBuf>],
    unit: NodeId,
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut members = Vec::new();
    let mut new: Vec<New<'_>> = Vec::new();
    for (link, path) in links.iter().flat_map(|link| link.iter().map(move |path| (link, path))) {
        match open_drive(env, path, None).await {
            Err(DriveError::NotFound { .. }) => new.push(New { path, link, drive: None }),
            Err(error) => return Err(OpenError::Drive(error).into()),
            Ok(drive) => match identify(&drive).await {
                Ok(Some(_)) => members.push(drive),
                Ok(None) => new.push(New { path, link, drive: Some(drive) }),
                Err(error) => return Err(error.into()),
            },
        }
    }
    let absent = new.iter().find(|it| it.drive.is_none()).map(|it| it.path.display().to_string());
    let blank = new.iter().find_map(|it| it.drive.as_ref()).map(Drive::name);
    let opened = match (members.is_empty(), &absent, blank) {
        (true, None, Some(drive)) => Err(OpenError::NotAChain { drive }),
        (true, ..) => Err(OpenError::NoDrives),
        (false, ..) => Chain::open(env, members, Some(identity), options.chain.clone()).await,
    };
    let (chain, recovered) = match (opened, absent) {
        (Err(OpenError::NoDrives | OpenError::DriveMissing { .. }), Some(path)) => {
            return Err(StartError::DriveMissing { path, unit });
        }
        (opened, _) => opened?,
    };
    for it in new {
        add(env, options, &chain, it).await?;
    }
    Ok((chain, recovered))
}

/// A drive that is not one of the chain's yet, and where it was given.
struct New<'a> {
    path: &'a Path,
    /// The sides that it was given with, itself among them.
    link: &'a [PathBuf],
    /// None if it is not there.
    drive: Option<Drive>,
}

/// Adds a drive as a side of the link that another one it was given with is of, or as a link of its own.
async fn add(env: &Env, options: &LocalOptions, chain: &Chain, new: New<'_>) -> Result<(), StartError> {
    let drive = match new.drive {
        Some(drive) => drive,
        None => open_drive(env, new.path, Some(options.create_bytes)).await.map_err(OpenError::Drive)?,
    };
    let is_given_with = |it: &&LinkStats| new.link.iter().any(|path| path.display().to_string() == it.drive);
    let beside = chain.stats().links.iter().find(is_given_with).map(|it| it.id);
    let drive_path = new.path.display();
    match beside {
        Some(beside) => {
            chain.add_side(beside, drive).await?;
            tracing::info!(drive = %drive_path, "a side of a mirrored link is new: it is being rebuilt");
        }
        None => {
            chain.add_drive(drive).await?;
            tracing::info!(drive = %drive_path, "a unit has one drive more");
        }
    }
    Ok(())
}

async fn open_drive(env: &Env, path: &Path, create_bytes: Option<u64>) -> Result<Drive, DriveError> {
    env.open_drive(OpenDrive { path: path.to_owned(), create_bytes, read_only: false }).await
}

fn names(links: &[Vec<PathBuf>]) -> String {
    links.iter().flatten().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
