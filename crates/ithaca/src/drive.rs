//! `ithaca drive`: the drives of a node's unit, which can be changed while it serves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::{PathBufValueParser, TypedValueParser};
use ithaca_env::drive::DriveError;
use ithaca_env::real::files;
use ithaca_env::task::gather;
use ithaca_log::client::{Client, DrivesError};
use ithaca_log::limits::DRIVE_PATH_MAX_BYTES;
use ithaca_log::pos::NodeId;
use ithaca_log::wire::{DriveRefusal, UnitDrive};

use crate::cli::Global;
use crate::client::{told_at, with_client};
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;
use crate::quantity::{self, short_bytes};

/// The drives of one link: a path, or those of a mirrored one's sides.
#[derive(Clone, Debug)]
pub struct Link(Vec<String>);

/// `ithaca drive`.
#[derive(Subcommand, Debug)]
pub enum DriveCommand {
    /// Show the drives of every node, or of one
    #[command(after_help = "Example:\n  ithaca drive ls\n  ithaca drive ls --node 2 --json\n\n\
                      The log is written to the one that is `tail`. One that is `leaving` is being emptied to be removed; one that is `stale` \
                      has not everything, because it is missing or being rebuilt.")]
    Ls {
        /// The node [default: all]
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
    },
    /// Add a drive to a node's unit, at the end of its chain
    #[command(
        after_help = "Example:\n  ithaca drive add /mnt/b/drive\n  ithaca drive add /mnt/c/drive+/mnt/d/drive --node 2\n  \
                      ithaca drive add /mnt/e/drive --mirror-of /mnt/b/drive\n\n\
                      A path is one of the node's machine; a relative one is below the directory that this command runs in. The drive must \
                      be blank, or have been removed from this unit; one that is not there becomes a file. A+B is one mirrored \
                      drive. To add a drive that the unit has changes nothing."
    )]
    Add {
        /// The drive, or the sides of a mirrored one
        #[arg(value_name = "PATH[+PATH]", value_parser = parse_link)]
        drive: Link,
        /// The node [default: the only one]
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
        /// A drive of the unit: the new one holds the same from now on
        #[arg(long, value_name = "PATH", value_parser = parse_path)]
        mirror_of: Option<String>,
        /// Size at which a new drive file begins [default: the node's --drive-size]
        #[arg(long, value_name = "SIZE", value_parser = quantity::drive_bytes)]
        size: Option<u64>,
    },
    /// Remove a drive from a node's unit, once what is needed of it is on the others
    #[command(after_help = "Example:\n  ithaca drive remove /mnt/b/drive --timeout 10m\n\n\
                      A relative path is below the directory that this command runs in. Sides of a mirrored drive are named together, as A+B. If the \
                      time is over before all is moved, the moving goes on; the same command waits for the rest. The drive is blank then. Exit 1 \
                      where the unit has no such drive.")]
    Remove {
        /// The drive, or all sides of a mirrored one
        #[arg(value_name = "PATH[+PATH]", value_parser = parse_link)]
        drive: Link,
        /// The node [default: the only one]
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
    },
}

/// Runs one verb.
pub fn run(global: &Global, command: &DriveCommand, out: &mut Output) -> Result<(), Failure> {
    match command {
        DriveCommand::Ls { node } => ls(global, node.map(NodeId), out),
        DriveCommand::Add { drive: Link(paths), node, mirror_of, size } => {
            let verb = format!("drive add {}", paths.join("+"));
            let (node, drives) = with_client(global, &verb, async |_, client| {
                let node = meant(&client, *node).await?;
                let (paths, size) = (paths.clone(), size.unwrap_or(0));
                match mirror_of {
                    Some(of) => client.mirror_drive(node, of.clone(), paths, size).await?,
                    None => client.add_drives(node, paths, size).await?,
                }
                Ok((node, client.drives(node).await?))
            })?;
            for drive in drives.iter().filter(|drive| paths.contains(&drive.path)) {
                out.either(|| human(node, drive), || json(node, drive))?;
            }
            out.flush()
        }
        DriveCommand::Remove { drive: Link(paths), node } => {
            let name = paths.join("+");
            let node = with_client(global, &format!("drive remove {name}"), async |_, client| {
                let node = meant(&client, *node).await?;
                client.remove_drives(node, paths.clone()).await?;
                Ok(node)
            })?;
            out.either(
                || format!("{name} is no drive of node {} any more, and blank", node.0),
                || Object::new().number("node", node.0).string("drive", &name).string("state", "removed"),
            )?;
            out.flush()
        }
    }
}

/// Shows the drives of one node or of all; fails if one does not answer, after what is known was printed.
fn ls(global: &Global, node: Option<NodeId>, out: &mut Output) -> Result<(), Failure> {
    let answers = with_client(global, "drive ls", async |_, client| {
        let nodes = match node {
            Some(node) => vec![node],
            None => nodes(&client).await?,
        };
        let asked = nodes.iter().map(|&node| client.drives(node)).collect();
        Ok(nodes
            .iter()
            .copied()
            .zip(gather(asked, |_| false).await.into_iter().flatten())
            .collect::<Vec<_>>())
    })?;
    let mut failed = None;
    for (node, answer) in answers {
        match answer {
            Ok(drives) => {
                for drive in &drives {
                    out.either(|| human(node, drive), || json(node, drive))?;
                }
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    out.flush()?;
    failed.map_or(Ok(()), |error| Err(told_at(global, "drive ls", error.into())))
}

/// Takes a drive, or a directory with one, or `A+B`: none of the sides is nothing, which would be the working directory.
pub fn sided() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let is_whole = sides_of(&path).iter().all(|side| !side.as_os_str().is_empty());
        if is_whole { Ok(path) } else { Err("a side without a path; A+B names both") }
    })
}

/// The paths of the sides of what is named `A+B`, a drive or a directory with one.
pub fn sides_of(drive: &Path) -> Vec<PathBuf> {
    match drive.to_str() {
        Some(text) => text.split('+').map(PathBuf::from).collect(),
        None => vec![drive.to_owned()],
    }
}

/// Why a drive is not open, whatever it is for: one that can be none is wrong usage.
pub fn not_opened(error: &DriveError, line: String) -> Failure {
    if error.is_unfit() { Failure::usage(line) } else { Failure::unreachable(line) }
}

/// Refuses drives of which two are the same, by whatever paths.
pub fn refuse_twice<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let mut places = BTreeSet::new();
    for path in paths {
        let place = files::place(path);
        let place = place.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        if !places.insert(place) {
            return Err(Failure::usage(format!("{} is named twice", path.display())));
        }
    }
    Ok(())
}

/// The node that is named, or the only one that there is.
async fn meant(client: &Client, named: Option<u64>) -> Result<NodeId, Failure> {
    if let Some(node) = named {
        return Ok(NodeId(node));
    }
    let nodes = nodes(client).await?;
    match nodes.as_slice() {
        [node] => Ok(*node),
        nodes => {
            let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
            let line = format!("which node is meant? the cluster has {}: --node ID", names.join(" "));
            Err(Failure::usage(line))
        }
    }
}

async fn nodes(client: &Client) -> Result<Vec<NodeId>, Failure> {
    Ok(client.layout().await?.nodes.iter().map(|node| node.id).collect())
}

/// What a drive is doing, in a word.
fn state(drive: &UnitDrive) -> &'static str {
    match drive {
        UnitDrive { is_leaving: true, .. } => "leaving",
        UnitDrive { is_stale: true, .. } => "stale",
        UnitDrive { is_asleep: true, .. } => "asleep",
        UnitDrive { is_tail: true, .. } => "tail",
        _ => "body",
    }
}

fn human(node: NodeId, drive: &UnitDrive) -> String {
    let UnitDrive { link, segments, free, live, data_bytes, size_bytes, .. } = drive;
    let path = if drive.is_there { drive.path.clone() } else { format!("missing ({})", drive.id) };
    format!(
        "node {}: link {link}, {}, {segments} segments, {live} live, {free} free, {} of {}: {path}",
        node.0,
        state(drive),
        short_bytes(*data_bytes),
        short_bytes(*size_bytes),
    )
}

fn json(node: NodeId, drive: &UnitDrive) -> Object {
    let object = Object::new().number("node", node.0).number("link", drive.link.into());
    let object = match drive.is_there {
        true => object.string("drive", &drive.path),
        false => object.raw("drive", "null"),
    };
    object
        .string("state", state(drive))
        .number("segments", drive.segments)
        .number("free", drive.free)
        .number("live", drive.live)
        .number("bytes", drive.data_bytes)
        .number("size_bytes", drive.size_bytes)
        .string("id", &drive.id.to_string())
}

impl From<DrivesError> for Failure {
    fn from(error: DrivesError) -> Self {
        let line = error.to_string();
        match error {
            DrivesError::NoNode { .. } => Self::no(line),
            DrivesError::UnderWay { .. } => Self::unreachable(line),
            DrivesError::Cluster(error) => error.into(),
            DrivesError::Refused { why, .. } => match why {
                DriveRefusal::NoSuchDrive => Self::no(line),
                DriveRefusal::Impossible | DriveRefusal::Unfit => Self::usage(line),
                DriveRefusal::NoRoom | DriveRefusal::Failed => Self::unreachable(line),
                DriveRefusal::Damaged => Self::damaged(line),
            },
        }
    }
}

/// A drive, or the sides of a mirrored one with a + between them.
fn parse_link(text: &str) -> Result<Link, String> {
    let paths = text.split('+').map(parse_path).collect::<Result<Vec<_>, _>>()?;
    let limit = ithaca_chain::limits::SIDES_MAX;
    match paths.len() <= limit {
        true => Ok(Link(paths)),
        false => Err(format!("{} sides; at most {limit} make one drive", paths.len())),
    }
}

/// A path as the node is told it: absolute.
fn parse_path(text: &str) -> Result<String, String> {
    let path = std::path::absolute(Path::new(text)).map_err(|error| error.to_string())?;
    let path = path.to_str().ok_or("not text")?;
    match path.len() <= DRIVE_PATH_MAX_BYTES {
        true => Ok(path.to_owned()),
        false => Err(format!("a path of {} bytes; at most {DRIVE_PATH_MAX_BYTES}", path.len())),
    }
}
