//! A volume as commands reach it: opened by themselves, or at the socket of the server that has it open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ithaca_chain::{ChainId, ChainOptions};
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::net::LocalError;
use ithaca_env::real::files;
use ithaca_env::task::{Ended, race};
use ithaca_volume::socket::{Client, ClientError, ClientOptions, Scrub, Status};
use ithaca_volume::{Region, Version, Volume};

use super::arguments::DirArgs;
use super::{Told, failed, links, open, refuse_twice, with_read_cache};
use crate::failure::Failure;

/// The socket of a server, in the first directory of its volume.
const SOCKET_NAME: &str = "volume.sock";
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
    /// A server has.
    Served(Served),
}

/// A volume that a server has open.
pub struct Served {
    env: Env,
    client: Client,
    /// Where the server listens.
    path: PathBuf,
    /// How long it may take for an answer that needs no more than its drives do for one write.
    timeout: Duration,
}

/// Reaches the volume of these directories: at `socket`, if one is given; else at the socket in its directory, or, if nobody
/// listens there, by opening it. A server has `timeout` for each answer.
pub async fn reach(
    env: &Env,
    at: &DirArgs,
    socket: Option<&Path>,
    timeout: Duration,
) -> Result<Reached, Failure> {
    refuse_twice(at)?;
    if let Some(path) = socket.map(Path::to_owned).or_else(|| default_socket(at)) {
        // No block is read or written: memory for them would be of no use.
        let options = ClientOptions { memory_bytes: 0, ..ClientOptions::default() };
        let connected = env.timeout(timeout, Client::connect_with(env, &path, options)).await;
        match connected.map_err(|_| unanswered(&path, timeout))? {
            Ok(client) => {
                let served = Served { env: env.clone(), client, path, timeout };
                let id = served.soon(served.client.info()).await?.id;
                return match is_of(env, at, id).await {
                    true => Ok(Reached::Served(served)),
                    false => {
                        let path = served.path.display();
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
    // Whoever only looks, or changes something small, does not do without a side of a mirror for it.
    let chain = ChainOptions { needs_sides: true, ..with_read_cache(0) };
    open(env, at, chain).await.map(Reached::Opened)
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
        ClientError::Connect(LocalError::TooLong { .. }) => Failure::usage(line),
        _ => Failure::unreachable(line),
    }
}

fn unanswered(path: &Path, timeout: Duration) -> Failure {
    Failure::unreachable(format!("{}: no answer within {timeout:?}", path.display()))
}

impl Served {
    /// The server's answer, if it comes in time.
    async fn soon<T>(&self, answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
        match self.env.timeout(self.timeout, answer).await {
            Ok(answer) => answer.map_err(unserved),
            Err(_) => Err(unanswered(&self.path, self.timeout)),
        }
    }

    /// The server's answer to what takes as long as there is much of it, if it is there meanwhile.
    async fn at_last<T>(&self, answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, Failure> {
        let answer = async { answer.await.map_err(unserved) };
        let watch = async {
            loop {
                self.env.sleep(ASK_EVERY).await;
                if let Err(failure) = self.soon(self.client.info()).await {
                    return failure;
                }
            }
        };
        match race(answer, watch).await {
            Ended::First(done) => done,
            Ended::Second(failure) => Err(failure),
        }
    }
}

impl Reached {
    /// What the volume is and holds, its snapshots, and what is known to be harmed.
    pub async fn info(&self) -> Result<Told, Failure> {
        match self {
            Self::Opened(volume) => Ok(Told::of(volume)),
            Self::Served(it) => Ok(Told {
                info: it.soon(it.client.info()).await?,
                snapshots: it.soon(it.client.snapshots()).await?,
                known: it.soon(it.client.scrubbed()).await?,
            }),
        }
    }

    /// Gives the present version a name.
    pub async fn create_snapshot(&self, name: &str) -> Result<Version, Failure> {
        match self {
            Self::Opened(volume) => volume.create_snapshot(name).await.map_err(failed),
            Self::Served(it) => it.soon(it.client.create_snapshot(name)).await,
        }
    }

    /// Forgets a name.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.delete_snapshot(name).await.map_err(failed),
            Self::Served(it) => it.soon(it.client.delete_snapshot(name)).await,
        }
    }

    /// Makes a region.
    pub async fn create_region(&self, name: &str, blocks: u64) -> Result<Region, Failure> {
        match self {
            Self::Opened(volume) => volume.create_region(name, blocks).await.map_err(failed),
            Self::Served(it) => it.soon(it.client.create_region(name, blocks)).await,
        }
    }

    /// The regions, in the order of their names.
    pub async fn regions(&self) -> Result<Vec<Region>, Failure> {
        match self {
            Self::Opened(volume) => Ok(volume.regions()),
            Self::Served(it) => it.soon(it.client.regions()).await,
        }
    }

    /// Removes a region and what it holds.
    pub async fn delete_region(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.delete_region(name).await.map_err(failed),
            // Its blocks are given up first, which takes as long as they are many.
            Self::Served(it) => it.at_last(it.client.delete_region(name)).await,
        }
    }

    /// Reads and verifies everything, and says what was found since the volume was opened.
    pub async fn scrub(&self) -> Result<Scrub, Failure> {
        match self {
            Self::Opened(volume) => {
                volume.scrub().await.map_err(failed)?;
                Ok(Scrub::of(volume))
            }
            Self::Served(it) => it.at_last(it.client.scrub()).await,
        }
    }

    /// Leaves it as it was found.
    pub async fn leave(self) -> Result<(), Failure> {
        match self {
            Self::Opened(volume) => volume.close().await.map_err(failed),
            Self::Served(_) => Ok(()),
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
            VolumeError::Full { free_bytes: 1, reserve_bytes: 2, harmed_segments: 0 },
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
