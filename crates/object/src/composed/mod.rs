//! Composed maps: one map of many objects, each with a stream of its own.
//!
//! ```text
//!   HashedMap "users"                       TreeMap "events"
//!     shape: generation 0, 5 buckets          root ── inner: [k7 | k19]
//!       │  permutation of the key's hash              │    │     │
//!       ▼                                             ▼    ▼     ▼
//!     bucket 0  bucket 1  …  bucket 4               leaf  leaf  leaf
//! ```
//!
//! Whoever asks for one key reads the objects on the way to it and no others, and transactions on different keys meet nowhere.
//! Every call is a transaction over the objects that it touches, so a map can be part of a larger transaction, and be read as of a
//! position, as a whole: pointers from object to object are names, and what they lead to is the state at the snapshot.
//! (Wei 5.4)

mod hashed;
mod move_out;
mod node;
mod permutation;
mod shape;
mod splits;
mod tree;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ithaca_env::task::gather;
use ithaca_log::pos::{LogPos, StreamId};

pub use hashed::HashedMap;
pub(crate) use move_out::MoveOut;
pub(crate) use node::Node;
pub(crate) use shape::Shape;
pub use tree::TreeMap;

use self::splits::Splits;
use crate::access::Accessor;
use crate::error::ObjectError;
use crate::key::Key;
use crate::limits;
use crate::object::Object;
use crate::{Handle, Isolation, Runtime, Tx, TxOptions};

/// After how many puts a program whose children are at nodes asks how large one is: fewer than a child takes before it is split.
const ASK_EVERY: u64 = 64;

/// What reads are of and where calls go.
#[derive(Clone)]
enum Moment {
    /// A transaction.
    In(Tx),
    /// A position, below which everything is reflected.
    At(LogPos),
}

impl Moment {
    /// A child as it is there.
    fn of<O: Object>(&self, child: &Handle<O>) -> Handle<O> {
        match self {
            Self::In(tx) => child.within(tx),
            Self::At(snapshot) => child.at(*snapshot),
        }
    }

    /// What is written next depends on these parts of a child: they say where it goes.
    fn led_by(&self, child: StreamId, keys: &[Key]) {
        if let Self::In(tx) = self {
            tx.note_leads(child, keys);
        }
    }
}

/// What every composed map has: its name, children that are open, and what its reads are of.
struct Composed<O: Object> {
    runtime: Runtime,
    name: String,
    children: Rc<Children<O>>,
    moment: Option<Moment>,
    /// Whether the children's states are at nodes.
    is_remote: bool,
    /// Puts after which this program did not look how large a child is.
    unseen: Rc<Cell<u64>>,
    splits: Rc<Splits>,
}

impl<O: Object> Clone for Composed<O> {
    fn clone(&self) -> Self {
        let (runtime, name) = (self.runtime.clone(), self.name.clone());
        let (children, moment) = (Rc::clone(&self.children), self.moment.clone());
        let (unseen, splits) = (Rc::clone(&self.unseen), Rc::clone(&self.splits));
        Self { runtime, name, children, moment, is_remote: self.is_remote, unseen, splits }
    }
}

/// Children that are kept open, so that their views need not be made again. Of too many the one that was opened first is closed.
struct Children<O: Object> {
    open: RefCell<BTreeMap<StreamId, Handle<O>>>,
    order: RefCell<VecDeque<StreamId>>,
}

impl<O: Object> Composed<O> {
    fn new(runtime: &Runtime, name: &str) -> Self {
        let children = Rc::new(Children { open: RefCell::default(), order: RefCell::default() });
        let (runtime, name, unseen) = (runtime.clone(), name.to_owned(), Rc::default());
        Self { runtime, name, children, moment: None, is_remote: false, unseen, splits: Rc::default() }
    }

    /// One whose children's states are at nodes.
    fn remote(runtime: &Runtime, name: &str) -> Self {
        Self { is_remote: true, ..Self::new(runtime, name) }
    }

    fn when(&self, moment: Moment) -> Self {
        Self { moment: Some(moment), ..self.clone() }
    }

    /// The same as of now.
    fn now(&self) -> Self {
        Self { moment: None, ..self.clone() }
    }

    /// The child of this name within the map.
    fn child(&self, child: &str) -> Result<Handle<O>, ObjectError> {
        // No name that can be typed leads to it.
        let stream = StreamId::of_name(&format!("\0{child} of {}", self.name));
        if let Some(open) = self.children.open.borrow().get(&stream) {
            return Ok(open.clone());
        }
        let name = format!("{}: {child}", self.name);
        let handle = match self.is_remote {
            true => self.runtime.open_remote_stream(stream, &name)?,
            false => self.runtime.open_stream(stream, &name)?,
        };
        let (mut open, mut order) = (self.children.open.borrow_mut(), self.children.order.borrow_mut());
        open.insert(stream, handle.clone());
        order.push_back(stream);
        if order.len() > limits::CHILDREN_OPEN_MAX_COUNT
            && let Some(first) = order.pop_front()
        {
            open.remove(&first);
        }
        Ok(handle)
    }

    /// Looks at children of these names by an accessor, at many of them at the same time.
    async fn look_at<A: Accessor<O> + Copy>(
        &self,
        moment: &Moment,
        names: &[String],
        accessor: A,
    ) -> Result<Vec<A::Output>, ObjectError> {
        let mut seen = Vec::new();
        for some in names.chunks(limits::CHILDREN_AT_ONCE) {
            let reads = some.iter().map(async |name| moment.of(&self.child(name)?).look(accessor).await);
            for read in gather(reads.collect(), Result::is_err).await.into_iter().flatten() {
                seen.push(read?);
            }
        }
        Ok(seen)
    }

    /// How large a child is, after a put, by what is in memory or, now and then, by what a node says when it is asked. `None` if none was asked, or
    /// it is not known.
    async fn size<T>(
        &self,
        child: &Handle<O>,
        in_memory: impl FnOnce(&O) -> T,
        asked: impl Future<Output = Result<T, ObjectError>>,
    ) -> Option<T> {
        if !child.is_remote() {
            return child.in_memory(in_memory).ok();
        }
        let unseen = self.unseen.get() + 1;
        self.unseen.set(unseen % ASK_EVERY);
        if unseen == ASK_EVERY { asked.await.ok() } else { None }
    }

    /// Reads, all of one snapshot.
    async fn read<T>(&self, body: impl AsyncFn(&Moment) -> Result<T, ObjectError>) -> Result<T, ObjectError> {
        match &self.moment {
            Some(moment) => body(moment).await,
            None => self.transact(&TxOptions::default(), body).await,
        }
    }

    /// Reads and changes, all of one transaction.
    async fn change<T>(
        &self,
        body: impl AsyncFn(&Moment) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        match &self.moment {
            Some(Moment::In(tx)) => tx.nested(async |tx| body(&Moment::In(tx.clone())).await).await,
            Some(Moment::At(snapshot)) => {
                Err(ObjectError::ReadOnly { object: self.name.clone(), snapshot: *snapshot })
            }
            None => self.transact(&TxOptions::default(), body).await,
        }
    }

    /// Bytes of keys and values that a record of a split moves.
    fn record_bytes(&self) -> usize {
        limits::SPLIT_MAX_BYTES.min(self.runtime.client().entry_max_bytes() / 2)
    }

    /// A split, or a step of one, as a transaction: after a conflict it is tried again a few times, because whoever has put something waits.
    async fn split<T>(
        &self,
        isolation: Isolation,
        body: impl AsyncFn(&Moment) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let options = TxOptions { isolation, retries: limits::SPLIT_RETRIES, ..TxOptions::default() };
        self.transact(&options, body).await
    }

    async fn transact<T>(
        &self,
        options: &TxOptions,
        body: impl AsyncFn(&Moment) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let body = async |tx: &Tx| body(&Moment::In(tx.clone())).await;
        let (value, _) = self.runtime.transact(options, body).await?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::{Env, real};
    use ithaca_log::client::{Client, ClientOptions};
    use ithaca_log::server::{LocalCluster, LocalOptions};

    use super::*;
    use crate::RuntimeOptions;
    use crate::collections::{MapState, Put};

    #[test]
    fn a_split_that_conflicts_each_time_is_given_up_after_a_few() {
        // The put that it is made for has happened; its caller waited for a hundred more runs.
        let dir = tempfile::TempDir::new().expect("a directory");
        real::run(async |env: Env| {
            let mut options = LocalOptions::new(dir.path(), ([127, 0, 0, 1], 0).into());
            options.create_bytes = 64 << 20;
            options.chain.segment_bytes = 4 << 20;
            options.chain.capacity_bytes = 256 << 20;
            let cluster = LocalCluster::start(&env, options).await.expect("it starts");
            let options = ClientOptions { endpoints: vec![cluster.addrs()[0]], ..ClientOptions::default() };
            let client = Client::connect(&env, options).await.expect("it serves");
            let runtime = Runtime::new(&env, client, RuntimeOptions::default());
            let map = Composed::<MapState<u64, u64>>::new(&runtime, "m");
            let child = map.child("part").expect("opened");
            let runs = Cell::new(0);
            let body = async |moment: &Moment| {
                runs.set(runs.get() + 1);
                moment.of(&child).call(Put { key: 1, value: 1 }).await?;
                child.call(Put { key: 1, value: 2 }).await
            };
            for isolation in [Isolation::Strict, Isolation::Snapshot] {
                let split = map.split(isolation, &body).await;
                assert!(matches!(split, Err(ObjectError::Aborted(_))), "{split:?}");
                assert_eq!(runs.take(), 3);
            }
        });
    }
}
