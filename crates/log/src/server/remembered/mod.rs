//! Where the drives of a data directory's units are, as far as it remembers: a start that is not told otherwise looks there.
//!
//! Which drives a chain has is in their superblocks, and nowhere else. This says where to look for them, and may be behind: a path is
//! written before the drive there can be a member, and is left out after it has been one. So every member is at a remembered path, and what
//! is at a remembered path and is no member has been given up, or was never quite added. (docs/format/log.md)
//!
//! It is the notary of the generations of the units' drives, too: which is never behind what was acknowledged.

mod notary;
mod record;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ithaca_chain::limits::{LINKS_MAX, SIDES_MAX};
use ithaca_chain::{ChainId, LinkStats};
use ithaca_env::Env;
use ithaca_env::drive::DriveError;
use ithaca_env::sync::Notify;
use thiserror::Error;

use super::local::StartError;
use super::register::{Purpose, Register, RegisterError};
use crate::limits;
use crate::pos::NodeId;

pub(super) use notary::UnitNotary;
pub(super) use record::{describe, drives_in, generations_in};

/// Links of a unit and sides of a link: what a chain may have, and as many again that may not be members yet, or any more.
const LINKS_REMEMBERED_MAX: usize = 2 * LINKS_MAX;
const SIDES_REMEMBERED_MAX: usize = 2 * SIDES_MAX;

/// The sides of each link of a unit, by where they are, in the order of its chain.
pub(super) type Links = Vec<Vec<PathBuf>>;

/// A link of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldLink {
    /// Where its sides are.
    pub(super) sides: Vec<PathBuf>,
    /// Whether it is to be removed.
    pub(super) is_leaving: bool,
}

/// What is remembered of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitPaths {
    /// What the latest start that was given drives was given.
    pub(super) given: Links,
    /// What the unit has, or may have.
    pub(super) held: Vec<HeldLink>,
}

/// All that is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Of each unit where its drives are.
    units: BTreeMap<NodeId, UnitPaths>,
    /// Of each unit its chain, and the highest generation of its drives.
    generations: BTreeMap<NodeId, (ChainId, u64)>,
}

/// Why something is not remembered.
#[derive(Debug, Error)]
pub(super) enum RememberError {
    /// It does not fit into the record.
    #[error("{}: cannot be remembered: not text, not absolute, too long, or one of too many", path.display())]
    Unfit {
        /// The path that does not fit, or the last of too many.
        path: PathBuf,
    },
    /// The register has failed.
    #[error("where drives are cannot be remembered: {0}")]
    Drive(#[from] DriveError),
}

/// What a data directory remembers, in its register.
pub(super) struct Remembered {
    /// Paths below it are remembered without it, so that it may be moved.
    data: PathBuf,
    known: RefCell<Known>,
    /// `None` while somebody writes it.
    register: RefCell<Option<Box<Register>>>,
    /// Rings when it is there again.
    is_free: Notify,
    /// Whether the last write failed, so that what the register holds may be what was to be written.
    is_in_doubt: Cell<bool>,
}

impl UnitPaths {
    /// What the unit has, link by link.
    pub(super) fn links(&self) -> Links {
        self.held.iter().map(|link| link.sides.clone()).collect()
    }

    /// The same with what its chain has now; a side that the chain misses stays where it is known to have been.
    pub(super) fn with_held(&self, drives: &[LinkStats]) -> Self {
        let mut held: Vec<(u32, HeldLink)> = Vec::new();
        for drive in drives.iter().filter(|drive| drive.is_there) {
            let path = PathBuf::from(&drive.drive);
            match held.iter_mut().find(|(link, _)| *link == drive.link) {
                Some((_, link)) => link.sides.push(path),
                None => held.push((drive.link, HeldLink { sides: vec![path], is_leaving: false })),
            }
        }
        for (number, link) in &mut held {
            let Some(before) = self.held.iter().find(|before| before.is_of(&link.sides)) else { continue };
            link.is_leaving = before.is_leaving;
            if drives.iter().any(|drive| drive.link == *number && !drive.is_there) {
                link.sides.extend(before.others(&link.sides));
            }
        }
        Self { given: self.given.clone(), held: held.into_iter().map(|(_, link)| link).collect() }
    }

    /// The same with `sides` in the link that one of `beside` is of, or in a new one.
    pub(super) fn with_sides(&self, beside: &[PathBuf], sides: &[PathBuf]) -> Self {
        let mut paths = self.clone();
        let place = paths.held.iter().position(|link| link.is_of(beside) || link.is_of(sides));
        let place = place.unwrap_or_else(|| {
            paths.held.push(HeldLink::default());
            paths.held.len() - 1
        });
        paths.held.iter_mut().for_each(|link| link.sides = link.others(sides));
        paths.held[place].sides.extend_from_slice(sides);
        paths.without(&[])
    }

    /// The same without these, wherever they are.
    pub(super) fn without(&self, sides: &[PathBuf]) -> Self {
        let mut paths = self.clone();
        paths.held.iter_mut().for_each(|link| link.sides = link.others(sides));
        paths.held.retain(|link| !link.sides.is_empty());
        paths
    }

    /// The same with the link leaving that one of `sides` is of, or staying.
    pub(super) fn with_leaving(&self, sides: &[PathBuf], is_leaving: bool) -> Self {
        let mut paths = self.clone();
        for link in paths.held.iter_mut().filter(|link| link.is_of(sides)) {
            link.is_leaving = is_leaving;
        }
        paths
    }

    /// A path that does not fit into the record, if there is one.
    fn unfit(&self, data: &Path) -> Option<PathBuf> {
        let all = || self.given.iter().chain(self.held.iter().map(|link| &link.sides));
        let fits = |path: &&PathBuf| {
            let is_text = path.to_str().is_some_and(|text| text.len() <= limits::DRIVE_PATH_MAX_BYTES);
            is_text && (path.is_absolute() || path.starts_with(data))
        };
        let is_too_many = self.given.len() > LINKS_REMEMBERED_MAX
            || self.held.len() > LINKS_REMEMBERED_MAX
            || all().any(|sides| sides.is_empty() || sides.len() > SIDES_REMEMBERED_MAX);
        let unfit = all().flatten().find(|path| !fits(path));
        unfit.or_else(|| all().flatten().last().filter(|_| is_too_many)).cloned()
    }
}

impl HeldLink {
    fn is_of(&self, sides: &[PathBuf]) -> bool {
        self.sides.iter().any(|side| sides.contains(side))
    }

    fn others(&self, sides: &[PathBuf]) -> Vec<PathBuf> {
        self.sides.iter().filter(|side| !sides.contains(side)).cloned().collect()
    }
}

impl Remembered {
    /// Opens the register in `data`, made if it is not there. Nothing is remembered in a directory of an earlier version.
    pub(super) async fn open(env: &Env, data: &Path) -> Result<Rc<Self>, StartError> {
        let open = Purpose::Drives.in_directory(data);
        let path = open.path.clone();
        let (register, value) = match Register::open(env, open, Purpose::Drives).await {
            Err(error @ (RegisterError::Damaged { .. } | RegisterError::Cut { .. })) => {
                return Err(StartError::DrivesForgotten { error: error.to_string() });
            }
            opened => opened?,
        };
        let known = match value {
            None => Known::default(),
            Some(value) => record::decode(&value, data).map_err(|error| StartError::DrivesForgotten {
                error: format!("{}: {error}", path.display()),
            })?,
        };
        Ok(Rc::new(Self {
            data: data.to_owned(),
            known: RefCell::new(known),
            register: RefCell::new(Some(Box::new(register))),
            is_free: Notify::default(),
            is_in_doubt: Cell::new(false),
        }))
    }

    /// What is remembered of a unit.
    pub(super) fn unit(&self, node: NodeId) -> Option<UnitPaths> {
        self.known.borrow().units.get(&node).cloned()
    }

    /// Another node whose unit is remembered, where that of `node` is not: the directory is that node's.
    pub(super) fn is_of_another(&self, node: NodeId) -> Option<NodeId> {
        let units = &self.known.borrow().units;
        units.keys().next().copied().filter(|_| !units.contains_key(&node))
    }

    /// Every path that a unit has, or may have, a drive at.
    pub(super) fn held(&self) -> Vec<PathBuf> {
        let units = &self.known.borrow().units;
        units.values().flat_map(UnitPaths::links).flatten().collect()
    }

    /// Remembers this of a unit. On return it is on stable storage, if it was not before; what does not fit is an error, and then nothing is
    /// remembered of the unit at all.
    pub(super) async fn set(&self, node: NodeId, paths: UnitPaths) -> Result<(), RememberError> {
        let register = self.take().await;
        let mut known = self.known.borrow().clone();
        let mut unfit = paths.unfit(&self.data);
        match unfit {
            None => known.units.insert(node, paths.clone()),
            Some(_) => known.units.remove(&node),
        };
        if record::encode(&known, &self.data).len() > limits::DRIVES_RECORD_MAX_BYTES {
            unfit = paths.links().into_iter().flatten().last();
            known.units.remove(&node);
        }
        self.store(register, known).await?;
        unfit.map_or(Ok(()), |path| Err(RememberError::Unfit { path }))
    }

    /// The highest generation that the drives of a unit are known to have come to, if its chain is this one; 0 if none is.
    fn generation(&self, node: NodeId, chain: ChainId) -> u64 {
        let noted = self.known.borrow().generations.get(&node).copied();
        noted.filter(|(of, _)| *of == chain).map_or(0, |(_, generation)| generation)
    }

    /// Remembers such a one, if it is the highest, on stable storage.
    async fn note(&self, node: NodeId, chain: ChainId, generation: u64) -> Result<(), DriveError> {
        let register = self.take().await;
        let mut known = self.known.borrow().clone();
        let highest = generation.max(self.generation(node, chain));
        known.generations.insert(node, (chain, highest));
        self.store(register, known).await
    }

    /// The register, once nobody else writes it.
    async fn take(&self) -> Box<Register> {
        self.is_free.until(|| self.register.borrow_mut().take()).await
    }

    /// Writes this to the register, unless it is there, and gives that back.
    async fn store(&self, mut register: Box<Register>, known: Known) -> Result<(), DriveError> {
        let is_there = !self.is_in_doubt.get() && known == *self.known.borrow();
        let value = record::encode(&known, &self.data);
        let written = if is_there { Ok(()) } else { register.write_twice(&value).await };
        self.is_in_doubt.set(written.is_err());
        self.register.replace(Some(register));
        self.is_free.ring();
        written?;
        self.known.replace(known);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ithaca_chain::{DriveId, SideState};
    use ithaca_env::real;

    pub(super) fn paths(links: &[&[&str]]) -> Links {
        links.iter().map(|sides| sides.iter().map(PathBuf::from).collect()).collect()
    }

    pub(super) fn held(links: &[&[&str]]) -> UnitPaths {
        let held = paths(links).into_iter().map(|sides| HeldLink { sides, is_leaving: false });
        UnitPaths { given: Links::new(), held: held.collect() }
    }

    fn drive(link: u32, path: &str) -> LinkStats {
        LinkStats {
            id: DriveId(u64::from(link)),
            drive: path.to_owned(),
            is_there: path.starts_with('/'),
            link,
            state: SideState::Live,
            rebuilt: None,
            segments: 0,
            segments_free: 0,
            segments_live: 0,
            records: 0,
            data_bytes: 0,
            is_tail: false,
            is_asleep: false,
            is_leaving: false,
        }
    }

    #[test]
    fn what_a_chain_has_takes_the_place_of_what_was_known_but_for_a_side_that_it_misses() {
        let before = held(&[&["/a", "/b"], &["/c"], &["/d"]]);
        let same = [drive(0, "/a"), drive(0, "/b"), drive(1, "/c"), drive(2, "/d")];
        assert_eq!(before.with_held(&same), before);
        // A link more, a link less, and a side that is away.
        let now = [drive(0, "/a"), drive(0, "missing"), drive(2, "/d"), drive(3, "/e")];
        assert_eq!(before.with_held(&now), held(&[&["/a", "/b"], &["/d"], &["/e"]]));
        // Another side has its place.
        let now = [drive(0, "/a"), drive(0, "/f"), drive(1, "/c"), drive(2, "/d")];
        assert_eq!(before.with_held(&now), held(&[&["/a", "/f"], &["/c"], &["/d"]]));
        let leaving = before.with_leaving(&[PathBuf::from("/b")], true);
        assert!(leaving.with_held(&same).held[0].is_leaving && !leaving.held[1].is_leaving);
    }

    #[test]
    fn a_path_that_is_about_to_be_one_stands_where_it_will_be_and_nowhere_else() {
        let before = held(&[&["/a"], &["/b"]]);
        let side = |path: &str| vec![PathBuf::from(path)];
        assert_eq!(before.with_sides(&[], &side("/c")), held(&[&["/a"], &["/b"], &["/c"]]));
        assert_eq!(before.with_sides(&side("/a"), &side("/c")), held(&[&["/a", "/c"], &["/b"]]));
        assert_eq!(before.with_sides(&[], &side("/b")), before);
        assert_eq!(before.with_sides(&side("/a"), &side("/b")), held(&[&["/a", "/b"]]));
        assert_eq!(before.without(&side("/a")), held(&[&["/b"]]));
    }

    #[test]
    fn of_a_unit_s_chain_the_highest_generation_is_remembered_and_of_another_one_nothing() {
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(|env| async move {
            let [chain, other] = [1, 2].map(|byte| ChainId([byte; 16]));
            let remembered = Remembered::open(&env, dir.path()).await.expect("made");
            for generation in [2, 5, 4] {
                remembered.note(NodeId(1), chain, generation).await.expect("written");
            }
            // Where the drives are is remembered beside it.
            remembered.set(NodeId(1), held(&[&["/a"]])).await.expect("it fits");
            drop(remembered);
            let again = Remembered::open(&env, dir.path()).await.expect("it is there");
            assert_eq!(
                (again.generation(NodeId(1), chain), again.unit(NodeId(1))),
                (5, Some(held(&[&["/a"]])))
            );
            assert_eq!((again.generation(NodeId(1), other), again.generation(NodeId(2), chain)), (0, 0));
            // The directory's cluster was made anew.
            again.note(NodeId(1), other, 2).await.expect("written");
            assert_eq!((again.generation(NodeId(1), chain), again.generation(NodeId(1), other)), (0, 2));
        });
    }

    #[test]
    fn what_does_not_fit_is_not_remembered_and_the_rest_stays() {
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(|env| async move {
            let remembered = Remembered::open(&env, dir.path()).await.expect("made");
            remembered.set(NodeId(1), held(&[&["/a"]])).await.expect("it fits");
            let long = format!("/{}", "x".repeat(limits::DRIVE_PATH_MAX_BYTES));
            for unfit in [&["/b", "relative"][..], &["/b", &long], &["/b"; 9]] {
                remembered.set(NodeId(2), held(&[&["/b"]])).await.expect("it fits");
                let refused = remembered.set(NodeId(2), held(&[unfit])).await;
                assert!(matches!(refused, Err(RememberError::Unfit { .. })), "{refused:?}");
                assert_eq!(remembered.unit(NodeId(2)), None);
            }
            drop(remembered);
            let again = Remembered::open(&env, dir.path()).await.expect("it is there");
            assert_eq!((again.unit(NodeId(1)), again.unit(NodeId(2))), (Some(held(&[&["/a"]])), None));
        });
    }
}
