//! The arguments of `ithaca volume`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::parse_address;
use crate::quantity;

/// The port that clients of NBD try by themselves, on this machine only.
const DEFAULT_NBD: &str = "127.0.0.1:10809";

/// `ithaca volume`.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume
    #[command(after_help = "Example:\n  ithaca volume create ./disk --size 1G --keep-age 1h\n  \
                      ithaca volume create /mnt/a /mnt/b --size 100G\n  \
                      ithaca volume create /mnt/a+/mnt/b --size 100G\n\n\
                      The room is taken at once: a quarter more than the size, and room for the log that it is. Old \
                      versions are kept as far as that room goes.")]
    Create(CreateArgs),
    /// Show what a volume is and holds
    #[command(
        after_help = "Example:\n  ithaca volume info ./disk --json\n  ithaca volume info ./disk --rescue"
    )]
    Info(InfoArgs),
    /// Export a volume as a block device, until a signal comes
    #[command(after_help = "Example:\n  ithaca volume serve ./disk\n  nbdinfo nbd://127.0.0.1\n  \
                      nbdcopy nbd://127.0.0.1/disk@now backup.img\n\n\
                      Exports: the name or none is the volume; NAME/REGION a region of it; NAME@v=N is its version N, NAME@now the newest, NAME@snapshot=S \
                      a snapshot; those are read-only. There is no authentication: whoever reaches the port can read and write.\n\
                      The socket is for transactions, and for `info`, `snapshot`, `region` and `scrub`. Of A+C a C that is blank, or a directory \
                      without a volume, becomes a new side of the mirror, and is rebuilt meanwhile.\n\n\
                      With --rescue a volume that has lost a part of its log is shown as it was before that, where it is certain what it was; every export is \
                      read-only then, nothing is written to its drives, and there is no socket.")]
    Serve(ServeVolumeArgs),
    /// Show a volume as a file, until a signal comes or it is unmounted
    #[command(after_help = "Example:\n  touch disk.img && ithaca volume mount ./disk disk.img\n\n\
                      PATH is a file, which then has the volume's bytes, or a folder, which then has one file of the export's name. \
                      Needs fusermount3 (package fuse3). The socket is for `info`, `snapshot`, `region` and `scrub`, and for transactions, \
                      which programs can also begin by control calls on the file. --rescue is as of `serve`.")]
    Mount(MountArgs),
    /// Verify everything that a volume holds; never changes it
    #[command(after_help = "Example:\n  ithaca volume check ./disk")]
    Check(DirArgs),
    /// Read everything that a volume holds, and repair what a mirror has whole
    #[command(after_help = "Example:\n  ithaca volume scrub /mnt/a+/mnt/b")]
    Scrub(ServedArgs),
    /// Give the present state of a volume a name by which it stays readable
    #[command(after_help = "Example:\n  ithaca volume snapshot ./disk before-upgrade")]
    Snapshot(SnapshotArgs),
    /// Give parts of a volume names, by which they are served as volumes of their own
    #[command(
        after_help = "Example:\n  ithaca volume region add ./disk mail --size 1G\n  ithaca volume serve ./disk &\n  \
                      nbdinfo nbd://127.0.0.1/disk/mail\n  ithaca volume mount ./disk mail.img --region mail"
    )]
    Region(RegionArgs),
}

/// Where a volume lies.
#[derive(Args, Debug)]
pub struct DirArgs {
    /// Its directories, files or block devices, all of them; A+B are two that hold the same
    #[arg(required = true, value_name = "DIR", value_parser = crate::drive::sided())]
    pub dirs: Vec<PathBuf>,
}

/// Where a volume lies, or is served.
#[derive(Args, Debug)]
pub struct ServedArgs {
    /// Where it lies
    #[command(flatten)]
    pub at: DirArgs,
    /// The socket of the server that has it open [default: volume.sock in its first directory, if somebody listens there]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// `ithaca volume info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Where it lies, or is served
    #[command(flatten)]
    pub served: ServedArgs,
    /// Show what is left of a volume that has lost a part of its log, and change nothing
    #[arg(long, conflicts_with = "socket")]
    pub rescue: bool,
}

/// What transactions are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsolationArg {
    /// As if they had run one after the other
    Serializable,
    /// Each reads from one snapshot, and no two write the same
    Snapshot,
}

/// `ithaca volume create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Where it lies, and how it is spread
    #[command(flatten)]
    pub at: DirArgs,
    /// Size of the volume, a multiple of 4k
    #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub size: u64,
    /// Bytes that are taken in each directory [default: as much as all blocks and a quarter more need]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub room: Option<u64>,
    /// Old versions that are kept, as far as there is room
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub keep_versions: u64,
    /// How long old versions are kept, as far as there is room
    #[arg(long, default_value = "0s", value_name = "SPAN", value_parser = quantity::duration)]
    pub keep_age: Duration,
    /// What transactions are held to
    #[arg(long, value_enum, default_value_t = IsolationArg::Serializable)]
    pub isolation: IsolationArg,
}

/// `ithaca volume serve`.
#[derive(Args, Debug)]
pub struct ServeVolumeArgs {
    /// Where it lies
    #[command(flatten)]
    pub at: DirArgs,
    /// Where NBD clients connect; port 0 picks a free one
    #[arg(long, default_value = DEFAULT_NBD, value_name = "HOST:PORT", value_parser = parse_address)]
    pub nbd: SocketAddr,
    /// Where transactions of other processes connect, as this user or root [default: volume.sock in its first directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Memory for blocks that were read or written of late
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub read_cache: u64,
    /// Name of the export [default: the name of the first directory]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Serve what is left of a volume that has lost a part of its log, read-only, and change nothing
    #[arg(long, conflicts_with = "socket")]
    pub rescue: bool,
}

/// `ithaca volume mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Where it lies
    #[command(flatten)]
    pub at: DirArgs,
    /// A file or a folder to show it at
    pub path: PathBuf,
    /// Let other users use the file, as far as its mode (0600) lets them: root
    #[arg(long)]
    pub allow_other: bool,
    /// Where transactions of other processes connect, as this user or root [default: volume.sock in its first directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Memory for blocks that were read or written of late
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub read_cache: u64,
    /// The region that the file shows [default: all of the volume]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub region: Option<String>,
    /// The file's name in a folder [default: the name of the first directory]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Show what is left of a volume that has lost a part of its log, read-only, and change nothing
    #[arg(long, conflicts_with = "socket")]
    pub rescue: bool,
}

/// `ithaca volume snapshot`.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// Where it lies, or is served
    #[command(flatten)]
    pub served: ServedArgs,
    /// The snapshot's name: 1 to 64 bytes without `@`, `/` and control characters
    pub name: String,
    /// Forget a snapshot instead
    #[arg(long)]
    pub delete: bool,
}

/// `ithaca volume region`.
#[derive(Args, Debug)]
pub struct RegionArgs {
    /// What to do
    #[command(subcommand)]
    pub act: RegionAct,
}

/// What is done with regions.
#[derive(Subcommand, Debug)]
pub enum RegionAct {
    /// Make a region of blocks that are in no other; what they hold stays
    #[command(after_help = "Example:\n  ithaca volume region add ./disk mail --size 1G")]
    Add {
        /// Where the volume lies, or is served
        #[command(flatten)]
        served: ServedArgs,
        /// The region's name
        #[arg(value_parser = parse_name)]
        name: String,
        /// Its size, a multiple of 4k
        #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
        size: u64,
    },
    /// List regions
    #[command(after_help = "Example:\n  ithaca volume region ls ./disk")]
    Ls {
        /// Where the volume lies, or is served
        #[command(flatten)]
        served: ServedArgs,
    },
    /// Remove a region and all that it holds, but for old versions that are kept
    #[command(after_help = "Example:\n  ithaca volume region rm ./disk mail")]
    Rm {
        /// Where the volume lies, or is served
        #[command(flatten)]
        served: ServedArgs,
        /// The region's name
        #[arg(value_parser = parse_name)]
        name: String,
    },
}

/// Longest name of an export or a region, in bytes.
const NAME_MAX_BYTES: usize = 64;

fn parse_name(text: &str) -> Result<String, String> {
    let is_allowed = (1..=NAME_MAX_BYTES).contains(&text.len())
        && !text.contains(['@', '/'])
        && !text.contains(char::is_control);
    is_allowed.then(|| text.to_owned()).ok_or_else(|| {
        format!("expected 1 to {NAME_MAX_BYTES} bytes without `@`, `/` and control characters")
    })
}
