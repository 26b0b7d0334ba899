//! Creating, opening, closing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ithaca_chain::{
    CacheDrive, Chain, ChainId, ChainOptions, Damage, Drives, Identity, Label, LeftOut, NoRescue, OpenError,
    Owner, Recovered, Ticket,
};
use ithaca_env::Env;
use ithaca_env::sync::Semaphore;

use super::commit::commit_blocks_max;
use super::history::History;
use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::limits::{BLOCKS_MAX, SETTLE_SLICE};
use crate::options::{VolumeOptions, VolumeSettings};
use crate::owner::Blocks;
use crate::stale::Times;
use crate::state::{State, is_fragment};
use crate::tx::{Grain, Transactions};

/// What the chain of a volume says that it is.
const LABEL: &str = "volume";

/// Whether nothing came after the creation of the chain.
fn is_unfinished(recovered: &Recovered) -> bool {
    recovered.state.is_none() && recovered.highest_key.is_none() && recovered.damage.is_empty()
}

impl Volume {
    /// Makes a volume on drives that hold none. On return it is durable that it is there.
    ///
    /// A creation that was interrupted is taken up again. Errors: `Option`; `Chain` with all that a creation of a chain can end with. A
    /// future that is dropped may leave the volume. After an error that `Drive` did not give the drives can be opened again at once.
    pub async fn create(
        env: &Env,
        drives: impl Into<Drives>,
        options: VolumeOptions,
    ) -> Result<Self, VolumeError> {
        let VolumeOptions { blocks, retention, isolation, fragment_bytes, settings } = options;
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(VolumeError::Option { name: "blocks", found: blocks, expected: "1 to 2^32" });
        }
        if !is_fragment(fragment_bytes) {
            return Err(VolumeError::Option {
                name: "fragment_bytes",
                found: u64::from(fragment_bytes),
                expected: "a power of two from 16 to 4096",
            });
        }
        let state = State {
            blocks,
            fragment_bytes,
            isolation,
            retention,
            capacity_bytes: settings.chain.capacity_bytes,
            floor: 0,
            snapshots: BTreeMap::new(),
            regions: BTreeMap::new(),
        };
        let owner = Rc::new(Blocks::new(Some(state.encode()), &settings));
        let id = ChainId(env.random_u128().to_le_bytes());
        let identity = Identity { id, label: Label::new(LABEL).expect("a short label") };
        let owned = Rc::clone(&owner) as Rc<dyn Owner>;
        let (drives, chain) = (drives.into(), settings.chain.clone());
        match Chain::create_owned(env, drives.clone(), identity, chain, owned).await {
            Ok(chain) => Self::over(env, chain, owner, settings).await,
            Err(already @ OpenError::AlreadyThere { .. }) => {
                Self::finish(env, drives, &state, settings).await?.ok_or(VolumeError::Chain(already))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes up a creation that was interrupted; nothing if there is more than that.
    async fn finish(
        env: &Env,
        drives: Drives,
        state: &State,
        settings: VolumeSettings,
    ) -> Result<Option<Self>, VolumeError> {
        let owner = Rc::new(Blocks::new(Some(state.encode()), &settings));
        let owned = Rc::clone(&owner) as Rc<dyn Owner>;
        let opened = Chain::open_owned(env, drives, None, settings.chain.clone(), owned).await;
        let (chain, recovered) = match opened {
            Ok(opened) => opened,
            Err(error @ OpenError::Drive(_)) => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        if chain.identity().label.as_str() != LABEL || !is_unfinished(&recovered) {
            chain.abandon().await;
            return Ok(None);
        }
        let volume = Self::over(env, chain, owner, settings).await?;
        volume.inner.replace_state(|asked| Ok(asked.clone())).await?;
        Ok(Some(volume))
    }

    /// Opens the volume that the drives hold. On return everything that was durable is there, and nothing else.
    ///
    /// Reads all footers: the index is in memory. Errors: `Chain` with all that an open of a chain can end with; `NotAVolume`,
    /// `Unfinished`, `StrangeRecord`; `Lost` if records are gone of which it is not known which blocks they were, also when it is tried again.
    /// Where groups are lost nothing was written then: another side of a mirror that was not given stays what it is.
    pub async fn open(
        env: &Env,
        drives: impl Into<Drives>,
        settings: VolumeSettings,
    ) -> Result<Self, VolumeError> {
        // An older version would be taken for the newest.
        let options = ChainOptions { needs_groups: true, rescue: false, ..settings.chain.clone() };
        let (volume, _) = Self::open_with(env, drives.into(), options, settings).await?;
        Ok(volume)
    }

    /// Shows the volume that the drives hold as it was before a group of its chain was lost: as of the last commit before that one, with the
    /// history and the names of then; as it is, if no group is lost. With it comes what is left out. Nothing is written, by this or
    /// later, to drives or superblocks: drives that are opened for reading only will do. What would write ends with `Stopped`.
    ///
    /// Errors: as of [`Volume::open`]; instead of `Lost` that of the chain, `NoRescue`, if it is not certain what the volume held then: see
    /// docs/decisions/0023. Dropping the future leaves the drives as they were, as everything does.
    pub async fn rescue(
        env: &Env,
        drives: impl Into<Drives>,
        settings: VolumeSettings,
    ) -> Result<(Self, Option<LeftOut>), VolumeError> {
        let options = ChainOptions { rescue: true, ..settings.chain.clone() };
        Self::open_with(env, drives.into(), options, settings).await
    }

    async fn open_with(
        env: &Env,
        drives: Drives,
        options: ChainOptions,
        settings: VolumeSettings,
    ) -> Result<(Self, Option<LeftOut>), VolumeError> {
        let owner = Rc::new(Blocks::new(None, &settings));
        let owned = Rc::clone(&owner) as Rc<dyn Owner>;
        let (chain, recovered) = match Chain::open_owned(env, drives, None, options, owned).await {
            Err(OpenError::GroupsLost { segment, offset, .. }) => {
                return Err(VolumeError::Lost { segment, offset });
            }
            opened => opened?,
        };
        // What was found when the chain told of its records.
        let stats = chain.stats();
        let is_volume = chain.identity().label.as_str() == LABEL;
        let refused = match stats.damage.iter().find(|damage| damage.is_of_groups()) {
            Some(&Damage { segment, offset, .. }) if chain.is_read_only() => {
                let drive = stats.links.iter().map(|link| &link.drive[..]).collect::<Vec<_>>().join(", ");
                VolumeError::Chain(OpenError::NoRescue { drive, why: NoRescue::AnyAge { segment, offset } })
            }
            Some(&Damage { segment, offset, .. }) => VolumeError::Lost { segment, offset },
            None if is_volume && is_unfinished(&recovered) => VolumeError::Unfinished,
            None => return Ok((Self::over(env, chain, owner, settings).await?, recovered.left_out)),
        };
        chain.abandon().await;
        Err(refused)
    }

    async fn over(
        env: &Env,
        chain: Chain,
        blocks: Rc<Blocks>,
        settings: VolumeSettings,
    ) -> Result<Self, VolumeError> {
        let state = match blocks.opened(chain.identity().label.as_str()) {
            Ok(state) => state,
            Err(refused) => {
                chain.abandon().await;
                return Err(refused);
            }
        };
        let newest = blocks.with(|index| index.newest());
        let count = state.blocks;
        let grain = Grain::new(state.fragment_bytes);
        let commit_max = commit_blocks_max(&chain);
        let transactions = Transactions::new(grain, settings.tx_max_bytes, commit_max, settings.planted);
        let mut history = History::new(state, settings.planted);
        history.note_time(env.now(), newest);
        let inner = Inner {
            env: env.clone(),
            chain,
            blocks,
            count,
            next_version: Cell::new(newest + 1),
            last_ticket: Cell::new(Ticket(0)),
            overlay: RefCell::default(),
            acknowledged: Cell::new(newest),
            history: RefCell::new(history),
            transactions: RefCell::new(transactions),
            times: RefCell::new(Times::new(env.now(), newest, settings.planted)),
            released: RefCell::default(),
            region_users: RefCell::default(),
            regions_going: RefCell::default(),
            turnstile: Rc::default(),
            looks: Semaphore::new(1),
            counters: RefCell::default(),
            settings,
        };
        let volume = Self { inner: Rc::new(inner) };
        volume.inner.settle(SETTLE_SLICE);
        volume.spawn_keeper();
        Ok(volume)
    }

    /// Lets the volume keep on `cache` what leaves its memory, and what is read from the drive that is written to; with `body_cache` of the
    /// chain's options what is read from the others too. Nothing that a volume promises depends on a cache, and others may use the same one.
    pub fn use_cache(&self, cache: &CacheDrive) {
        self.inner.chain.use_cache(cache);
    }

    /// Keeps the index short while nobody commits. Ends with the volume.
    fn spawn_keeper(&self) {
        let (weak, blocks) = (Rc::downgrade(&self.inner), Rc::clone(&self.inner.blocks));
        let env = self.inner.env.clone();
        self.inner.env.spawn(async move {
            loop {
                let ticket = blocks.bell.ticket();
                let Some(inner) = weak.upgrade() else { return };
                inner.catch_up();
                let more = inner.settle(SETTLE_SLICE);
                drop(inner);
                if more {
                    env.yield_now().await;
                } else {
                    blocks.bell.after(ticket).await;
                }
            }
        });
    }

    /// Refuses everything from now on, waits until all that was acknowledged is durable, and leaves the drives so that the next open
    /// has little to do. Errors: `Stopped`.
    pub async fn close(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        if self.is_read_only() {
            return Ok(inner.chain.clone().close().await?);
        }
        let (now, newest) = (inner.env.now(), inner.next_version.get() - 1);
        let last = inner.history.borrow().last_record(now, newest);
        let shorter = |asked: &State| Ok(State { floor: last.floor.max(asked.floor), ..asked.clone() });
        match inner.replace_state(shorter).await {
            // The next open finds more versions, that is all.
            Ok(()) | Err(VolumeError::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        inner.chain.clone().close().await?;
        inner.catch_up();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The keeper waits on this, and ends when the volume is gone.
        self.blocks.bell.ring();
    }
}
