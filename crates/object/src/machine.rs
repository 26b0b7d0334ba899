//! State machines that are replicated as they are: a deterministic one of the user's own, played from the log by every program.
//!
//! ```text
//!   program A ── submit ──┐                          ┌──► machine in A ──► response to A
//!   program B ── submit ──┴──► one stream, in order ─┼──► machine in B ──► response to B
//!                                                    └──► machine in C, which only reads
//! ```
//!
//! It is an [object](crate::object) of one mutator, and has of the runtime whatever any object has: a command is applied once, however often
//! it was tried, reads are linearizable or as old as they may be, checkpoints are made, views compare digests. What it leaves out is
//! the undo: nothing is kept of earlier states, which are made by replay if somebody asks for them. Commands that are submitted at
//! once share records.

use std::time::Duration;

use ithaca_log::pos::LogPos;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::ObjectError;
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object, digest_of_state};
use crate::runtime::{Handle, Runtime, Tx};

/// A deterministic state machine. Its default is its first state; its MessagePack is its checkpoint.
///
/// It MUST be a function of its commands: no clocks, random numbers, addresses, nor the order of items of a `HashMap`, which it may have if
/// nothing that it does depends on that. What depends on such things is part of a command. A command that panics stops the machine in every
/// program that plays it, so what is wrong with a command is a response.
pub trait Machine: Default + Serialize + DeserializeOwned + 'static {
    /// What it is called in messages.
    const TYPE: &'static str;
    /// What changes it. In the log, as MessagePack by field name; it never changes but by new variants and fields with defaults.
    type Command: Serialize + DeserializeOwned + 'static;
    /// What a command gives back to whoever submitted it. In no log.
    type Response: 'static;

    /// Does a command.
    fn apply(&mut self, command: Self::Command) -> Self::Response;

    /// A digest of the state: MUST be the same for the same state, and should differ for others. It is asked for every
    /// [`DIGEST_EVERY`](crate::limits::DIGEST_EVERY) records. The default is
    /// [`digest_of_state`], which encodes all of it, so a machine that may be large keeps one up to date instead.
    fn digest(&self) -> u64 {
        digest_of_state(self)
    }
}

/// A machine as an object: in checkpoints it is the machine and nothing else.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent, bound = "M: Machine")]
pub struct Played<M: Machine> {
    machine: M,
}

impl<M: Machine> Object for Played<M> {
    const TYPE: &'static str = M::TYPE;
    const METHODS: &'static [Method<Self>] = &[Method::of::<Execute<M>>()];
    const HISTORY_MAX_COUNT: usize = 0;
    type Undo = ();

    fn exchange(&mut self, (): &mut ()) {}

    fn digest(&self) -> u64 {
        self.machine.digest()
    }
}

/// Does a command of a machine; gives its response.
#[derive(Serialize, Deserialize)]
#[serde(bound = "M: Machine")]
struct Execute<M: Machine> {
    command: M::Command,
}

impl<M: Machine> Mutator<Played<M>> for Execute<M> {
    const NAME: &'static str = "execute";
    type Output = M::Response;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, played: &mut Played<M>, _: LogPos, _: &mut Vec<()>) -> M::Response {
        played.machine.apply(self.command)
    }
}

/// A replica of a machine: what a program has of it. Cheap to clone.
pub struct Replica<M: Machine> {
    handle: Handle<Played<M>>,
}

impl<M: Machine> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<M: Machine> Replica<M> {
    /// Opens the machine of this name; it is in its first state if nobody has submitted a command. Nothing is read yet.
    ///
    /// Errors: `OtherType` if the name is open as something else.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self { handle: runtime.open(name)? })
    }

    /// Submits a command and gives its response, that of its place in the order of all commands. On return the command is on stable
    /// storage, on every replica of the log, and applied here. It is applied once, or not at all after an error other than `Unknown`. Commands
    /// that are submitted while others are under way share records with each other. Dropped, it may still happen.
    ///
    /// Errors: `Unknown` (it may have happened); `Crowded` if 65,536 wait; `Stopped` if it or one before it cannot be applied.
    pub async fn submit(&self, command: M::Command) -> Result<M::Response, ObjectError> {
        self.handle.submit(Execute { command }).await
    }

    /// The same, with the log position of the record that the command is in; `None` in a transaction. Several commands may have the
    /// same position.
    pub async fn submit_placed(
        &self,
        command: M::Command,
    ) -> Result<(M::Response, Option<LogPos>), ObjectError> {
        self.handle.submit_placed(Execute { command }).await
    }

    /// Looks at the machine. Linearizable, by one question to the sequencer that serves all who wait: it reflects every command that
    /// was acknowledged before the call, whoever submitted it.
    pub async fn read<T>(&self, read: impl FnOnce(&M) -> T) -> Result<T, ObjectError> {
        self.handle.read(|| vec![Key::all()], |played| read(&played.machine)).await
    }

    /// The same machine for reads that may be as old as `bound`: they ask only if nobody has within that time.
    pub fn stale(&self, bound: Duration) -> Self {
        Self { handle: self.handle.stale(bound) }
    }

    /// The machine as it was when it reflected every position of the log below `snapshot`, by replay from the checkpoint below; it can
    /// be read only.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { handle: self.handle.at(snapshot) }
    }

    /// The machine in a transaction, which commands take effect with, and which conflicts with every other command. Each read after a
    /// command of the transaction copies the machine: this is for small ones.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { handle: self.handle.within(tx) }
    }

    /// The handle of its object: for checkpoints, pins and forgetting.
    pub fn handle(&self) -> &Handle<Played<M>> {
        &self.handle
    }
}
