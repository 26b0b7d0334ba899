//! The runtime: objects of a program, kept up to date from the log, and transactions over them.
//!
//! ```text
//!   Map, Counter, … ──► Handle ──► Slot: the view of one object, shared by all its handles
//!                         │          │  reads its stream as far as it is asked for (slot.rs)
//!                         │          │  its checkpoints, and what of it depends on no type (backing.rs)
//!        in a transaction │          │  asks where the stream ends, many at once (tails.rs)
//!                         ▼          ▼
//!                        Tx ───► append: one entry in all streams, under a condition (append.rs) ──► log
//! ```
//!
//! Small calls may share a record (batch.rs). Nothing is read that nobody asks for: a handle that only writes never reads its stream. A runtime belongs to one environment, and each
//! question to the log ends by the log client's deadline.

mod ahead;
mod alone;
mod append;
mod backing;
mod batch;
mod decided;
mod handle;
mod keep;
mod outcome;
mod remote;
mod restore;
mod slot;
mod tails;
#[cfg(test)]
mod tests;
mod together;
mod transaction;
mod unchanged;
mod watch;

use std::any::TypeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use ithaca_env::Env;
use ithaca_log::client::Client;
use ithaca_log::pos::StreamId;

use crate::checkpoint::Policy;
use crate::error::ObjectError;
use crate::object::Object;
use crate::planted::Planted;

pub use handle::Handle;
pub use keep::Forgotten;
pub use outcome::Outcome;
pub use transaction::{Begin, Committed, Tx, TxOptions};
pub use watch::Watch;

use append::OpenRequests;
use batch::Batches;
use decided::Decided;
use slot::{AnySlot, Slot};
use tails::Tails;

/// How a runtime behaves.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Bytes of a stream that are read at once.
    pub read_bytes: usize,
    /// How often a commit is tried that was not done, or of which that is not known, within the time of one call of the log's client.
    pub attempts: u32,
    /// When checkpoints are made of the objects that are read.
    pub checkpoints: Policy,
    /// A fault of the core to put in force.
    pub planted: Planted,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self { read_bytes: 1 << 20, attempts: 4, checkpoints: Policy::default(), planted: Planted::NONE }
    }
}

/// The objects of a program. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    inner: Rc<Inner>,
}

/// An object that is open.
struct OpenSlot {
    object: &'static str,
    state: TypeId,
    slot: Weak<dyn AnySlot>,
}

struct Inner {
    env: Env,
    client: Client,
    options: RuntimeOptions,
    slots: RefCell<BTreeMap<StreamId, OpenSlot>>,
    requests: RefCell<OpenRequests>,
    tails: Tails,
    decided: Decided,
    batches: Batches,
}

impl Runtime {
    /// A runtime over a client of the log, with no object open. Transactions have the client's id and a number of the runtime's, so a
    /// client MUST NOT serve two runtimes that write.
    pub fn new(env: &Env, client: Client, options: RuntimeOptions) -> Self {
        let requests = RefCell::new(OpenRequests::new(client.id().0));
        let inner = Inner {
            env: env.clone(),
            client,
            options,
            slots: RefCell::default(),
            requests,
            tails: Tails::default(),
            decided: Decided::default(),
            batches: Batches::default(),
        };
        Self { inner: Rc::new(inner) }
    }

    /// The object of this name, which there always is: one that nobody has changed is empty. Nothing is read yet. Handles of the
    /// same object share a view, which is dropped with the last of them. Its first change tells the log its name, in an entry after it, so that
    /// [`Client::stream_names`] has it.
    ///
    /// Errors: `OtherType` if it is open as another type of object.
    pub fn open<O: Object>(&self, name: &str) -> Result<Handle<O>, ObjectError> {
        self.open_stream(StreamId::of_name(name), name)
    }

    /// The object of a stream. If it is not that of `name`, this is for messages only.
    pub fn open_stream<O: Object>(&self, stream: StreamId, name: &str) -> Result<Handle<O>, ObjectError> {
        let slot = self.slot_of::<O>(stream, name)?;
        slot.keep();
        Ok(Handle::new(slot, false))
    }

    /// The object of this name, with its state at a node of the cluster: nothing of it is kept here, and reads and results are asked for
    /// there. Built-in objects only. Errors: `OtherType` if it is open as another type of object.
    pub fn open_remote<O: Object>(&self, name: &str) -> Result<Handle<O>, ObjectError> {
        self.open_remote_stream(StreamId::of_name(name), name)
    }

    /// The object of a stream, with its state at a node. If it is not that of `name`, this is for messages only.
    pub fn open_remote_stream<O: Object>(
        &self,
        stream: StreamId,
        name: &str,
    ) -> Result<Handle<O>, ObjectError> {
        Ok(Handle::new(self.slot_of(stream, name)?, true))
    }

    fn slot_of<O: Object>(&self, stream: StreamId, name: &str) -> Result<Rc<Slot<O>>, ObjectError> {
        let mut slots = self.inner.slots.borrow_mut();
        if let Some(open) = slots.get(&stream)
            && let Some(slot) = open.slot.upgrade()
        {
            let other =
                || ObjectError::OtherType { object: name.to_owned(), found: open.object, wanted: O::TYPE };
            if open.state != TypeId::of::<O>() {
                return Err(other());
            }
            return slot.as_any().downcast::<Slot<O>>().map_err(|_| other());
        }
        let slot = Slot::<O>::new(Rc::clone(&self.inner), stream, name);
        let weak: Weak<dyn AnySlot> = Rc::downgrade(&slot) as Weak<dyn AnySlot>;
        slots.retain(|_, open| open.slot.strong_count() > 0);
        slots.insert(stream, OpenSlot { object: O::TYPE, state: TypeId::of::<O>(), slot: weak });
        Ok(slot)
    }

    /// The client of the log.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }
}

impl Inner {
    /// The object of a stream, if it is open.
    fn slot(&self, stream: StreamId) -> Option<Rc<dyn AnySlot>> {
        self.slots.borrow().get(&stream)?.slot.upgrade()
    }

    /// The name that an object was opened by, or its stream's number.
    fn name_of(&self, stream: StreamId) -> String {
        self.slot(stream).map_or_else(|| stream.to_string(), |slot| slot.name().to_owned())
    }
}
