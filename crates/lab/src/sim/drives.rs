//! An operator who adds drives to units and removes others, while everything else goes on and nodes end where they stand.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::{Client, DrivesError};
use ithaca_log::pos::NodeId;
use ithaca_log::wire::{DriveRefusal, UnitDrive};

use super::workload::Shared;

/// Each change begins within this time after the one before.
const PAUSE: Duration = Duration::from_millis(60);
/// The wait before what did not work is tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// How often a removal is refused as one that may work later before it is taken for one that never does: by then everything has been
/// healed for long but harm, as a block that cannot be read.
const REFUSALS_MAX: u32 = 100;
/// Paths of a unit that drives are added at, one and the same again after it was removed.
const PLACES: u64 = 3;
/// Links that a unit has before one is rather removed.
const LINKS_WANTED: usize = 3;

/// What has become of the changes.
#[derive(Default)]
pub struct Done {
    /// Drives that were added.
    pub added: Cell<u64>,
    /// Drives that were removed.
    pub removed: Cell<u64>,
    /// Removals for which there was no room.
    pub refused: Cell<u64>,
    /// Whether all changes are done.
    pub is_over: Cell<bool>,
    /// What should have worked and did not.
    pub failed: RefCell<Option<String>>,
}

/// Where drives are added to a unit.
pub fn added_drives(unit: u64) -> impl Iterator<Item = String> {
    (0..PLACES).map(move |place| format!("/more/unit-{unit}-{place}"))
}

/// Makes so many changes, one after the other, each until it is done or refused for good.
pub async fn change(env: Env, shared: Rc<Shared>, count: u64, done: Rc<Done>) {
    let client = shared.connect(&env, 0).await;
    for _ in 0..count {
        env.sleep(Duration::from_nanos(env.random_u64() % PAUSE.as_nanos() as u64)).await;
        if let Err(error) = change_one(&env, &client, &done).await {
            done.failed.replace(Some(error));
            break;
        }
    }
    if done.failed.borrow().is_none()
        && let Err(error) = check(&env, &client).await
    {
        done.failed.replace(Some(error));
    }
    done.is_over.set(true);
}

/// Adds a drive to the unit of `node` and removes all that it had before, whose `done.removed` and `done.refused` are counted. Errors: that
/// should have worked and did not.
pub async fn replace(env: Env, shared: Rc<Shared>, node: NodeId, done: Rc<Done>) -> Result<(), String> {
    let client = shared.connect(&env, 0).await;
    let mut before = listed(&env, &client, node).await;
    before.dedup_by_key(|drive| drive.link);
    let is_free = |path: &String| before.iter().all(|drive| drive.path != *path);
    let Some(path) = added_drives(node.0).find(is_free) else { return Ok(()) };
    add(&env, &client, node, path, &done).await?;
    for drive in &before {
        remove(&env, &client, node, drive, &done).await?;
    }
    check(&env, &client).await
}

async fn change_one(env: &Env, client: &Client, done: &Done) -> Result<(), String> {
    let nodes = nodes(env, client).await;
    let node = nodes[env.random_u64() as usize % nodes.len()];
    let drives = listed(env, client, node).await;
    let mut links: Vec<u32> = drives.iter().map(|drive| drive.link).collect();
    links.dedup();
    let is_removal = links.len() > 1 && (links.len() >= LINKS_WANTED || env.random_u64().is_multiple_of(2));
    if is_removal {
        let link = links[env.random_u64() as usize % links.len()];
        let first = drives.iter().find(|drive| drive.link == link);
        return remove(env, client, node, first.expect("it was listed"), done).await;
    }
    let free = added_drives(node.0).find(|path| drives.iter().all(|drive| drive.path != *path));
    match free {
        Some(path) => add(env, client, node, path, done).await,
        None => Ok(()),
    }
}

async fn add(env: &Env, client: &Client, node: NodeId, path: String, done: &Done) -> Result<(), String> {
    loop {
        match client.add_drives(node, vec![path.clone()], 0).await {
            Ok(()) => {
                done.added.set(done.added.get() + 1);
                return Ok(());
            }
            Err(DrivesError::Refused { why: DriveRefusal::Failed, .. }) => env.sleep(AGAIN).await,
            Err(error @ DrivesError::Refused { .. }) => return Err(format!("adding {path}: {error}")),
            Err(_) => env.sleep(AGAIN).await,
        }
    }
}

async fn remove(
    env: &Env,
    client: &Client,
    node: NodeId,
    drive: &UnitDrive,
    done: &Done,
) -> Result<(), String> {
    let mut refusals = 0;
    loop {
        match client.remove_drives(node, vec![drive.path.clone()]).await {
            Ok(()) => {
                done.removed.set(done.removed.get() + 1);
                return Ok(());
            }
            // The answer to an earlier attempt was lost.
            Err(DrivesError::Refused { why: DriveRefusal::NoSuchDrive, .. }) => return Ok(()),
            Err(DrivesError::Refused { why: DriveRefusal::NoRoom, .. }) => {
                done.refused.set(done.refused.get() + 1);
                return Ok(());
            }
            Err(DrivesError::Refused { why: DriveRefusal::Failed, .. }) if refusals < REFUSALS_MAX => {
                refusals += 1;
                env.sleep(AGAIN).await;
            }
            Err(error @ DrivesError::Refused { .. }) => {
                return Err(format!("removing {}: {error}", drive.path));
            }
            Err(_) => env.sleep(AGAIN).await,
        }
    }
}

/// Nothing is left half done: every drive is there, and none is leaving.
async fn check(env: &Env, client: &Client) -> Result<(), String> {
    for node in nodes(env, client).await {
        let drives = listed(env, client, node).await;
        let half_done = drives.iter().find(|drive| !drive.is_there || drive.is_leaving || drive.is_stale);
        if let Some(drive) = half_done {
            return Err(format!("after all changes a drive of node {node} is left over: {drive:?}"));
        }
    }
    Ok(())
}

async fn nodes(env: &Env, client: &Client) -> Vec<NodeId> {
    loop {
        if let Ok(layout) = client.layout().await {
            return layout.nodes.iter().map(|node| node.id).collect();
        }
        env.sleep(AGAIN).await;
    }
}

async fn listed(env: &Env, client: &Client, node: NodeId) -> Vec<UnitDrive> {
    loop {
        if let Ok(drives) = client.drives(node).await {
            return drives;
        }
        env.sleep(AGAIN).await;
    }
}
