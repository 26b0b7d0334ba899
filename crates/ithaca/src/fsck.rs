//! `ithaca fsck`: reads everything in a data directory that no process uses, verifies every checksum, changes nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    ChainId, CheckReport, Damage, DriveReport, Drives, Identity, Notary, OpenError, SideState,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::real::files::Place;
use ithaca_env::real::{self, files};
use ithaca_log::pos::NodeId;
use ithaca_log::server::register::{self, Purpose, Register, RegisterError};
use ithaca_log::server::unit_label;

use crate::drive::not_opened;
use crate::failure::Failure;
use crate::json::{Object, array, quoted};
use crate::output::Output;

/// The drives of a chain, and which one they say it is.
type Chain = (Option<Identity>, Vec<Drive>);

/// What a data directory remembers.
#[derive(Default)]
struct Remembered {
    /// Where the drives of its units are.
    units: Vec<(NodeId, Vec<PathBuf>)>,
    /// How far the drives of their chains have come.
    notaries: Vec<(ChainId, Rc<dyn Notary>)>,
}

/// A register that was told of a generation.
struct Told {
    register: PathBuf,
    generation: u64,
}

impl Notary for Told {
    fn name(&self) -> String {
        self.register.display().to_string()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    /// A check changes no drives.
    fn tell(&self, _: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async {})
    }
}

/// Copies of a superblock.
const SUPERBLOCK_COPIES: usize = 4;

/// Checks every file of `paths`: data directories with the drives that their units are remembered to have, and drives that lie elsewhere.
/// Prints a line for each register and each chain, then fails if one is harmed, or no drive of a unit is there.
pub fn run(paths: &[PathBuf], out: &mut Output) -> Result<(), Failure> {
    let context = format!("fsck {}", names(paths));
    let harmed = real::run(|env| async move {
        let (mut harmed, mut files) = (0, Vec::new());
        let (mut known, mut left) = (Remembered::default(), Vec::new());
        for path in paths {
            let found = files_of(path)?;
            let remembered = remembered_in(&env, path).await?;
            harmed += usize::from(!tell_if_lost(path, &remembered, out)?);
            left.extend(left_of(&found, &remembered.units)?);
            files.extend(found);
            known.units.extend(remembered.units);
            known.notaries.extend(remembered.notaries);
        }
        let remembered = not_named(&files, known.units.iter().flat_map(|(_, drives)| drives))?;
        files.extend_from_slice(&remembered);
        let chains: Vec<PathBuf> = files.iter().filter(|file| Purpose::of(file).is_none()).cloned().collect();
        for file in &files {
            let Some(purpose) = Purpose::of(file) else { continue };
            // Layouts are written before chains are made; where their drives are may be remembered by nobody.
            let is_needed = purpose == Purpose::Layouts && !chains.is_empty();
            harmed += usize::from(!check_register(&env, file, purpose, is_needed, out).await?);
        }
        let (chains, short) = chains_of(&env, &chains, &remembered, &left, out).await?;
        harmed += short;
        for (identity, drives) in &chains {
            let chain = identity.as_ref().map(|identity| identity.id);
            let notary = known.notaries.iter().find(|(of, _)| Some(*of) == chain);
            let notary = notary.map(|(_, notary)| Rc::clone(notary));
            harmed += usize::from(!check_chain(drives, notary, out).await?);
        }
        out.flush()?;
        let is_here = |node: NodeId| chains.iter().any(|(identity, _)| is_of(identity.as_ref(), node));
        match known.units.iter().find(|(node, _)| harmed == 0 && !is_here(*node)) {
            Some((node, drives)) => {
                let at = names(drives);
                Err(Failure::usage(format!("no drive of unit {node} is at {at}: name where they are")))
            }
            None => Ok(harmed),
        }
    });
    match harmed.map_err(|failure: Failure| failure.context(&context))? {
        0 => Ok(()),
        1 => Err(Failure::damaged(format!("{context}: one file or chain is damaged"))),
        many => Err(Failure::damaged(format!("{context}: {many} files or chains are damaged"))),
    }
}

/// The register of a directory and its chains, in order.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !files::is_dir(path) {
        return if files::exists(path) { Ok(vec![path.into()]) } else { Err(Failure::usage("is not there")) };
    }
    let listed = files::list(path).map_err(|error| Failure::usage(error.to_string()))?;
    let found: Vec<PathBuf> =
        listed.into_iter().filter(|file| Purpose::of(file).is_some() || is_chain(file)).collect();
    if found.is_empty() {
        return Err(Failure::usage("holds no data of a cluster"));
    }
    Ok(found)
}

/// Whether a directory that has units has layouts too; that it has not is told.
fn tell_if_lost(path: &Path, remembered: &Remembered, out: &mut Output) -> Result<bool, Failure> {
    let layouts = path.join(Purpose::Layouts.file_name());
    let is_lost = !remembered.units.is_empty() && !files::exists(&layouts);
    if is_lost {
        tell_damaged(&layouts.display().to_string(), "it is not there", out)?;
    }
    Ok(!is_lost)
}

/// What a data directory remembers of its units' drives.
async fn remembered_in(env: &Env, path: &Path) -> Result<Remembered, Failure> {
    let file = path.join(Purpose::Drives.file_name());
    if !files::exists(&file) {
        return Ok(Remembered::default());
    }
    let drive = match open(env, &file).await {
        // Which is told when it is checked.
        Err(DriveError::TooShort { .. }) => return Ok(Remembered::default()),
        opened => opened.map_err(drive_failed)?,
    };
    if drive.size_bytes() < Purpose::Drives.register_bytes() {
        // So is this.
        return Ok(Remembered::default());
    }
    let bytes = read_register(&drive, Purpose::Drives).await?;
    let notary = |(chain, generation)| {
        let told: Rc<dyn Notary> = Rc::new(Told { register: file.clone(), generation });
        (chain, told)
    };
    let notaries = register::generations_in(&bytes).into_iter().map(notary).collect();
    Ok(Remembered { units: register::drives_in(&bytes, path), notaries })
}

/// The drives that are there and are none of `files`, by whatever path.
fn not_named<'a>(
    files: &[PathBuf],
    drives: impl Iterator<Item = &'a PathBuf>,
) -> Result<Vec<PathBuf>, Failure> {
    let mut places = places_of(files)?;
    let mut others = Vec::new();
    for drive in drives.filter(|drive| files::exists(drive)) {
        if places.insert(place_of(drive)?) {
            others.push(drive.clone());
        }
    }
    Ok(others)
}

/// Those of a directory's files that are called as a unit's only drive is, of a unit that is remembered to have other drives by now.
fn left_of(found: &[PathBuf], units: &[(NodeId, Vec<PathBuf>)]) -> Result<Vec<PathBuf>, Failure> {
    let mut left = Vec::new();
    for (node, drives) in units.iter().filter(|(_, drives)| !drives.is_empty()) {
        let name = format!("unit-{}.chain", node.0);
        let Some(file) = found.iter().find(|file| file.ends_with(&name)) else { continue };
        if !places_of(drives)?.contains(&place_of(file)?) {
            left.push(file.clone());
        }
    }
    Ok(left)
}

fn places_of(files: &[PathBuf]) -> Result<BTreeSet<Place>, Failure> {
    files.iter().map(|file| place_of(file)).collect()
}

fn place_of(file: &Path) -> Result<Place, Failure> {
    files::place(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

/// Whether a chain is that of a unit.
fn is_of(identity: Option<&Identity>, node: NodeId) -> bool {
    identity.is_some_and(|identity| identity.label == unit_label(node))
}

/// Whether a file of a data directory is a unit's drive, by its name.
pub fn is_chain(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "chain")
}

/// Opens a file that must be there. Opening for writing takes the lock, so that nobody changes it meanwhile; who may only
/// read goes without, and is refused where somebody has it.
pub async fn open(env: &Env, file: &Path) -> Result<Drive, DriveError> {
    let open = OpenDrive { path: file.into(), create_bytes: None, read_only: false };
    match env.open_drive(open.clone()).await {
        Err(DriveError::CannotOpen { .. } | DriveError::Io { .. }) => {
            let drive = env.open_drive(OpenDrive { read_only: true, ..open }).await?;
            match files::is_locked(file) {
                Ok(true) => Err(DriveError::InUse { path: drive.name() }),
                // A file system without locks keeps nobody from anything.
                Ok(false) | Err(_) => Ok(drive),
            }
        }
        opened => opened,
    }
}

/// Opens a file of a data directory; `None`, which is told, if it is cut so short that it is damaged.
async fn open_whole(env: &Env, file: &Path, out: &mut Output) -> Result<Option<Drive>, Failure> {
    match open(env, file).await {
        Err(DriveError::TooShort { bytes, .. }) => {
            tell_damaged(&file.display().to_string(), &format!("it has {bytes} bytes"), out)?;
            Ok(None)
        }
        opened => opened.map(Some).map_err(drive_failed),
    }
}

fn tell_damaged(name: &str, why: &str, out: &mut Output) -> Result<(), Failure> {
    out.either(
        || format!("{name}: damaged: {why}"),
        || Object::new().string("file", name).boolean("ok", false).string("error", why),
    )
}

fn tell_blank(name: &str, out: &mut Output) -> Result<(), Failure> {
    out.either(
        || format!("{name}: blank, and a drive of no unit"),
        || Object::new().string("file", name).boolean("ok", true).boolean("blank", true),
    )
}

/// How a drive that cannot be opened or read ends a command.
pub fn drive_failed(error: DriveError) -> Failure {
    not_opened(&error, error.to_string())
}

/// Checks a register, which must hold something if it is needed.
async fn check_register(
    env: &Env,
    file: &Path,
    purpose: Purpose,
    is_needed: bool,
    out: &mut Output,
) -> Result<bool, Failure> {
    // Held while it is read, so that no cluster starts on it meanwhile.
    let Some(drive) = open_whole(env, file, out).await? else { return Ok(false) };
    let (bytes, needed) = (drive.size_bytes(), purpose.register_bytes());
    if bytes < needed {
        tell_damaged(&file.display().to_string(), &format!("it has {bytes} bytes of {needed}"), out)?;
        return Ok(false);
    }
    let slots = register::describe(&read_register(&drive, purpose).await?, purpose);
    drop(drive);
    let open = OpenDrive { path: file.into(), create_bytes: None, read_only: true };
    let opened = Register::open(env, open, purpose).await;
    let fault = match opened {
        Ok((_, None)) if is_needed => Some("it holds nothing".to_string()),
        Ok(_) => None,
        Err(RegisterError::Damaged { error, .. }) => Some(error.to_string()),
        Err(cut @ RegisterError::Cut { .. }) => Some(cut.to_string()),
        Err(RegisterError::Drive(error)) => return Err(drive_failed(error)),
        Err(newer) => return Err(Failure::unreachable(newer.to_string())),
    };
    let name = file.display().to_string();
    let state = if fault.is_none() { "ok" } else { "damaged" };
    out.either(
        || format!("{name}: {state}: {}", slots.join("; ")),
        || {
            let slots = array(slots.iter().map(|slot| quoted(slot)));
            Object::new().string("file", &name).boolean("ok", fault.is_none()).raw("slots", &slots)
        },
    )?;
    Ok(fault.is_none())
}

/// All of a register; of a file that is longer than one, as much as one takes.
pub async fn read_register(drive: &Drive, purpose: Purpose) -> Result<Bytes, Failure> {
    let len = drive.size_bytes().min(purpose.register_bytes()) as usize;
    drive.read(0, len).await.map_err(drive_failed)
}

/// Opens the drives, those of one chain together, in the order in which they come. A drive that does not say whose it is stands
/// alone, unless it is only remembered: it may have been given up; or it is blank and one of `left`, which is told. Returns how many files
/// are too short to be drives, too.
async fn chains_of(
    env: &Env,
    files: &[PathBuf],
    remembered: &[PathBuf],
    left: &[PathBuf],
    out: &mut Output,
) -> Result<(Vec<Chain>, usize), Failure> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut short = 0;
    for file in files {
        let Some(drive) = open_whole(env, file, out).await? else {
            short += 1;
            continue;
        };
        let identity = match ithaca_chain::identify(&drive).await {
            Ok(None) if left.contains(file) => {
                tell_blank(&file.display().to_string(), out)?;
                continue;
            }
            Ok(identity) => identity,
            Err(OpenError::Drive(error)) => return Err(drive_failed(error)),
            Err(_) => None,
        };
        if identity.is_none() && remembered.contains(file) {
            continue;
        }
        match chains.iter_mut().find(|(other, _)| other.is_some() && *other == identity) {
            Some((_, drives)) => drives.push(drive),
            None => chains.push((identity, vec![drive])),
        }
    }
    Ok((chains, short))
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Checks the chain of these drives and prints a line about it. Returns whether it is whole.
pub async fn check_chain(
    drives: &[Drive],
    notary: Option<Rc<dyn Notary>>,
    out: &mut Output,
) -> Result<bool, Failure> {
    let name = drives.iter().map(Drive::name).collect::<Vec<_>>().join(", ");
    let given = Drives::from(drives.to_vec());
    let given = notary.into_iter().fold(given, Drives::with_notary);
    let report = match ithaca_chain::check(given).await {
        Ok(report) => report,
        Err(error) if is_damage(&error) => {
            tell_damaged(&name, &error.to_string(), out)?;
            return Ok(false);
        }
        Err(error) => return Err(chain_failed(error)),
    };
    let ok = report.damage.is_empty() && report.superblocks_are_whole();
    out.either(|| human(&name, ok, &report), || json(&name, ok, &report))?;
    Ok(ok)
}

/// A unit's file that is blank or cut short counts as damaged too: a cluster would not start on it.
fn is_damage(error: &OpenError) -> bool {
    use OpenError::{CheckpointLost, NotAChain, SuperblockLost, TooSmall, Truncated};
    matches!(
        error,
        SuperblockLost { .. } | CheckpointLost { .. } | NotAChain { .. } | TooSmall { .. } | Truncated { .. }
    )
}

/// How a chain that cannot be opened ends a command.
pub fn chain_failed(error: OpenError) -> Failure {
    match error {
        OpenError::Drive(error) => drive_failed(error),
        OpenError::NotAChain { .. }
        | OpenError::TooSmall { .. }
        | OpenError::DriveMissing { .. }
        | OpenError::NotAMember { .. }
        | OpenError::WrongChain { .. }
        | OpenError::StaleDrive { .. }
        | OpenError::Disagree { .. }
        | OpenError::TooManyDrives { .. }
        | OpenError::BadMirror { .. }
        | OpenError::GivenTwice { .. } => Failure::usage(error.to_string()),
        error if is_damage(&error) => Failure::damaged(error.to_string()),
        error => Failure::unreachable(error.to_string()),
    }
}

fn human(name: &str, ok: bool, report: &CheckReport) -> String {
    let mut text = format!(
        "{name}: {}: {}: {} records, {} bytes of data, {} groups; segments: {} closed, {} open, {} free",
        if ok { "ok" } else { "damaged" },
        report.identity.label.as_str(),
        report.records,
        report.data_bytes,
        report.groups,
        report.segments_closed,
        report.segments_open,
        report.segments_free,
    );
    if report.cut_groups > 0 {
        text += &format!("; {} groups that nobody was promised will be cut", report.cut_groups);
    }
    if report.drives.len() > 1 {
        for drive in &report.drives {
            let tail = if drive.is_tail { ", the log goes on here" } else { "" };
            let stale = if drive.state == SideState::Stale { ", stale: not looked at" } else { "" };
            let DriveReport { drive: name, link, segments, segments_live, segments_free, damage, .. } = drive;
            text += &format!(
                "\n  {name}: link {link}, {segments} segments, {segments_live} live, {segments_free} free{tail}{stale}"
            );
            for damage in damage {
                let words = damage.in_words(keys_of(report));
                let elsewhere = if report.is_elsewhere(drive, damage) { ": another side has it" } else { "" };
                text += &format!("\n    {words}{elsewhere}");
            }
        }
    }
    if report.missing > 0 {
        text += &format!("; {} sides of mirrored links are not here", report.missing);
    }
    for drive in report.drives.iter().filter(|drive| drive.superblock_copies < SUPERBLOCK_COPIES) {
        let good = drive.superblock_copies;
        text += &format!("; {good} of {SUPERBLOCK_COPIES} superblocks of {} are good", drive.drive);
    }
    if !report.is_control_certain {
        text += "\n  groups are lost that may have said what is released, or what a unit has promised: no unit starts from it";
    }
    let is_told = |damage: &&Damage| {
        report.drives.len() > 1 && report.drives.iter().any(|drive| drive.damage.contains(damage))
    };
    for damage in report.damage.iter().filter(|damage| !is_told(damage)) {
        text += &format!("\n  {}", damage.in_words(keys_of(report)));
    }
    text
}

fn json(name: &str, ok: bool, report: &CheckReport) -> Object {
    Object::new()
        .string("file", name)
        .boolean("ok", ok)
        .string("holds", report.identity.label.as_str())
        .number("records", report.records)
        .number("data_bytes", report.data_bytes)
        .number("groups", report.groups)
        .number("segments_closed", report.segments_closed)
        .number("segments_open", report.segments_open)
        .number("segments_free", report.segments_free)
        .number("cut_groups", report.cut_groups)
        .number("missing", report.missing as u64)
        .raw("drives", &array(report.drives.iter().map(drive_json)))
        .boolean("control_certain", report.is_control_certain)
        .raw("damage", &array(report.damage.iter().map(|damage| quoted(&damage.in_words(keys_of(report))))))
}

fn drive_json(report: &DriveReport) -> String {
    Object::new()
        .string("drive", &report.drive)
        .string("id", &report.id.to_string())
        .number("segments", report.segments)
        .number("free", report.segments_free)
        .number("live", report.segments_live)
        .boolean("tail", report.is_tail)
        .number("superblock_copies", report.superblock_copies as u64)
        .finish()
}

/// What the keys of a chain are, by who owns it.
fn keys_of(report: &CheckReport) -> &'static str {
    if report.identity.label.as_str() == "volume" { "blocks" } else { "addresses" }
}
