//! What programs do with a hashed map whose buckets are small, so that it is split all the time: each puts keys of its own, all read all.
//!
//! The values of a key are 1, 2, 3 and so on, by its one writer, one after the other. So a read gives at least what was acknowledged, or read,
//! before it began, and at most what was begun before it ended. A writer that does not know what became of a put takes another key.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ithaca_env::Env;
use ithaca_object::composed::HashedMap;
use ithaca_object::{ObjectError, Runtime};

/// Keys of a bucket from which on it is split.
const SPLIT_AT: usize = 2;

/// The map as a program has it.
pub type Spread = HashedMap<u64, u64>;

/// What all programs know of it.
#[derive(Default)]
pub struct Known {
    keys: RefCell<BTreeMap<u64, Written>>,
    /// Buckets in the end.
    pub buckets: Cell<u64>,
}

/// What is known of a key.
#[derive(Clone, Copy, Default)]
struct Written {
    /// Who puts it.
    writer: u64,
    /// The last value that was begun,
    begun: u64,
    /// and the highest that was acknowledged, or read.
    least: u64,
    /// Nobody knows what the last put came to.
    is_lost: bool,
}

/// The map with its state here, and with it at the nodes.
pub fn open(runtime: &Runtime) -> Result<[Spread; 2], ObjectError> {
    let here = Spread::open_with(runtime, "spread", 1)?.splitting_at(SPLIT_AT);
    Ok([here, Spread::open_remote(runtime, "spread")?])
}

/// One step of the program `writer`. Errors: what the log says; `Err(text)` inside is what must not be.
pub async fn step(
    env: &Env,
    maps: &[Spread; 2],
    known: &Known,
    writer: u64,
) -> Result<Result<(), String>, ObjectError> {
    let map = &maps[usize::from(env.random_u64().is_multiple_of(2))];
    match env.random_u64() % 8 {
        0..4 => put(env, map, known, writer).await,
        4..7 => get(env, map, known).await,
        _ => entries(map, known).await,
    }
}

impl Known {
    /// A key of the writer, or a new one.
    fn key_of(&self, env: &Env, writer: u64) -> u64 {
        let mut keys = self.keys.borrow_mut();
        let own = keys.iter().filter(|(_, it)| it.writer == writer && !it.is_lost).map(|(key, _)| *key);
        let own: Vec<u64> = own.collect();
        let at = env.random_u64() as usize % (own.len() + 2);
        own.get(at).copied().unwrap_or_else(|| {
            let key = keys.len() as u64;
            keys.insert(key, Written { writer, ..Written::default() });
            key
        })
    }

    fn note(&self, key: u64, note: impl FnOnce(&mut Written)) {
        if let Some(written) = self.keys.borrow_mut().get_mut(&key) {
            note(written);
        }
    }

    fn least(&self, key: u64) -> u64 {
        self.keys.borrow().get(&key).map_or(0, |written| written.least)
    }

    /// Takes what was read of a key of which `least` was known before.
    fn judge(&self, key: u64, found: Option<u64>, least: u64) -> Result<(), String> {
        let (value, most) = (found.unwrap_or(0), self.keys.borrow().get(&key).map_or(0, |it| it.begun));
        if !(least..=most).contains(&value) {
            return Err(format!("key {key} has {found:?}, and may have {least} to {most}"));
        }
        self.note(key, |written| written.least = written.least.max(value));
        Ok(())
    }
}

async fn put(env: &Env, map: &Spread, known: &Known, writer: u64) -> Result<Result<(), String>, ObjectError> {
    let (key, mut value) = (known.key_of(env, writer), 0);
    let before = known.least(key);
    known.note(key, |written| {
        written.begun += 1;
        value = written.begun;
    });
    match map.put(key, value).await {
        // Values whose puts failed were never there.
        Ok(found) if found.unwrap_or(0) < before || found >= Some(value) => {
            Ok(Err(format!("key {key} had {found:?} before {value}, and {before} was acknowledged")))
        }
        Ok(_) => {
            known.note(key, |written| written.least = written.least.max(value));
            Ok(Ok(()))
        }
        Err(error) => {
            known.note(key, |written| written.is_lost = true);
            Err(error)
        }
    }
}

async fn get(env: &Env, map: &Spread, known: &Known) -> Result<Result<(), String>, ObjectError> {
    let count = known.keys.borrow().len() as u64;
    if count == 0 {
        return Ok(Ok(()));
    }
    let key = env.random_u64() % count;
    let least = known.least(key);
    let found = map.get(&key).await?;
    Ok(known.judge(key, found, least))
}

/// All of it, as of one snapshot.
async fn entries(map: &Spread, known: &Known) -> Result<Result<(), String>, ObjectError> {
    let least: Vec<(u64, u64)> =
        known.keys.borrow().iter().map(|(key, written)| (*key, written.least)).collect();
    let entries = map.entries().await?;
    let found: BTreeMap<u64, u64> = entries.iter().copied().collect();
    if found.len() != entries.len() {
        return Ok(Err(format!("a key is in two buckets: {entries:?}")));
    }
    let judged = least.into_iter().map(|(key, least)| known.judge(key, found.get(&key).copied(), least));
    Ok(judged.collect())
}

/// Looks at every key in the end.
pub async fn audit(map: &Spread, known: &Known) -> Result<(), String> {
    let told = |error: ObjectError| error.to_string();
    entries(map, known).await.map_err(told)??;
    let count = known.keys.borrow().len() as u64;
    for key in 0..count {
        let (least, found) = (known.least(key), map.get(&key).await.map_err(told)?);
        known.judge(key, found, least)?;
    }
    known.buckets.set(map.bucket_count().await.map_err(told)?);
    Ok(())
}
