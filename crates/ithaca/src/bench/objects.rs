//! Calls on maps and transactions over them, a window of them in flight.
//!
//! Each client is a program of its own with a map of its own, as programs have that share their work out; with `--shared` all
//! have the same one, and each of them takes in what all have written.

use std::hint::black_box;
use std::rc::Rc;

use ithaca_env::task::{TaskHandle, gather};
use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;
use ithaca_object::collections::{Blob, Map, MapState};
use ithaca_object::{Begin, ObjectError, Runtime, RuntimeOptions, Tx, TxOptions};

use super::append::{Random, payload};
use super::meter::Meter;

/// Keys of each map.
const KEYS: u64 = 10_000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A key gets a value; the one that it had is the result.
    Put,
    /// The value of a key as of now.
    Get,
    /// Those of several keys in one call.
    MultiGet,
    /// The value of a key in a copy of the state as of a position.
    Snapshot,
    /// Two keys are read and a third gets a value.
    Transaction,
}

/// Reads of a snapshot that are made without a pause. They wait for nobody, and others must have their turn.
const SNAPSHOT_READS: u64 = 256;

/// Values that are put at once before keys are read.
const PUTS_AT_ONCE: u64 = 256;

/// The workers of one client, `window` of them, with values of `size` bytes, ready to be started. Before anything is read all keys have
/// values.
pub async fn prepare(
    meter: &Rc<Meter>,
    client: Client,
    deed: Deed,
    window: usize,
    size: usize,
    is_shared: bool,
) -> Result<Vec<Worker>, ObjectError> {
    let name = if is_shared { "bench".to_owned() } else { format!("bench-{:016x}", client.id().0) };
    let value = Blob(payload(size, client.id().0));
    let runtime = Runtime::new(meter.env(), client, RuntimeOptions::default());
    let map = Map::<u64, Blob>::open(&runtime, &name)?;
    let old = match deed {
        Deed::Get | Deed::MultiGet | Deed::Snapshot => map.at(fill(&map, &value).await?).state().await?,
        Deed::Put | Deed::Transaction => MapState::default(),
    };
    let old = Rc::new(old);
    // Keys that are asked for in one call are in flight together.
    let (workers, keys) = if deed == Deed::MultiGet { (1, window) } else { (window, 1) };
    let worker = |_| Worker {
        meter: Rc::clone(meter),
        runtime: runtime.clone(),
        old: Rc::clone(&old),
        map: map.clone(),
        value: value.clone(),
        deed,
        keys,
    };
    Ok((0..workers).map(worker).collect())
}

/// Gives every key a value and reads the map. The position from which on all are there.
async fn fill(map: &Map<u64, Blob>, value: &Blob) -> Result<LogPos, ObjectError> {
    let mut snapshot = LogPos(0);
    for first in (0..KEYS).step_by(PUTS_AT_ONCE as usize) {
        let keys = first..KEYS.min(first + PUTS_AT_ONCE);
        let puts = keys.map(|key| map.fast_put(key, value.clone())).collect();
        for put in gather(puts, Result::is_err).await.into_iter().flatten() {
            snapshot = snapshot.max(put?.map_or(snapshot, |pos| LogPos(pos.0 + 1)));
        }
    }
    map.len().await?;
    Ok(snapshot)
}

/// One that does the same again and again.
pub struct Worker {
    meter: Rc<Meter>,
    runtime: Runtime,
    map: Map<u64, Blob>,
    /// Its state as of a position.
    old: Rc<MapState<u64, Blob>>,
    value: Blob,
    deed: Deed,
    /// Keys of each call.
    keys: usize,
}

impl Worker {
    /// Works until the meter stops.
    pub fn start(self) -> TaskHandle<()> {
        self.meter.env().clone().spawn(async move {
            if let Err(error) = self.work(self.deed).await {
                self.meter.fail(error);
            }
        })
    }

    async fn work(&self, deed: Deed) -> Result<(), ObjectError> {
        let mut random = Random::new(self.meter.env().random_u64());
        while !self.meter.is_stopped() {
            let keys = [(); 3].map(|()| random.within(&(0..KEYS)));
            let started = self.meter.now();
            match deed {
                Deed::Put => {
                    self.map.put(keys[0], self.value.clone()).await?;
                }
                Deed::Get => {
                    self.map.get(&keys[0]).await?;
                }
                Deed::MultiGet => {
                    let keys: Vec<u64> = (0..self.keys).map(|_| random.within(&(0..KEYS))).collect();
                    self.map.multi_get(&keys).await?;
                }
                Deed::Snapshot => {
                    for _ in 0..SNAPSHOT_READS {
                        black_box(self.old.get(&random.within(&(0..KEYS))).cloned());
                    }
                    self.meter.env().yield_now().await;
                }
                Deed::Transaction => self.transaction(keys).await?,
            }
            let count = if deed == Deed::Snapshot { SNAPSHOT_READS } else { self.keys as u64 };
            self.meter.completed(started, self.meter.now(), count);
        }
        Ok(())
    }

    async fn transaction(&self, keys: [u64; 3]) -> Result<(), ObjectError> {
        let options = TxOptions { begin: Begin::Local, ..TxOptions::default() };
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let map = self.map.within(tx);
            map.contains_key(&keys[0]).await?;
            map.contains_key(&keys[1]).await?;
            map.fast_put(keys[2], self.value.clone()).await.map(|_| ())
        };
        self.runtime.transact(&options, body).await.map(|_| ())
    }
}
