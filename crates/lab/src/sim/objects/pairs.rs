//! What programs do with a store: pairs of keys that are always put together, whatever is compacted and forgotten meanwhile.
//!
//! Both keys of a pair get the same value at the same position, so that whoever reads both as of one position finds them the same. A put that
//! expects a version is done once for each version, and what is read is never older than what was acknowledged before.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use ithaca_env::Env;
use ithaca_log::pos::LogPos;
use ithaca_object::store::{PutIf, Store, StoreOptions, Stored};
use ithaca_object::{ObjectError, Runtime};

/// Pairs: few, so that programs meet; more than are put between two checkpoints, so that values stay behind.
const PAIRS: u64 = 6;

/// What all programs know of the pairs.
#[derive(Default)]
pub struct Known {
    /// The newest version of each that was acknowledged.
    acknowledged: RefCell<BTreeMap<u64, LogPos>>,
    /// Versions that a conditional put has taken the place of.
    replaced: RefCell<BTreeSet<(u64, Option<LogPos>)>>,
    serial: Cell<u64>,
    /// How often values were copied.
    pub compacted: Cell<u64>,
    /// How often a conditional put found another version.
    pub differed: Cell<u64>,
}

/// The store of a program. It keeps few values in memory, so that most are read from the log.
pub fn open(runtime: &Runtime) -> Result<Store<u64, u64>, ObjectError> {
    Store::open_with(runtime, "pairs", StoreOptions { cache_bytes: 400 })
}

/// One step of a program. `forgets` says whether anything may be forgotten. Errors: what the log says; `Err(text)` inside is what must not be.
pub async fn step(
    env: &Env,
    store: &Store<u64, u64>,
    known: &Known,
    forgets: &Cell<u64>,
) -> Result<Result<(), String>, ObjectError> {
    let pair = env.random_u64() % PAIRS;
    match env.random_u64() % 8 {
        0 => forget(store, known, forgets).await.map(Ok),
        1 => look_back(env, store, known, pair, forgets).await,
        2..4 => put(store, known, pair).await.map(Ok),
        4..6 => put_if(store, known, pair).await,
        _ => look(store, known, pair).await,
    }
}

fn keys(pair: u64) -> [u64; 2] {
    [2 * pair, 2 * pair + 1]
}

fn puts(known: &Known, pair: u64) -> Vec<(u64, Option<u64>)> {
    known.serial.set(known.serial.get() + 1);
    keys(pair).map(|key| (key, Some(known.serial.get()))).into()
}

fn acknowledge(known: &Known, pair: u64, version: LogPos) {
    let mut all = known.acknowledged.borrow_mut();
    let newest = all.entry(pair).or_insert(version);
    *newest = version.max(*newest);
}

async fn put(store: &Store<u64, u64>, known: &Known, pair: u64) -> Result<(), ObjectError> {
    let version = store.multi_put(puts(known, pair)).await?;
    acknowledge(known, pair, version);
    Ok(())
}

async fn put_if(
    store: &Store<u64, u64>,
    known: &Known,
    pair: u64,
) -> Result<Result<(), String>, ObjectError> {
    let [first, _] = keys(pair);
    let version = store.get(&first).await?.map(|stored| stored.version);
    match store.multi_put_if(vec![(first, version)], puts(known, pair)).await? {
        PutIf::Differs(_) => known.differed.set(known.differed.get() + 1),
        PutIf::Done(pos) => {
            acknowledge(known, pair, pos);
            if !known.replaced.borrow_mut().insert((pair, version)) {
                return Ok(Err(format!(
                    "version {version:?} of pair {pair} is replaced twice, at {pos} again"
                )));
            }
        }
    }
    Ok(Ok(()))
}

/// Whether both of a pair are the same.
fn judge(pair: u64, found: &[Option<Stored<u64>>]) -> Result<Option<LogPos>, String> {
    match found {
        [first, second] if first == second => Ok(first.as_ref().map(|stored| stored.version)),
        torn => Err(format!("pair {pair} is torn: {torn:?}")),
    }
}

async fn look(store: &Store<u64, u64>, known: &Known, pair: u64) -> Result<Result<(), String>, ObjectError> {
    let before = known.acknowledged.borrow().get(&pair).copied();
    let found = match store.multi_get(&keys(pair)).await {
        // Nobody trims by hand here.
        Err(error @ ObjectError::NoValue { .. }) => return Ok(Err(error.to_string())),
        found => found?,
    };
    Ok(judge(pair, &found).and_then(|version| match version >= before {
        true => Ok(()),
        false => Err(format!("pair {pair} is read as of {version:?}, and {before:?} was acknowledged")),
    }))
}

/// Reads a pair as of an old position.
async fn look_back(
    env: &Env,
    store: &Store<u64, u64>,
    known: &Known,
    pair: u64,
    forgets: &Cell<u64>,
) -> Result<Result<(), String>, ObjectError> {
    let newest = known.acknowledged.borrow().values().max().copied();
    let Some(newest) = newest else { return Ok(Ok(())) };
    let snapshot = LogPos(env.random_u64() % (newest.0 + 1));
    match store.at(snapshot).multi_get(&keys(pair)).await {
        Err(ObjectError::NoValue { .. }) if forgets.get() > 0 => Ok(Ok(())),
        found => {
            Ok(judge(pair, &found?).and_then(|version| match version.is_none_or(|pos| pos < snapshot) {
                true => Ok(()),
                false => Err(format!("pair {pair} is of {version:?} as of {snapshot}")),
            }))
        }
    }
}

/// Gives up what lies below a checkpoint, sometimes with values copied first.
async fn forget(store: &Store<u64, u64>, known: &Known, forgets: &Cell<u64>) -> Result<(), ObjectError> {
    let newest = known.acknowledged.borrow().values().max().copied().unwrap_or_default();
    if known.serial.get().is_multiple_of(2) && store.compact(newest).await?.values > 0 {
        known.compacted.set(known.compacted.get() + 1);
    }
    store.handle().checkpoint().await?;
    // Whatever comes of it, something may be gone.
    forgets.set(forgets.get() + 1);
    store.handle().forget(LogPos(u64::MAX)).await.map(|_| ())
}

/// Looks at every pair in the end.
pub async fn audit(store: &Store<u64, u64>, known: &Known) -> Result<(), String> {
    for pair in 0..PAIRS {
        look(store, known, pair).await.map_err(|error| error.to_string())??;
    }
    Ok(())
}
