//! What the workloads are done on: objects over a running cluster, as a program has them.

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::task::gather;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_object::collections::{Blob, Map, SortedMap};
use ithaca_object::store::{PutIf, Store};
use ithaca_object::{Begin, ObjectError, Runtime, RuntimeOptions, Tx, TxOptions};

use super::workload::{FIELD_BYTES, FIELDS, Operation, RECORDS, key_of};

/// A record.
pub type Fields = Vec<Blob>;

/// Records that are loaded at once.
const LOAD_AT_ONCE: u64 = 128;

/// Which object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All in memory; for scans as a sorted map, which has the same state.
    Map,
    /// Keys in memory, records in the log.
    Store,
}

impl Kind {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Store => "store",
        }
    }
}

enum Object {
    Map(Map<String, Fields>, SortedMap<String, Fields>),
    Store(Store<String, Fields>),
}

/// A program with one of the objects.
pub struct Program {
    runtime: Runtime,
    object: Object,
    fields: Fields,
}

impl Program {
    /// A client of its own, and the object, of which nothing is read yet.
    pub async fn new(env: &Env, options: &ClientOptions, kind: Kind) -> Result<Self, ObjectError> {
        let client = Client::connect(env, options.clone()).await?;
        let runtime = Runtime::new(env, client, RuntimeOptions::default());
        let name = format!("ycsb-{}", kind.name());
        let object = match kind {
            Kind::Map => Object::Map(Map::open(&runtime, &name)?, SortedMap::open(&runtime, &name)?),
            Kind::Store => Object::Store(Store::open(&runtime, &name)?),
        };
        let fields = (0..FIELDS).map(|field| Blob(Bytes::from(vec![field as u8; FIELD_BYTES]))).collect();
        Ok(Self { runtime, object, fields })
    }

    /// Writes every record.
    pub async fn load(&self) -> Result<(), ObjectError> {
        for first in (0..RECORDS).step_by(LOAD_AT_ONCE as usize) {
            let records = first..RECORDS.min(first + LOAD_AT_ONCE);
            let puts = records.map(|record| self.operate(Operation::Insert(record))).collect();
            for put in gather(puts, Result::is_err).await.into_iter().flatten() {
                put?;
            }
        }
        Ok(())
    }

    /// Does an operation and waits for what it gives.
    pub async fn operate(&self, operation: Operation) -> Result<(), ObjectError> {
        match operation {
            Operation::Read(record) => self.read(key_of(record)).await,
            Operation::Update(record) | Operation::Insert(record) => self.write(key_of(record)).await,
            Operation::Scan(record, count) => self.scan(key_of(record), count).await,
            Operation::Change(record) => self.change(key_of(record)).await,
        }
    }

    async fn read(&self, key: String) -> Result<(), ObjectError> {
        match &self.object {
            Object::Map(map, _) => map.get(&key).await.map(|_| ()),
            Object::Store(store) => store.get(&key).await.map(|_| ()),
        }
    }

    async fn write(&self, key: String) -> Result<(), ObjectError> {
        let fields = self.fields.clone();
        match &self.object {
            Object::Map(map, _) => map.fast_put(key, fields).await.map(|_| ()),
            Object::Store(store) => store.put(key, fields).await.map(|_| ()),
        }
    }

    async fn scan(&self, key: String, count: usize) -> Result<(), ObjectError> {
        match &self.object {
            Object::Map(_, map) => map.range(key.., count).await.map(|_| ()),
            Object::Store(store) => store.scan(key.., count).await.map(|_| ()),
        }
    }

    /// Reads a record and writes it, so that no other write comes between.
    async fn change(&self, key: String) -> Result<(), ObjectError> {
        let options = TxOptions { begin: Begin::Local, ..TxOptions::default() };
        match &self.object {
            Object::Map(map, _) => {
                let body = async |tx: &Tx| -> Result<(), ObjectError> {
                    let map = map.within(tx);
                    let before = map.get(&key).await?;
                    map.fast_put(key.clone(), changed(before.unwrap_or_default())).await.map(|_| ())
                };
                self.runtime.transact(&options, body).await.map(|_| ())
            }
            Object::Store(store) => loop {
                let (version, before) =
                    store.get(&key).await?.map(|stored| (stored.version, stored.value)).unzip();
                let puts = vec![(key.clone(), Some(changed(before.unwrap_or_default())))];
                if let PutIf::Done(_) = store.multi_put_if(vec![(key.clone(), version)], puts).await? {
                    return Ok(());
                }
            },
        }
    }
}

/// A record with another first field.
fn changed(mut fields: Fields) -> Fields {
    if let Some(first) = fields.first_mut() {
        *first = Blob(Bytes::from_static(&[7; FIELD_BYTES]));
    }
    fields
}
