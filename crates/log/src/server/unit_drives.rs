//! The drives of a unit: opens the chain that they hold, makes it when the cluster is new, and adds drives that are.
//!
//! Which drives a start looks at is what it is given, or what is remembered:
//!
//! | given | looks at | what is not the chain's there |
//! |---|---|---|
//! | other drives than at the last start that was given some | those, all of them | is added, where it is blank or nothing |
//! | the same again, or none | what the unit had last | has been given up, and is left out |
//!
//! So what was changed while the unit served holds until a start is told something else.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{
    Chain, ChainId, ChainOptions, Drives, Identity, LinkStats, MetadataDrive, OpenError, Recovered, identify,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive};
use ithaca_env::task::TaskHandle;

use super::forming::{refuse_other, unit_label};
use super::layouts::LayoutKeeper;
use super::leases::Leases;
use super::local::StartError;
use super::outdated;
use super::register::RegisterError;
use super::remembered::{Links, RememberError, Remembered, UnitNotary, UnitPaths};
use super::unit_shell::UnitShell;
use crate::pos::{ClusterId, NodeId};
use crate::unit::UnitOptions;

/// A start that waits for drives says so as often as this.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What a unit stands on.
pub(super) struct UnitDrives {
    /// Which drives a start is to look at.
    pub(super) wanted: Wanted,
    /// Where its drives are remembered.
    pub(super) remembered: Rc<Remembered>,
    /// Bytes that a new drive is created with.
    pub(super) create_bytes: u64,
    /// Where the footers of its chain are mirrored, if anywhere.
    pub(super) metadata: Option<MetadataDrive>,
    /// How its chain is set up.
    pub(super) chain: ChainOptions,
    /// How the unit is set up.
    pub(super) unit: UnitOptions,
}

/// The drives that a start is to look at, in the order of the chain.
pub(super) struct Wanted {
    /// Where they are.
    pub(super) links: Links,
    /// Whether they are those that the unit had last.
    is_remembered: bool,
    /// What this start was given.
    given: Links,
    /// What was remembered.
    before: UnitPaths,
}

impl UnitDrives {
    /// Refuses drives that are older than the directory that remembers them. One that remembers none takes what it is given: so its register of drives
    /// is removed by who has nothing newer.
    pub(super) fn check_age(
        &self,
        known: &LayoutKeeper,
        node: NodeId,
        unit: &UnitShell,
    ) -> Result<(), StartError> {
        match self.wanted.before.held.is_empty() {
            true => Ok(()),
            false => outdated::check(known, node, unit).map_err(StartError::OldDrives),
        }
    }
}

impl Wanted {
    /// What a start of the unit of `node` in `data` looks at that is given the drives `named`, where `A+B` names the sides of one. `remembered`
    /// is of a unit that is part of a cluster.
    pub(super) fn new<'a>(
        named: impl Iterator<Item = &'a PathBuf>,
        data: &Path,
        node: NodeId,
        remembered: Option<UnitPaths>,
    ) -> Self {
        let given: Links = named.map(|path| sides(path)).collect();
        let is_remembered =
            remembered.as_ref().is_some_and(|before| given.is_empty() || given == before.given);
        let before = remembered.unwrap_or_default();
        let links = match (is_remembered, given.is_empty()) {
            (true, _) => before.links(),
            (false, false) => given.clone(),
            (false, true) => vec![vec![data.join(format!("unit-{}.chain", node.0))]],
        };
        Self { links, is_remembered, given, before }
    }

    /// Drives that the unit had, and that this start leaves out.
    fn left_out(&self) -> Vec<PathBuf> {
        let is_wanted = |path: &PathBuf| self.links.iter().flatten().any(|wanted| wanted == path);
        self.before.links().into_iter().flatten().filter(|path| !is_wanted(path)).collect()
    }
}

/// The sides that `A+B` names. A path that is not text is one side.
fn sides(path: &Path) -> Vec<PathBuf> {
    path.to_str().map_or_else(|| vec![path.to_owned()], |text| text.split('+').map(PathBuf::from).collect())
}

/// Opens a unit's chain, or creates it when the cluster is new, and remembers where its drives are.
///
/// A drive that a formed cluster is given and that is not there, or that is blank, is added to the chain if the others are all of its
/// drives: otherwise one of them is lost.
pub(super) async fn open_unit(
    env: &Env,
    drives: &UnitDrives,
    node: NodeId,
    cluster: ClusterId,
    formed: bool,
    leases: Rc<Leases>,
) -> Result<(Rc<UnitShell>, TaskHandle<()>), StartError> {
    let label = unit_label(node);
    // The chain's identity is the cluster's and the unit's, so that a drive of another cluster is refused.
    let identity = Identity { id: ChainId((cluster.0 ^ u128::from(node.0)).to_le_bytes()), label };
    let start = Start { env, drives, node, identity: &identity };
    let opening = async { if formed { start.open().await } else { start.create_or_open().await } };
    let opened = start.telling(opening).await;
    let (chain, recovered) = opened.map_err(|error| match error {
        StartError::Chain(OpenError::ControlLost { drive }) => StartError::PromisesLost { unit: node, drive },
        other => other,
    })?;
    UnitShell::start(env, chain, recovered, drives.unit, leases)
        .map_err(|error| StartError::UnitState { path: names(&drives.wanted.links), error })
}

/// A start of a unit.
struct Start<'a> {
    env: &'a Env,
    drives: &'a UnitDrives,
    node: NodeId,
    identity: &'a Identity,
}

/// What is at the paths that a start looks at.
#[derive(Default)]
struct Found<'a> {
    /// Drives of the unit's chain, or that were.
    members: Vec<Drive>,
    /// Drives that are blank, or of something else.
    others: Vec<New<'a>>,
    /// Drives that cannot be looked at, and why.
    failed: Vec<(&'a Path, OpenError)>,
}

/// A drive that is not one of the chain's yet, and where it was given.
struct New<'a> {
    path: &'a Path,
    /// The sides that it was given with, itself among them.
    link: &'a [PathBuf],
    /// None if it is not there.
    drive: Option<Drive>,
}

impl<'a> Start<'a> {
    /// A unit that has forgotten a seal answers in an epoch that is over, one that has forgotten a trim shows what was trimmed: it does not
    /// serve without what it has promised.
    fn chain_options(&self) -> ChainOptions {
        ChainOptions { needs_control: true, ..self.drives.chain.clone() }
    }

    /// Waits for the drives, however long they take, and says so every so often: who looks at a start that does not get on finds out for what.
    async fn telling<T>(&self, opening: impl Future<Output = T>) -> T {
        let (mut opening, began) = (pin!(opening), self.env.now());
        loop {
            if let Ok(opened) = self.env.timeout(TOLD_EVERY, opening.as_mut()).await {
                return opened;
            }
            let (drives, waited) = (names(&self.drives.wanted.links), self.env.now().since(began));
            let unit = self.node.0;
            tracing::warn!(unit, %drives, ?waited, "the drives of a unit are not open yet: a start waits for them");
        }
    }

    /// These drives, with what else the unit's chain stands on.
    fn over(&self, drives: impl Into<Drives>) -> Drives {
        let notary = UnitNotary::new(self.env, &self.drives.remembered, self.node, self.identity.id);
        drives.into().with_metadata(self.drives.metadata.as_ref()).with_notary(notary)
    }

    async fn create_or_open(&self) -> Result<(Chain, Recovered), StartError> {
        let wanted = &self.drives.wanted;
        let held = UnitPaths { given: wanted.given.clone(), held: Vec::new() };
        let held = wanted.links.iter().fold(held, |held, sides| held.with_sides(&[], sides));
        self.remember(held).await?;
        let mut links = Vec::new();
        for link in &wanted.links {
            let mut sides = Vec::new();
            for path in link {
                let drive = open_drive(self.env, path, Some(self.drives.create_bytes)).await;
                sides.push(drive.map_err(OpenError::Drive)?);
            }
            links.push(sides);
        }
        let chain_options = self.chain_options();
        let links = self.over(links);
        let identity = self.identity.clone();
        // The cluster's id is stored before, so a chain with that id is the work of a start that was interrupted.
        match Chain::create(self.env, links.clone(), identity, chain_options.clone()).await {
            Err(OpenError::AlreadyThere { .. }) => {
                Ok(Chain::open(self.env, links, Some(self.identity), chain_options).await?)
            }
            created => Ok((created?, Recovered::default())),
        }
    }

    /// Opens the chain of a unit that has one, and adds the drives that are new to it.
    async fn open(&self) -> Result<(Chain, Recovered), StartError> {
        let wanted = &self.drives.wanted;
        let mut found = self.look().await;
        if !wanted.is_remembered && !found.failed.is_empty() {
            let (path, error) = found.failed.remove(0);
            self.refuse_other(path).await?;
            return Err(error.into());
        }
        let opened = self.open_members(&mut found).await;
        let (chain, recovered) = opened.map_err(|error| self.with_left_out(error))?;
        let (new, given_up): (Vec<_>, Vec<_>) =
            found.others.into_iter().partition(|other| self.is_new(other, &chain));
        // One that is not there may be a side that is away.
        let gone = given_up.iter().filter(|it| it.drive.is_some()).map(|it| it.path.to_owned());
        let gone: Vec<PathBuf> = gone.collect();
        for path in &gone {
            tracing::info!(path = %path.display(), "what is there is no drive of the unit any more: it is left out");
        }
        let mut before = self.before_this(&gone);
        if !new.is_empty() {
            before = new.iter().fold(before, |before, it| before.with_sides(it.link, &[it.path.to_owned()]));
            self.remember(before.clone()).await?;
        }
        for it in new {
            self.add(&chain, it).await?;
        }
        let given = if wanted.given.is_empty() { before.given } else { wanted.given.clone() };
        let now = UnitPaths { given, ..before }.with_held(&chain.stats().links);
        self.remember(now).await?;
        Ok((chain, recovered))
    }

    /// What is remembered while this start is not done, without what is at the paths `gone`.
    fn before_this(&self, gone: &[PathBuf]) -> UnitPaths {
        let wanted = &self.drives.wanted;
        if wanted.is_remembered {
            return wanted.before.without(gone);
        }
        // Paths of earlier starts are kept until this one has succeeded.
        wanted.links.iter().fold(wanted.before.clone(), |before, sides| before.with_sides(sides, sides))
    }

    /// Looks what is at each path.
    async fn look(&self) -> Found<'a> {
        let mut found = Found::default();
        let links = &self.drives.wanted.links;
        for (link, path) in links.iter().flat_map(|link| link.iter().map(move |path| (link, path))) {
            match open_drive(self.env, path, None).await {
                Err(DriveError::NotFound { .. }) => found.others.push(New { path, link, drive: None }),
                Err(error) => found.failed.push((path, error.into())),
                Ok(drive) => match identify(&drive).await {
                    Ok(Some(identity)) if self.drives.wanted.is_remembered && identity != *self.identity => {
                        found.others.push(New { path, link, drive: Some(drive) });
                    }
                    Ok(Some(_)) => found.members.push(drive),
                    Ok(None) => found.others.push(New { path, link, drive: Some(drive) }),
                    Err(error) => found.failed.push((path, error)),
                },
            }
        }
        found
    }

    /// Refuses a drive that the unit has not had, if something else is on it.
    async fn refuse_other(&self, path: &Path) -> Result<(), StartError> {
        let had = self.drives.wanted.before.links();
        if had.iter().flatten().any(|drive| drive == path) {
            return Ok(());
        }
        match open_drive(self.env, path, None).await {
            Ok(drive) => refuse_other(&drive, path).await,
            // Which is why it was not looked at.
            Err(_) => Ok(()),
        }
    }

    /// Opens the chain over the drives of it that were found. Of remembered ones those are left out that it has given up.
    async fn open_members(&self, found: &mut Found<'a>) -> Result<(Chain, Recovered), StartError> {
        loop {
            let absent = found.others.iter().find(|it| it.drive.is_none()).map(|it| it.path);
            let blank = found.others.iter().find_map(|it| it.drive.as_ref()).map(Drive::name);
            let opened = match (found.members.is_empty(), &absent, blank) {
                (true, None, Some(drive)) => Err(OpenError::NotAChain { drive }),
                (true, ..) => Err(OpenError::NoDrives),
                (false, ..) => {
                    let members = self.over(found.members.clone());
                    Chain::open(self.env, members, Some(self.identity), self.chain_options()).await
                }
            };
            match (opened, absent) {
                (Err(OpenError::NotAMember { drive, .. }), _)
                    if self.drives.wanted.is_remembered && found.members.len() > 1 =>
                {
                    self.give_up(found, &drive);
                }
                // What cannot be looked at may be what is missing.
                (Err(OpenError::NoDrives | OpenError::DriveMissing { .. }), _)
                    if !found.failed.is_empty() =>
                {
                    return Err(found.failed.remove(0).1.into());
                }
                (Err(OpenError::NoDrives | OpenError::DriveMissing { .. }), Some(path)) => {
                    let path = path.display().to_string();
                    return Err(StartError::DriveMissing { path, unit: self.node });
                }
                (opened, _) => return Ok(opened?),
            }
        }
    }

    /// A drive that was found is none of the chain's any more.
    fn give_up(&self, found: &mut Found<'a>, name: &str) {
        let links = self.drives.wanted.links.iter();
        let mut paths = links.flat_map(|link| link.iter().map(move |path| (link, path)));
        let given = paths.find(|(_, path)| path.display().to_string() == name);
        let place = found.members.iter().position(|drive| drive.name() == name);
        let (Some(place), Some((link, path))) = (place, given) else { unreachable!("{name} was looked at") };
        let drive = found.members.remove(place);
        found.others.push(New { path, link, drive: Some(drive) });
    }

    /// Whether a drive is to be added: as a start that looks at what is remembered does it, only in the place of a side that was lost, and if
    /// this start was told of it.
    fn is_new(&self, other: &New<'_>, chain: &Chain) -> bool {
        let wanted = &self.drives.wanted;
        let is_told = wanted.given.iter().flatten().any(|path| path == other.path);
        !wanted.is_remembered || is_told && beside(chain, other.link).is_some()
    }

    /// Adds a drive as a side of the link that another one it was given with is of, or as a link of its own.
    async fn add(&self, chain: &Chain, new: New<'_>) -> Result<(), StartError> {
        let drive = match new.drive {
            Some(drive) => drive,
            None => {
                let made = open_drive(self.env, new.path, Some(self.drives.create_bytes)).await;
                made.map_err(OpenError::Drive)?
            }
        };
        let drive_path = new.path.display();
        match beside(chain, new.link) {
            Some(beside) => {
                chain.add_side(beside.id, drive).await?;
                tracing::info!(drive = %drive_path, "a side of a mirrored link is new: it is being rebuilt");
            }
            None => {
                chain.add_drive(drive).await?;
                tracing::info!(drive = %drive_path, "a unit has one drive more");
            }
        }
        Ok(())
    }

    /// The error with the drives that this start was not given and that the unit had.
    fn with_left_out(&self, error: StartError) -> StartError {
        let left_out = self.drives.wanted.left_out();
        let is_of_drives = matches!(
            error,
            StartError::DriveMissing { .. }
                | StartError::Chain(OpenError::DriveMissing { .. } | OpenError::NoDrives)
        );
        if left_out.is_empty() || !is_of_drives {
            return error;
        }
        let (error, left_out) = (error.to_string(), names(&[left_out]));
        StartError::NotAllGiven { error, unit: self.node, left_out }
    }

    /// Remembers where the drives are. What does not fit is not, which is no reason not to start.
    async fn remember(&self, paths: UnitPaths) -> Result<(), StartError> {
        match self.drives.remembered.set(self.node, paths).await {
            Err(error @ RememberError::Unfit { .. }) => {
                tracing::warn!(node = self.node.0, %error, "every start must be given the drives of the unit");
                Ok(())
            }
            Err(RememberError::Drive(error)) => Err(RegisterError::Drive(error).into()),
            Ok(()) => Ok(()),
        }
    }
}

/// A drive of the chain that is one of these.
fn beside(chain: &Chain, link: &[PathBuf]) -> Option<LinkStats> {
    let is_given_with = |it: &LinkStats| link.iter().any(|path| path.display().to_string() == it.drive);
    chain.stats().links.into_iter().find(is_given_with)
}

async fn open_drive(env: &Env, path: &Path, create_bytes: Option<u64>) -> Result<Drive, DriveError> {
    env.open_drive(OpenDrive { path: path.to_owned(), create_bytes, read_only: false }).await
}

fn names(links: &[Vec<PathBuf>]) -> String {
    links.iter().flatten().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a start looks at that is given `given`, after one that was given `before` and left `held`.
    fn looked_at(given: &[&str], before: &[&str], held: &[&str]) -> (Vec<String>, bool) {
        let links = |paths: &[&str]| -> Links { paths.iter().map(|path| sides(Path::new(path))).collect() };
        let remembered = UnitPaths { given: links(before), held: Vec::new() };
        let remembered = links(held).iter().fold(remembered, |paths, sides| paths.with_sides(&[], sides));
        let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
        let wanted = Wanted::new(given.iter(), Path::new("/data"), NodeId(1), Some(remembered));
        let name = |sides: &Vec<PathBuf>| names(std::slice::from_ref(sides));
        (wanted.links.iter().map(name).collect(), wanted.is_remembered)
    }

    #[test]
    fn what_was_changed_while_a_unit_served_holds_until_a_start_is_given_something_else() {
        let held = ["/a", "/c"];
        let remembered = (vec!["/a".to_owned(), "/c".to_owned()], true);
        assert_eq!(looked_at(&[], &["/a", "/b"], &held), remembered);
        assert_eq!(looked_at(&["/a", "/b"], &["/a", "/b"], &held), remembered);
        assert_eq!(
            looked_at(&["/a", "/d"], &["/a", "/b"], &held),
            (vec!["/a".to_owned(), "/d".to_owned()], false)
        );
        assert_eq!(looked_at(&["/a+/b"], &["/a+/b"], &["/a+/b"]), (vec!["/a, /b".to_owned()], true));
        let nothing = Wanted::new([].iter(), Path::new("/data"), NodeId(7), None);
        assert_eq!(names(&nothing.links), "/data/unit-7.chain");
    }
}
