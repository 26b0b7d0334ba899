//! The drives of a unit: opens the chain that they hold, makes it when the cluster is new, and adds drives that are.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ithaca_chain::{
    Chain, ChainId, ChainOptions, Drives, Identity, Label, LinkStats, MetadataDrive, OpenError, Recovered,
    identify,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::task::TaskHandle;

use super::leases::Leases;
use super::local::StartError;
use super::unit_shell::UnitShell;
use crate::pos::{ClusterId, NodeId};
use crate::unit::UnitOptions;

/// What a unit stands on.
pub(super) struct UnitDrives {
    /// Its drives, in the order of its chain: each inner list is a link, with its sides.
    pub(super) links: Vec<Vec<PathBuf>>,
    /// Bytes that a new drive is created with.
    pub(super) create_bytes: u64,
    /// Where the footers of its chain are mirrored, if anywhere.
    pub(super) metadata: Option<MetadataDrive>,
    /// How its chain is set up.
    pub(super) chain: ChainOptions,
    /// How the unit is set up.
    pub(super) unit: UnitOptions,
}

/// The drives of the unit of `node`: those that are named, where `A+B` names the sides of one, or else one of its own in `data`.
pub(super) fn links<'a>(
    named: impl Iterator<Item = &'a PathBuf>,
    data: &Path,
    node: NodeId,
) -> Vec<Vec<PathBuf>> {
    let named: Vec<Vec<PathBuf>> = named.map(|path| sides(path)).collect();
    if named.is_empty() { vec![vec![data.join(format!("unit-{}.chain", node.0))]] } else { named }
}

/// The sides that `A+B` names. A path that is not text is one side.
fn sides(path: &Path) -> Vec<PathBuf> {
    path.to_str().map_or_else(|| vec![path.to_owned()], |text| text.split('+').map(PathBuf::from).collect())
}

/// Opens a unit's chain, or creates it when the cluster is new.
///
/// A drive of a formed cluster that is not there, or that is blank, is added to the chain if the others are all of its drives:
/// otherwise one of them is lost.
pub(super) async fn open_unit(
    env: &Env,
    drives: &UnitDrives,
    node: NodeId,
    cluster: ClusterId,
    formed: bool,
    leases: Rc<Leases>,
) -> Result<(Rc<UnitShell>, TaskHandle<()>), StartError> {
    let label = Label::new(&format!("unit {}", node.0)).expect("a short label");
    // The chain's identity is the cluster's and the unit's, so that a drive of another cluster is refused.
    let identity = Identity { id: ChainId((cluster.0 ^ u128::from(node.0)).to_le_bytes()), label };
    let (chain, recovered) = if formed {
        open_formed(env, drives, node, &identity).await?
    } else {
        create_or_open(env, drives, &identity).await?
    };
    UnitShell::start(env, chain, recovered, drives.unit, leases)
        .map_err(|error| StartError::UnitState { path: names(&drives.links), error })
}

async fn create_or_open(
    env: &Env,
    drives: &UnitDrives,
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut links = Vec::new();
    for link in &drives.links {
        let mut sides = Vec::new();
        for path in link {
            sides.push(open_drive(env, path, Some(drives.create_bytes)).await.map_err(OpenError::Drive)?);
        }
        links.push(sides);
    }
    let chain_options = drives.chain.clone();
    let links = Drives::from(links).with_metadata(drives.metadata.as_ref());
    // The cluster's id is stored before, so a chain with that id is the work of a start that was interrupted.
    match Chain::create(env, links.clone(), identity.clone(), chain_options.clone()).await {
        Err(OpenError::AlreadyThere { .. }) => {
            Ok(Chain::open(env, links, Some(identity), chain_options).await?)
        }
        created => Ok((created?, Recovered::default())),
    }
}

async fn open_formed(
    env: &Env,
    drives: &UnitDrives,
    unit: NodeId,
    identity: &Identity,
) -> Result<(Chain, Recovered), StartError> {
    let mut members = Vec::new();
    let mut new: Vec<New<'_>> = Vec::new();
    for (link, path) in drives.links.iter().flat_map(|link| link.iter().map(move |path| (link, path))) {
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
        (false, ..) => {
            let members = Drives::from(members).with_metadata(drives.metadata.as_ref());
            Chain::open(env, members, Some(identity), drives.chain.clone()).await
        }
    };
    let (chain, recovered) = match (opened, absent) {
        (Err(OpenError::NoDrives | OpenError::DriveMissing { .. }), Some(path)) => {
            return Err(StartError::DriveMissing { path, unit });
        }
        (opened, _) => opened?,
    };
    for it in new {
        add(env, drives.create_bytes, &chain, it).await?;
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
async fn add(env: &Env, create_bytes: u64, chain: &Chain, new: New<'_>) -> Result<(), StartError> {
    let drive = match new.drive {
        Some(drive) => drive,
        None => open_drive(env, new.path, Some(create_bytes)).await.map_err(OpenError::Drive)?,
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
