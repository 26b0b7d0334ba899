//! `ithaca volume`: volumes in directories of this machine.
//!
//! A volume lies in a file `volume.chain` in each of its directories. All commands but `create` need every one of them, and no
//! two processes can have a volume open; some commands ask the one that serves it.

mod arguments;
mod check;
mod mount;
mod reach;
mod region;
mod rescue;
mod serve;
mod sides;

use std::path::{Path, PathBuf};

use ithaca_chain::{ChainOptions, Drives, OpenError, OptionsError};
use ithaca_env::Env;
use ithaca_env::codec::DecodeError;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::real::{self, files};
use ithaca_volume::limits::VOLUME_BLOCK_BYTES;
use ithaca_volume::socket::{DriveState, DriveSummary, Scrub, Summary};
use ithaca_volume::{Isolation, Retention, Version, Volume, VolumeError, VolumeOptions, VolumeSettings};

pub use arguments::VolumeCommand;
use arguments::{CreateArgs, DirArgs, InfoArgs, IsolationArg, ServedArgs, SnapshotArgs};
use reach::reach;

use crate::cli::Global;
use crate::drive;
use crate::drive::sides_of;
use crate::failure::Failure;
use crate::fsck::{chain_failed, drive_failed};
use crate::json::{Object, array, quoted};
use crate::output::{Output, shown};
use crate::quantity::short_bytes;

/// The file of a volume in a directory.
const FILE_NAME: &str = "volume.chain";
/// What the chain of a volume says that it is.
const LABEL: &str = "volume";
/// Segments that a volume's drive has about, so that cleaning has a choice.
const SEGMENTS_WANTED: u64 = 64;
/// Segments of a new volume, in bytes: a small volume has small ones.
const SEGMENT_MIN_BYTES: u64 = 4 << 20;
const SEGMENT_MAX_BYTES: u64 = 64 << 20;
/// Segments that a chain needs for itself: those that are being written, prepared or cleaned, and its reserve.
const SPARE_SEGMENTS: u64 = 16;

/// Runs a command.
pub fn run(global: &Global, command: &VolumeCommand, out: Output) -> Result<(), Failure> {
    let mut out = out;
    match command {
        VolumeCommand::Create(arguments) => create(arguments, &mut out),
        VolumeCommand::Info(arguments) => info(global, arguments, &mut out),
        VolumeCommand::Serve(arguments) => serve::run(arguments, out),
        VolumeCommand::Mount(arguments) => mount::run(arguments, out),
        VolumeCommand::Check(at) => check::check(at, &mut out),
        VolumeCommand::Scrub(at) => check::scrub(global, at, &mut out),
        VolumeCommand::Snapshot(arguments) => snapshot(global, arguments, &mut out),
        VolumeCommand::Region(arguments) => region::run(global, arguments, &mut out),
    }
}

/// `volume VERB DIR...`, for errors.
fn context(verb: &str, at: &DirArgs) -> String {
    let dirs: Vec<String> = at.dirs.iter().map(|dir| dir.display().to_string()).collect();
    format!("volume {verb} {}", dirs.join(" "))
}

/// The files of a volume: those of a link, which hold the same, together.
fn links(dirs: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    dirs.iter().map(|dir| sides_of(dir).iter().map(|side| file_of(side)).collect()).collect()
}

/// Refuses directories of which two lead to one file: it would seem to be in use by somebody else.
fn refuse_twice(at: &DirArgs) -> Result<(), Failure> {
    drive::refuse_twice(links(&at.dirs).iter().flatten())
}

/// A file or a block device is meant itself; anything else is a directory.
fn file_of(path: &Path) -> PathBuf {
    if files::exists(path) && !files::is_dir(path) { path.to_owned() } else { path.join(FILE_NAME) }
}

/// Opens the drives of a volume to be written to, as an open does, creating each file that is not there if a size is given.
async fn open_drives(env: &Env, at: &DirArgs, create_bytes: Option<u64>) -> Result<Vec<Vec<Drive>>, Failure> {
    let mut opened = Vec::new();
    for link in links(&at.dirs) {
        let mut sides = Vec::new();
        for path in link {
            let open = OpenDrive { path, create_bytes, read_only: false };
            let failed = if create_bytes.is_some() { drive_failed } else { not_written_to };
            sides.push(env.open_drive(open).await.map_err(failed)?);
        }
        opened.push(sides);
    }
    Ok(opened)
}

/// How a drive ends a command that cannot be opened to be written to.
fn not_written_to(error: DriveError) -> Failure {
    let may_be_read = matches!(error, DriveError::CannotOpen { .. });
    let failure = drive_failed(error);
    if may_be_read {
        failure.and("to read it alone, `volume info` and `volume serve` have --rescue")
    } else {
        failure
    }
}

/// A chain with so much memory for blocks that were read or written of late.
fn with_read_cache(bytes: u64) -> ChainOptions {
    ChainOptions { read_cache_bytes: usize::try_from(bytes).unwrap_or(usize::MAX), ..ChainOptions::default() }
}

/// Opens the volume of these directories.
async fn open(env: &Env, at: &DirArgs, chain: ChainOptions) -> Result<Volume, Failure> {
    let drives = open_drives(env, at, None).await?;
    refuse_others(drives.iter().flatten()).await?;
    let settings = VolumeSettings { chain, ..VolumeSettings::default() };
    Volume::open(env, Drives::from(drives), settings).await.map_err(|error| open_failed(error, at))
}

/// A drive that holds something else than a volume, and says so, is a mistake of whoever named it.
async fn refuse_others(drives: impl Iterator<Item = &Drive>) -> Result<(), Failure> {
    for drive in drives {
        if let Ok(Some(other)) = ithaca_chain::identify(drive).await
            && other.label.as_str() != LABEL
        {
            return Err(Failure::usage(format!("{} is no volume: it holds {}", drive.name(), other.label)));
        }
    }
    Ok(())
}

/// Whether something is on a drive that does not even begin as a chain. A file that is called as those of volumes are was
/// one, and is damaged.
fn is_foreign(error: &OpenError) -> bool {
    match error {
        OpenError::SuperblockLost { drive, valid: 0, first_fault: DecodeError::Invalid { .. } } => {
            Path::new(drive).file_name() != Some(FILE_NAME.as_ref())
        }
        _ => false,
    }
}

fn largest(drives: &[Vec<Drive>]) -> u64 {
    drives.iter().flatten().map(Drive::size_bytes).max().unwrap_or(0)
}

/// How a volume that cannot be opened or used ends a command.
fn failed(error: VolumeError) -> Failure {
    let line = error.to_string();
    match error {
        VolumeError::Chain(OpenError::AlreadyThere { drive, id }) => {
            Failure::usage(format!("{drive} holds volume or chain {id} already"))
        }
        VolumeError::Chain(OpenError::NotAChain { drive }) => {
            Failure::usage(format!("{drive} holds no volume"))
        }
        VolumeError::Chain(error) if is_foreign(&error) => {
            Failure::usage(format!("neither blank nor a volume: {error}"))
        }
        VolumeError::Chain(error @ (OpenError::Options(_) | OpenError::NotBlank { .. })) => {
            Failure::usage(error.to_string())
        }
        VolumeError::Chain(OpenError::NoRescue { .. }) => Failure::damaged(line),
        VolumeError::Chain(error) => chain_failed(error),
        VolumeError::Drive(error) => drive_failed(error),
        VolumeError::Lost { .. } => Failure::damaged(line).and(rescue::WAY_OUT),
        VolumeError::StrangeRecord { .. } | VolumeError::Damaged { .. } => Failure::damaged(line),
        VolumeError::NoSuchSnapshot { .. }
        | VolumeError::NoSuchVersion { .. }
        | VolumeError::NoSuchRegion { .. } => Failure::no(line),
        VolumeError::Option { .. }
        | VolumeError::NotAVolume { .. }
        | VolumeError::BadName { .. }
        | VolumeError::NameTaken { .. }
        | VolumeError::TooManySnapshots { .. }
        | VolumeError::BadRegion { .. }
        | VolumeError::RegionTaken { .. }
        | VolumeError::TooManyRegions { .. }
        | VolumeError::RegionInUse { .. }
        | VolumeError::NoGap { .. } => Failure::usage(line),
        _ => Failure::unreachable(line),
    }
}

/// How a volume ends a command that could not be opened as it is.
fn open_failed(error: VolumeError, at: &DirArgs) -> Failure {
    let is_cut = matches!(error, VolumeError::Chain(OpenError::Truncated { .. }));
    if is_cut && links(&at.dirs).iter().any(|link| link.len() > 1) {
        return failed(error).and(sides::CUT_WAY_OUT);
    }
    // The next start may read what this one could not; but a sector that is harmed stays so.
    let is_read =
        matches!(&error, VolumeError::Chain(OpenError::Drive(DriveError::Io { operation: "read", .. })));
    let failure = failed(error);
    if is_read { failure.and(format_args!("if that stays so, {}", rescue::WAY_OUT)) } else { failure }
}

fn create(arguments: &CreateArgs, out: &mut Output) -> Result<(), Failure> {
    let created = real::run(|env| async move {
        let options = options(arguments)?;
        let chain = &options.settings.chain;
        refuse_twice(&arguments.at)?;
        for dir in links(&arguments.at.dirs).into_iter().flatten() {
            if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                let made = files::create_dir(parent);
                made.map_err(|error| Failure::usage(format!("{}: {error}", parent.display())))?;
            }
        }
        let drives = open_drives(&env, &arguments.at, Some(chain.capacity_bytes)).await?;
        let settings = VolumeSettings {
            chain: ChainOptions { capacity_bytes: largest(&drives), ..chain.clone() },
            ..options.settings
        };
        let options = VolumeOptions { settings, ..options };
        let volume = Volume::create(&env, Drives::from(drives), options).await.map_err(failed)?;
        let told = Told::of(&volume);
        volume.close().await.map_err(failed)?;
        tell(&told, out)
    });
    created.map_err(|failure: Failure| failure.context(context("create", &arguments.at)))
}

fn options(arguments: &CreateArgs) -> Result<VolumeOptions, Failure> {
    let block = VOLUME_BLOCK_BYTES as u64;
    if arguments.size == 0 || !arguments.size.is_multiple_of(block) {
        let size = arguments.size;
        return Err(Failure::usage(format!(
            "--size {size}: expected a multiple of {block}, at least {block}"
        )));
    }
    let segment_bytes = (arguments.size / SEGMENTS_WANTED).next_power_of_two();
    let segment_bytes = segment_bytes.clamp(SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES);
    let links = arguments.at.dirs.len() as u64;
    let needed = (arguments.size / 4 * 5).div_ceil(links) + SPARE_SEGMENTS * segment_bytes;
    let capacity_bytes = arguments.room.unwrap_or(needed).next_multiple_of(block);
    let chain = ChainOptions {
        segment_bytes,
        capacity_bytes,
        grow_bytes: segment_bytes.max(ChainOptions::default().grow_bytes),
        ..ChainOptions::default()
    };
    // Before there is a file of that size.
    chain.validate().map_err(|error| match (error, arguments.room) {
        (OptionsError::OutOfRange { name: "capacity_bytes", min, max, .. }, Some(room)) => Failure::usage(
            format!("--room {room}: expected {min} to {max} bytes for --size {}", arguments.size),
        ),
        (OptionsError::OutOfRange { name: "capacity_bytes", found, min, max }, None) => {
            let (size, line) = (arguments.size, format!("which can have {min} to {max}"));
            Failure::usage(format!("--size {size}: it needs a log of {found} bytes on each drive, {line}"))
        }
        (error, _) => Failure::usage(error.to_string()),
    })?;
    Ok(VolumeOptions {
        retention: Retention { versions: arguments.keep_versions, age: arguments.keep_age },
        isolation: match arguments.isolation {
            IsolationArg::Serializable => Isolation::StrictSerializable,
            IsolationArg::Snapshot => Isolation::Snapshot,
        },
        settings: VolumeSettings { chain, ..VolumeSettings::default() },
        ..VolumeOptions::new(arguments.size / block)
    })
}

fn info(global: &Global, arguments: &InfoArgs, out: &mut Output) -> Result<(), Failure> {
    let InfoArgs { served: arguments, rescue } = arguments;
    let told = real::run(|env| async move {
        if *rescue {
            return rescue::info(&env, &arguments.at, out).await;
        }
        let reached = reach(&env, &arguments.at, arguments.socket.as_deref(), global.timeout).await?;
        let told = reached.info().await;
        reached.leave().await?;
        tell(&told?, out)
    });
    told.map_err(|failure: Failure| failure.context(context("info", &arguments.at)))
}

fn snapshot(global: &Global, arguments: &SnapshotArgs, out: &mut Output) -> Result<(), Failure> {
    let SnapshotArgs { served: ServedArgs { at, socket }, name, .. } = arguments;
    let context = context("snapshot", at);
    let named = real::run(|env| async move {
        let reached = reach(&env, at, socket.as_deref(), global.timeout).await?;
        let done = match arguments.delete {
            false => reached.create_snapshot(name).await.map(|version| version.0),
            true => reached.delete_snapshot(name).await.map(|()| 0),
        };
        reached.leave().await?;
        let version = done?;
        out.either(
            || match arguments.delete {
                false => format!("snapshot {name} is version {version}"),
                true => format!("snapshot {name} is forgotten"),
            },
            || match arguments.delete {
                false => Object::new().string("snapshot", name).number("version", version),
                true => Object::new().string("snapshot", name).boolean("deleted", true),
            },
        )?;
        out.flush()
    });
    named.map_err(|failure: Failure| failure.context(context))
}

/// What is told of a volume.
struct Told {
    info: Summary,
    snapshots: Vec<(String, Version)>,
    /// What is known to be harmed.
    known: Scrub,
}

impl Told {
    /// That of a volume that this process has open.
    fn of(volume: &Volume) -> Self {
        Self { info: Summary::of(volume), snapshots: volume.snapshots(), known: Scrub::of(volume) }
    }
}

fn tell(told: &Told, out: &mut Output) -> Result<(), Failure> {
    out.either(|| human(told), || json(told))?;
    out.flush()
}

fn human(Told { info, snapshots, known }: &Told) -> String {
    let block = VOLUME_BLOCK_BYTES as u64;
    let mut text = format!(
        "volume {}: {} ({} blocks of 4K), {} of data; version {}, history from {}",
        info.id,
        short_bytes(info.blocks * block),
        info.blocks,
        short_bytes(info.data_blocks * block),
        info.version,
        info.floor,
    );
    for (name, version) in snapshots {
        text += &format!("\n  snapshot {}: version {version}", shown(name));
    }
    for DriveSummary { drive, state, segments, segments_free } in &info.drives {
        let state = match state {
            DriveState::Live => String::new(),
            DriveState::Stale => ", stale: has not everything".to_owned(),
            DriveState::Rebuilding { segments: done } => {
                format!(", being rebuilt: {done} of {segments} segments")
            }
            DriveState::Missing => ", not given or lost".to_owned(),
        };
        text += &format!("\n  {drive}: {segments} segments, {segments_free} free{state}");
    }
    for damage in &known.damage {
        text += &format!("\n  damaged: {damage}");
    }
    match known.damaged.saturating_sub(known.damage.len() as u64) {
        0 => text,
        more => format!("{text}\n  damaged: {more} places more"),
    }
}

fn json(Told { info, snapshots, known }: &Told) -> Object {
    let block = VOLUME_BLOCK_BYTES as u64;
    let isolation = match info.isolation {
        Isolation::StrictSerializable => "serializable",
        Isolation::Snapshot => "snapshot",
    };
    let snapshot = |(name, version): &(String, Version)| {
        Object::new().string("name", name).number("version", version.0).finish()
    };
    let drive = |drive: &DriveSummary| {
        let object = Object::new().string("drive", &drive.drive).number("segments", drive.segments);
        let object = object.number("free", drive.segments_free);
        let state = |state| object.string("state", state);
        match drive.state {
            DriveState::Live => state("live"),
            DriveState::Stale => state("stale"),
            DriveState::Rebuilding { segments } => state("rebuilding").number("rebuilt", segments),
            DriveState::Missing => state("missing"),
        }
        .finish()
    };
    Object::new()
        .string("volume", &info.id.to_string())
        .number("size_bytes", info.blocks * block)
        .number("blocks", info.blocks)
        .number("data_blocks", info.data_blocks)
        .number("version", info.version.0)
        .number("floor", info.floor.0)
        .number("versions", info.versions)
        .number("keep_versions", info.retention.versions)
        .number("keep_age_ms", u64::try_from(info.retention.age.as_millis()).unwrap_or(u64::MAX))
        .string("isolation", isolation)
        .number("segment_bytes", info.segment_bytes)
        .number("free_bytes", info.free_bytes)
        .number("transactions", info.transactions)
        .raw("snapshots", &array(snapshots.iter().map(snapshot)))
        .raw("drives", &array(info.drives.iter().map(drive)))
        .number("damaged", known.damaged)
        .raw("damage", &array(known.damage.iter().map(|damage| quoted(damage))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn what_cannot_be_read_at_a_start_is_not_damaged_and_there_is_a_way_out_if_it_stays_so() {
        let failing = |operation| {
            let (path, message) = ("disk".to_owned(), "Input/output error".to_owned());
            let error = DriveError::Io { path, operation, offset: 4096, message };
            open_failed(VolumeError::Chain(OpenError::Drive(error)), &DirArgs { dirs: vec!["disk".into()] })
        };
        let told = "disk: read at byte 4096 failed: Input/output error; if that stays so, `volume info --rescue` says";
        let Failure::Told { exit: Exit::Unreachable, line } = failing("read") else { panic!("it may pass") };
        assert!(line.starts_with(told), "{line}");
        let Failure::Told { exit: Exit::Unreachable, line } = failing("write") else { panic!("it may pass") };
        assert_eq!(line, "disk: write at byte 4096 failed: Input/output error");
    }
}
