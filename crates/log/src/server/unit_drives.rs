//! The drives of a unit: opens the chain that they hold, makes it when the cluster is new, and adds drives that are.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ithaca_chain::{Chain, ChainId, Identity, Label, OpenError, Recovered, identify};
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
    let paths = options.unit_drives(unit);
    let node = NodeId(unit as u64 + 1);
    let label = Label::new(&format!("unit {}", node.0)).expect("a short label");
    // The chain's identity is the cluster's and the unit's, so that a drive of another cluster is refused.
    let identity = Identity { id: ChainId((cluster.0 ^ u128::from(node.0)).to_le_bytes()), label };
    let (chain, recovered) = if formed {
        open_formed(env, options, &paths, node, &identity).await?
    } else {
        create_or_open(env, options, &paths, &identity).await?
    };
    UnitShell::start(env, chain, recovered, options.unit)
        .map_err(|error| StartError::UnitState { path: names(&paths), error })
}

async fn create_or_open(
    env: &Env,
    options: &LocalOptions,
    paths: &[PathBuf],
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut drives = Vec::new();
    for path in paths {
        drives.push(open_drive(env, path, Some(options.create_bytes)).await.map_err(OpenError::Drive)?);
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
    paths: &[PathBuf],
    unit: NodeId,
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut members = Vec::new();
    let mut new: Vec<(&Path, Option<Drive>)> = Vec::new();
    for path in paths {
        match open_drive(env, path, None).await {
            Err(DriveError::NotFound { .. }) => new.push((path, None)),
            Err(error) => return Err(OpenError::Drive(error).into()),
            Ok(drive) => match identify(&drive).await {
                Ok(Some(_)) => members.push(drive),
                Ok(None) => new.push((path, Some(drive))),
                Err(error) => return Err(error.into()),
            },
        }
    }
    let absent = new.iter().find(|(_, drive)| drive.is_none()).map(|(path, _)| path.display().to_string());
    let blank = new.iter().find_map(|(_, drive)| drive.as_ref()).map(Drive::name);
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
    for (path, drive) in new {
        let drive = match drive {
            Some(drive) => drive,
            None => open_drive(env, path, Some(options.create_bytes)).await.map_err(OpenError::Drive)?,
        };
        chain.add_drive(drive).await?;
        tracing::info!(%unit, drive = %path.display(), "the unit has one drive more");
    }
    Ok((chain, recovered))
}

async fn open_drive(env: &Env, path: &Path, create_bytes: Option<u64>) -> Result<Drive, DriveError> {
    env.open_drive(OpenDrive { path: path.to_owned(), create_bytes, read_only: false }).await
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
