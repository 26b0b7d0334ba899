//! The client library: append, read, fill, trim, check and follow the log.
//!
//! A client holds the layout and talks to the sequencer and the units directly. It belongs to one environment; clones
//! share its connections and its queue of appends. Every call ends by its deadline with a typed error that names the
//! node, the epoch and the phase. (Wei 3.3, client side; docs/protocol/{append,read,fill}.md)

mod append;
mod append_to;
mod connection;
mod decide;
mod drives;
mod elsewhere;
mod error;
mod follow;
mod form;
mod forward;
mod learn;
mod look_back;
mod loss;
mod lost;
mod members;
mod names;
mod observer;
mod prefix;
mod read;
mod release;
mod remote;
mod resolve;
mod space;
mod stream_parts;
mod stream_reader;
mod streams;
#[cfg(test)]
mod tests;
mod tokens;
mod view;
mod watch;
mod which;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sync::Notify;
use ithaca_env::task::gather;
use ithaca_env::{Env, Time};

pub use append::{Aim, Append, AppendTo, Placed};
pub use append_to::StreamTails;
pub use connection::{CallError, Connection, Identity};
pub use drives::DrivesError;
pub use error::{ClientError, ErrorClass, Phase, StreamsError};
pub use follow::Tailing;
pub use form::{FormError, Forming, form, found, tell};
pub use loss::{GiveUpError, GivenUp, GivingUp, give_up};
pub use members::{MembersError, standing};
pub use observer::{NodeAnswer, Observer, Sight};
pub use read::{Entry, EntryKind};
pub use space::Bounds;
pub(crate) use stream_parts::StreamEnd;
pub use stream_parts::StreamPart;
pub use stream_reader::StreamReader;
pub use watch::StreamWatch;

use append::Appender;
use elsewhere::Replicas;
use learn::Learning;
use view::View;

use crate::layout::Layout;
use crate::limits;
use crate::planted::Planted;
use crate::pos::{ClientId, Epoch, LogPos, NodeId};
use crate::wire::{HelloOk, Token};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Nodes to learn the layout from, tried in order.
    pub endpoints: Vec<SocketAddr>,
    /// Every call ends after this time at the latest, retries included.
    pub timeout: Duration,
    /// How long a reader that meets a hole below the tail waits for its writer before it fills it.
    pub hole_wait: Duration,
    /// Bytes of appends without a result past which [`Client::room`] waits.
    pub max_in_flight_bytes: usize,
    /// Whether an append whose position went to something else takes another. Off, a sequence of appends that is broken
    /// stays broken: nothing is tried at a later position.
    pub retry_appends: bool,
    /// Whether batches of appends go whole to a sequencer that forwards them. Off, the client asks for positions and writes
    /// to the units itself, as it does where the sequencer forwards nothing.
    pub forward_appends: bool,
    /// Whether a write goes to the first replica of its stripe only, whose node hands it on. Off, or where that does not
    /// work, the client writes to one replica after the other.
    pub relay_writes: bool,
    /// The one epoch in which everything is done: when it is over, or while nobody knows of it, calls end with their time. `None` for any,
    /// one after the other.
    pub only_epoch: Option<Epoch>,
    /// Whether it goes on where the cluster [gives up](give_up) nodes, since nothing rests on what it has read. Off, its calls fail with
    /// `AfterLoss` from then on.
    pub outlives_loss: bool,
    /// Whether it is a node's own client: nodes keep places for each other that clients do not take.
    pub is_of_node: bool,
    /// A fault of the client to put in force.
    pub planted: Planted,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            endpoints: vec![SocketAddr::from(([127, 0, 0, 1], 7420))],
            timeout: Duration::from_secs(5),
            hole_wait: Duration::from_millis(100),
            max_in_flight_bytes: 16 << 20,
            retry_appends: true,
            forward_appends: true,
            relay_writes: true,
            only_epoch: None,
            outlives_loss: false,
            is_of_node: false,
            planted: Planted::NONE,
        }
    }
}

/// Looks an endpoint up: its addresses, none if it has none.
pub type Lookup = Pin<Box<dyn Future<Output = Vec<SocketAddr>>>>;

/// A client of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

/// How large a write may be.
#[derive(Clone, Copy)]
struct WriteLimits {
    entry_bytes: usize,
    bytes: usize,
    count: usize,
}

impl Default for WriteLimits {
    fn default() -> Self {
        Self {
            entry_bytes: limits::ENTRY_MAX_BYTES,
            bytes: limits::WRITE_MAX_BYTES,
            count: limits::RUN_MAX_COUNT,
        }
    }
}

impl WriteLimits {
    /// The smaller of each, for a client of several units.
    fn and(self, hello: &HelloOk) -> Self {
        Self {
            entry_bytes: self.entry_bytes.min(hello.entry_max_bytes as usize),
            bytes: self.bytes.min(hello.write_max_bytes as usize),
            count: self.count.min(hello.run_max_count as usize).max(1),
        }
    }
}

struct Inner {
    env: Env,
    options: ClientOptions,
    id: ClientId,
    /// The newest layout that is known.
    view: RefCell<Option<View>>,
    connections: RefCell<BTreeMap<NodeId, Connection>>,
    /// Rings when a connection or a layout that several wait for is there, or failed.
    settled: Notify,
    /// Nodes that are being connected to.
    connecting: RefCell<Vec<NodeId>>,
    learning: RefCell<Learning>,
    /// Whether calls are being looked after.
    watching: Cell<bool>,
    /// An epoch, and where its sequencer has said that the log ends.
    said_tail: Cell<(Epoch, LogPos)>,
    /// A layout has decided that the log goes on at this position or above.
    decided_tail: Cell<LogPos>,
    /// An epoch, and a position below which its sequencer will grant none any more.
    granted: Cell<(Epoch, LogPos)>,
    /// Why nothing can be appended, as it was when positions were asked for last.
    shortage: RefCell<Option<ClientError>>,
    /// What every unit takes, as it said when it was greeted.
    write_limits: Cell<WriteLimits>,
    /// How those behave that are read at.
    replicas: Replicas,
    /// Peeks that have shown something.
    peeks: Cell<u64>,
    appender: Rc<Appender>,
}

impl Client {
    /// Reaches one of the endpoints and learns the layout, within the options' timeout.
    ///
    /// Errors: `TwoClusters` if endpoints are of another cluster than the others, but for those that these others' layout lists; endpoints that
    /// no layout lists are waited for 100 ms at the most, after the first layout. `NoEndpoint`, `NoCluster`, or what kept it from being reached.
    pub async fn connect(env: &Env, options: ClientOptions) -> Result<Self, ClientError> {
        Self::connect_by(env, options, Vec::new()).await
    }

    /// The same with endpoints that are being looked up: what each lookup finds is tried as soon as it has ended, beside the endpoints of the
    /// options and what the others have found. Lookups go on when one has been reached; dropping the client gives them up.
    pub async fn connect_by(
        env: &Env,
        options: ClientOptions,
        lookups: Vec<Lookup>,
    ) -> Result<Self, ClientError> {
        let inner = Inner::new(env, options);
        let deadline = inner.deadline();
        inner.await_lookups(lookups);
        // An append asks for its token on an open connection, so that appends keep their order from the first on.
        let reach = async |inner: &Rc<Inner>, view: &View| {
            inner.connection(view, view.layout.sequencer, deadline).await.map(|_| view.clone())
        };
        let view = inner.retrying(Phase::Connect, deadline, reach).await?;
        let units = view.units().into_iter().map(|unit| inner.connection(&view, unit, deadline));
        // A unit that cannot be reached may be on its way out of the layout: whoever needs it finds out.
        gather(units.collect(), |_| false).await;
        Ok(Self { inner })
    }

    /// The endpoints that are known by now.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        self.inner.endpoints()
    }

    /// This client's identity: the entries that it appends carry it.
    pub fn id(&self) -> ClientId {
        self.inner.id
    }

    /// The time after which every call has ended.
    pub fn timeout(&self) -> Duration {
        self.inner.options.timeout
    }

    /// Appends `entry`, at most [`limits::ENTRY_MAX_BYTES`](crate::limits::ENTRY_MAX_BYTES). It starts now, whether or
    /// not the result is awaited; entries take positions in the order of the calls. On success the entry is on stable
    /// storage on every replica.
    ///
    /// Dropping the last clone of the client ends appends that have no result yet with `Closed`; they may have been done.
    ///
    /// Errors: `TooLarge`; `Overtaken` and `NotAppended` (certainly not appended; only without `retry_appends`); `OutcomeUnknown` (it
    /// stands at that position or nowhere); `OutcomeUnknownAfter` (it stands, or will, at or above that position, once
    /// or not at all); any other error means that it was not appended.
    pub fn append(&self, entry: Bytes) -> Append {
        append::append(&self.inner, entry)
    }

    /// Waits until fewer than `max_in_flight_bytes` of appends have no result yet.
    pub async fn room(&self) {
        let limit = self.inner.options.max_in_flight_bytes;
        let appender = Rc::clone(&self.inner.appender);
        appender.changed().until(|| (appender.held_bytes() < limit).then_some(())).await;
    }

    /// Takes `count` positions from the sequencer without writing them: for benchmarks of the sequencer. Whoever takes a
    /// position and does not write it leaves a hole for readers to fill.
    pub async fn tokens(&self, count: u32) -> Result<Range<LogPos>, ClientError> {
        let (grant, _, _) = self.inner.tokens(&Token::plain(count), self.inner.deadline()).await?;
        Ok(grant.first..LogPos(grant.first.0 + u64::from(grant.count())))
    }

    /// Reads one position. Never fills: a hole is [`ClientError::Unwritten`].
    pub async fn read(&self, pos: LogPos) -> Result<Entry, ClientError> {
        let mut entries = self.read_many(&[pos]).await?;
        entries.pop().ok_or(ClientError::Unwritten { pos })
    }

    /// Reads positions, in any order; the entries come in the order of `positions`. The first that is unwritten or
    /// damaged is an error.
    pub async fn read_many(&self, positions: &[LogPos]) -> Result<Vec<Entry>, ClientError> {
        self.inner.read_many(positions).await
    }

    /// Reads a piece of `[from, to)`, cut at the tail: entries in order, without gaps from `from` on, at least one unless
    /// `from` is at the tail or past `to`. Call again from after the last for the rest. Holes below the tail wait
    /// `hole_wait` once together and are then filled.
    pub async fn read_range(&self, from: LogPos, to: LogPos) -> Result<Vec<Entry>, ClientError> {
        self.inner.read_range(from, to).await
    }

    /// Follows the log from `from` on: units push entries as they become readable.
    pub fn tail_from(&self, from: LogPos) -> Tailing {
        Tailing::new(Rc::clone(&self.inner), from)
    }

    /// Makes junk of a position that nothing was written at; returns what the position holds now. Durable.
    ///
    /// Errors: `Unwritten` if the log does not end within the [`FILL_AHEAD_MAX_COUNT`](crate::limits::FILL_AHEAD_MAX_COUNT) positions below it.
    pub async fn fill(&self, pos: LogPos) -> Result<EntryKind, ClientError> {
        self.inner.fill(pos).await
    }

    /// Gives up what a position holds, for ever. Durable.
    pub async fn trim(&self, pos: LogPos) -> Result<(), ClientError> {
        self.inner.trim(pos..LogPos(pos.0.saturating_add(1))).await
    }

    /// Gives up what a range of positions holds, for ever. Durable.
    pub async fn trim_range(&self, positions: Range<LogPos>) -> Result<(), ClientError> {
        self.inner.trim(positions).await
    }

    /// Positions below `tail` need not be asked about: a layout has decided that the log goes on there.
    pub(crate) fn knows_tail(&self, tail: LogPos) {
        self.inner.decided_tail.set(self.inner.decided_tail.get().max(tail));
    }

    /// Whether the cluster has lost nodes for good since it began: every call fails with `AfterLoss`, for ever.
    pub fn is_after_loss(&self) -> bool {
        self.inner.check_loss().is_err()
    }

    /// The longest entry that every unit which the client has met takes.
    pub fn entry_max_bytes(&self) -> usize {
        self.inner.write_limits.get().entry_bytes
    }

    /// Where the log ends and begins. The tail is above every append that was acknowledged before the call. It may be lower in a later
    /// answer, though never below what was acknowledged or read: what was granted and not written ends with its epoch.
    pub async fn check(&self) -> Result<Bounds, ClientError> {
        self.inner.check().await
    }

    /// The newest layout, asked for anew.
    pub async fn layout(&self) -> Result<Rc<Layout>, ClientError> {
        self.inner.forget_view(&self.inner.view());
        Ok(self.inner.view_by(self.inner.deadline()).await?.layout)
    }

    /// What each node of the layout says of itself, or why it does not. All are asked at the same time.
    pub async fn status(&self) -> Result<Vec<NodeAnswer>, ClientError> {
        self.inner.status().await
    }
}

impl Inner {
    /// State that knows nothing of its cluster yet.
    fn new(env: &Env, options: ClientOptions) -> Rc<Self> {
        let learning = RefCell::new(Learning::of(options.endpoints.clone()));
        Rc::new(Self {
            env: env.clone(),
            options,
            id: ClientId(env.random_u64()),
            view: RefCell::default(),
            connections: RefCell::default(),
            settled: Notify::default(),
            connecting: RefCell::default(),
            learning,
            watching: Cell::default(),
            said_tail: Cell::default(),
            decided_tail: Cell::default(),
            granted: Cell::default(),
            shortage: RefCell::default(),
            write_limits: Cell::default(),
            replicas: Replicas::default(),
            peeks: Cell::new(0),
            appender: Rc::default(),
        })
    }

    fn deadline(&self) -> Time {
        self.env.now() + self.options.timeout
    }

    /// Runs a task that ends with the client: it is given a reference that does not keep it alive.
    fn spawn_scoped<F: Future<Output = ()> + 'static>(self: &Rc<Self>, task: impl FnOnce(Weak<Self>) -> F) {
        self.env.spawn(task(Rc::downgrade(self)));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Wakes the task that waits for appends, so that it ends.
        self.appender.changed().ring();
    }
}
