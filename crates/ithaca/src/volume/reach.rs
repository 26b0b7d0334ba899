//! A volume as commands reach it: opened by themselves, or at the socket of the server that has it open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ithaca_chain::ChainId;
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::net::LocalError;
use ithaca_env::real::files;
use ithaca_env::task::{Ended, race};
use ithaca_volume::socket::{Client, ClientError, ClientOptions, Scrub, Status, Summary};
use ithaca_volume::{Region, Version, Volume};

use super::arguments::DirArgs;
use super::{failed, links, open};
use crate::failure::Failure;

/// The socket of a server, in the first directory of its volume.
const SOCKET_NAME: &str = "volume.sock";
/// How long a server may take for an answer that needs no more than its drives do for one write.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a server that is busy for long is asked whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Where the server of a volume listens unless it was told otherwise. `None` if its first drive is no file in a directory.
pub fn default_socket(at: &DirArgs) -> Option<PathBuf> {
    let file = links(&at.dirs).into_iter().flatten().next()?;
    let is_in_directory = !files::exists(&file) || file.file_name() == Some(super::FILE_NAME.as_ref());
    is_in_directory.then(|| file.with_file_name(SOCKET_NAME))
}

/// A volume that a command works on.
pub enum Reached {
    /// Nobody else has it open.
    Opened(Volume),
    /// A server has; and where it listens.
    Served(Env, Client, PathBuf),
}

/// Reaches the volume of these directories: at `socket`, if one is given; else at the socket in its directory, or, if nobody
/// listens there, by opening it.
pub async fn reach(env: &Env, at: &DirArgs, socket: Option<&Path>) -> Result<Reached, Failure> {
    if let Some(path) = socket.map(Path::to_owned).or_else(|| default_socket(at)) {
        // No block is read or written: memory for them would be of no use.
        let options = ClientOptions { memory_bytes: 0, ..ClientOptions::default() };
        match Client::connect_with(env, &path, options).await {
            Ok(client) => {
                let served = soon(env, &path, client.info()).await?;
                return match is_of(env, at, served.id).await {
                    true => Ok(Reached::Served(env.clone(), client, path)),
                    false => {
                        let (path, id) = (path.display(), served.id);
                        Err(Failure::usage(format!(
                            "{path}: volume {id} is served there, which is another one"
                        )))
                    }
                };
            }
            Err(error) if socket.is_some() => return Err(unserved(error)),
            Err(ClientError::Connect(LocalError::Refused { .. })) => {}
            // Whoever has it open may not be reached; if nobody has, it opens.
            Err(error) => tracing::debug!("{error}"),
        }
    }
    open(env, at, 0).await.map(Reached::Opened)
}

/// Whether the drives that are named may be of this volume: one of them is there, and none is of another. A side of a mirror may be lost while it
/// is served, and a harmed drive may be one that is to be scrubbed.
async fn is_of(env: &Env, at: &DirArgs, id: ChainId) -> bool {
    let mut is_found = false;
    for path in links(&at.dirs).into_iter().flatten() {
        let Ok(drive) = env.open_drive(OpenDrive { path, create_bytes: None, read_only: true }).await else {
            continue;
        };
        match ithaca_chain::identify(&drive).await {
            Ok(Some(found)) if found.id != id => return false,
            Ok(Some(_)) | Err(_) => is_found = true,
            Ok(None) => {}
        }
    }
    is_found
}

/// How a server that does not do what it is asked for ends a command.
fn unserved(error: ClientError) -> Failure {
    let line = error.to_string();
    match error {
        ClientError::Refused(refusal) => match refusal.status {
            Status::NoSuchSnapshot => Failure::no(line),
            Status::BadName | Status::TooMany | Status::Request => Failure::usage(line),
            Status::Damaged => Failure::damaged(line),
            _ => Failure::unreachable(line),
        },
        _ => Failure::unreachable(line),
    }
}

/// The answer of a server, if it comes in time.
async fn soon<T>(
    env: &Env,
    path: &Path,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, Failure> {
    match env.timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(unserved),
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            Err(Failure::unreachable(format!("{}: no answer for {seconds} s", path.display())))
        }
    }
}

impl Reached {
    /// What the volume is and holds, and its snapshots.
    pub async fn info(&self) -> Result<(Summary, Vec<(String, Version)>), Failure> {
        match self {
            Self::Opened(volume) => Ok((Summary::of(volume), volume.snapshots())),
            Self::Served(env, client, path) => {
                Ok((soon(env, path, client.info()).await?, soon(env, path, client.snapshots()).await?))
            }
        }
    }

    /// Gives the present version a name.
    pub async fn create_snapshot(&self, name: &str) -> Result<Version, Failure> {
        match self {
            Self::Opened(volume) => volume.create_snapshot(name).await.map_err(failed),
            Self::Served(env, client, path) => soon(env, path, client.create_snapshot(name)).await,
        }
    }

    /// Forgets a name.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.delete_snapshot(name).await.map_err(failed),
            Self::Served(env, client, path) => soon(env, path, client.delete_snapshot(name)).await,
        }
    }

    /// Makes a region.
    pub async fn create_region(&self, name: &str, blocks: u64) -> Result<Region, Failure> {
        match self {
            Self::Opened(volume) => volume.create_region(name, blocks).await.map_err(failed),
            Self::Served(env, client, path) => soon(env, path, client.create_region(name, blocks)).await,
        }
    }

    /// The regions, in the order of their names.
    pub async fn regions(&self) -> Result<Vec<Region>, Failure> {
        match self {
            Self::Opened(volume) => Ok(volume.regions()),
            Self::Served(env, client, path) => soon(env, path, client.regions()).await,
        }
    }

    /// Removes a region and what it holds.
    pub async fn delete_region(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.delete_region(name).await.map_err(failed),
            // Its blocks are given up first, which takes as long as they are many.
            Self::Served(_, client, _) => client.delete_region(name).await.map_err(unserved),
        }
    }

    /// Reads and verifies everything, and says what was found since the volume was opened.
    pub async fn scrub(&self) -> Result<Scrub, Failure> {
        let (env, client, path) = match self {
            Self::Opened(volume) => {
                volume.scrub().await.map_err(failed)?;
                return Ok(Scrub::of(volume));
            }
            Self::Served(env, client, path) => (env, client, path),
        };
        let scrub = async { client.scrub().await.map_err(unserved) };
        let watch = async {
            loop {
                env.sleep(ASK_EVERY).await;
                if let Err(failure) = soon(env, path, client.scrubbed()).await {
                    return failure;
                }
            }
        };
        match race(scrub, watch).await {
            Ended::First(done) => done,
            Ended::Second(failure) => Err(failure),
        }
    }

    /// Leaves it as it was found.
    pub async fn leave(self) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.close().await.map_err(failed),
            Self::Served(..) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ithaca_volume::VolumeError;

    use super::*;

    #[test]
    fn a_command_ends_in_the_same_way_whether_the_volume_is_served_or_not() {
        let name = || "mail".to_owned();
        for error in [
            VolumeError::Full { free_bytes: 1, reserve_bytes: 2 },
            VolumeError::NoGap { blocks: 2, longest: 1 },
            VolumeError::NoSuchRegion { name: name() },
            VolumeError::NoSuchSnapshot { name: name() },
            VolumeError::RegionTaken { name: name() },
            VolumeError::NameTaken { name: name() },
            VolumeError::RegionInUse { name: name(), users: 1 },
            VolumeError::BadRegion { name: name() },
            VolumeError::TooManyRegions { max: 1 },
            VolumeError::TooManySnapshots { max: 1 },
            VolumeError::Damaged { block: 1 },
        ] {
            assert_eq!(unserved(ClientError::Refused(error.clone().into())), failed(error));
        }
    }
}
