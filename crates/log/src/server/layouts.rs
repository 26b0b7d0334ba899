//! The role that keeps layouts: decides one for each epoch, together with the others that have the role, and remembers it
//! across restarts.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_env::task::race;
use slab::Slab;

use super::register::{Register, RegisterError};
use super::reply::ReplyRoute;
use super::tasks::Tasks;
use crate::layout::acceptor::{Acceptor, Answer, Effect, Input};
use crate::layout::{Layout, LeaseGrants, LeasesLeft};
use crate::limits;
use crate::planted::Planted;
use crate::pos::{AddrRange, Epoch, NodeId};
use crate::unit::ReplyTo;
use crate::wire::{
    Accept, Accepted, Kind, LayoutRecord, Learn, Learned, Lease, Leased, Prepare, Promise, Refusal, Vote,
    WatchLayout,
};

/// The wait before a decision is copied.
const COPY_AFTER: Duration = Duration::from_secs(1);

/// The acceptor and the register that its decisions lie in.
pub(super) struct LayoutKeeper {
    env: Env,
    acceptor: RefCell<Acceptor>,
    /// `None` while a decision is written or copied; the acceptor never has two to write.
    register: RefCell<Option<Register>>,
    /// Rings when the register is there again.
    is_free: Notify,
    /// The leases that it has granted of late.
    grants: RefCell<LeaseGrants>,
    /// Who is answered; nobody, if this node itself has learned a layout.
    routes: RefCell<Slab<Option<ReplyRoute>>>,
    /// The latest layout.
    latest: RefCell<Option<Rc<Layout>>>,
    /// Rings when there is a later one.
    changed: Notify,
}

impl LayoutKeeper {
    pub(super) fn new(env: &Env, register: Register, acceptor: Acceptor, planted: Planted) -> Rc<Self> {
        let latest = acceptor.latest().cloned().map(Rc::new);
        Rc::new(Self {
            env: env.clone(),
            acceptor: RefCell::new(acceptor),
            register: RefCell::new(Some(register)),
            is_free: Notify::default(),
            grants: RefCell::new(LeaseGrants::new(env.now(), planted)),
            routes: RefCell::default(),
            latest: RefCell::new(latest),
            changed: Notify::default(),
        })
    }

    /// The epoch of the latest layout.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.latest.borrow().as_ref().map(|layout| layout.epoch)
    }

    /// The latest layout; it is on stable storage here.
    pub(super) fn latest(&self) -> Option<Rc<Layout>> {
        self.latest.borrow().clone()
    }

    /// The newest epoch that `node` is sure to have sealed, on stable storage, by the layouts that are known.
    pub(super) fn sealed_by(&self, node: NodeId) -> Option<Epoch> {
        self.acceptor.borrow().sealed_by(node)
    }

    /// What `node` has to hold nothing of; see [`Acceptor::lost_at`].
    pub(super) fn lost_at(&self, node: NodeId) -> Vec<AddrRange> {
        self.acceptor.borrow().lost_at(node)
    }

    /// Whether the epoch after the latest may have a layout already: this node has promised or accepted something for it.
    pub(super) fn is_touched(&self) -> bool {
        self.acceptor.borrow().is_touched()
    }

    /// Rings when there is a later layout.
    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Remembers a layout that was decided, and that this node has learned by itself.
    pub(super) fn take(self: &Rc<Self>, layout: Layout) {
        let to = ReplyTo(self.routes.borrow_mut().insert(None) as u64);
        self.step(Input::Learn { to, layout });
    }

    /// Stores what is no layout in the register of a node that knows none, and that must not be asked to decide or told of any until this
    /// returns.
    pub(super) async fn store(&self, value: Bytes) -> Result<(), RegisterError> {
        let mut register = self.taken().await;
        let written = register.write_twice(&value).await;
        self.put_back(register);
        written.map_err(RegisterError::Drive)
    }

    async fn taken(&self) -> Register {
        self.is_free.until(|| self.register.take()).await
    }

    fn put_back(&self, register: Register) {
        self.register.replace(Some(register));
        self.is_free.ring();
    }

    /// Answers with the layout of `epoch`, or the latest.
    pub(super) fn get(self: &Rc<Self>, route: ReplyRoute, epoch: Option<Epoch>) {
        let to = self.keep(route);
        self.step(Input::Get { to, epoch });
    }

    /// Answers with the latest layout as soon as that is later than what is known, or after a while all the same; at once if too many wait.
    pub(super) fn watch(self: &Rc<Self>, waits: &Rc<Tasks>, route: ReplyRoute, asked: WatchLayout) {
        let is_later = move |keeper: &Self| keeper.epoch().filter(|epoch| *epoch > asked.known);
        if is_later(self).is_some() || waits.len() >= limits::WAITS_MAX_COUNT {
            return self.get(route, None);
        }
        let (keeper, span) = (Rc::clone(self), Duration::from_millis(asked.wait_ms.into()));
        waits.spawn(&self.env, async move {
            race(keeper.changed.until(|| is_later(&keeper)), keeper.env.sleep(span)).await;
            let answers = Rc::clone(route.answers());
            let Ok(_making) = answers.begin(limits::LAYOUT_MAX_BYTES).await else { return };
            keeper.get(route, None);
        });
    }

    /// Promises, if it can, to accept nothing below a ballot any more.
    pub(super) fn prepare(self: &Rc<Self>, route: ReplyRoute, prepare: Prepare) {
        let to = self.keep(route);
        self.step(Input::Prepare { to, epoch: prepare.epoch, ballot: prepare.ballot });
    }

    /// Accepts a layout, if it can.
    pub(super) fn accept(self: &Rc<Self>, route: ReplyRoute, accept: &Accept) {
        match Layout::decode(&accept.record) {
            Ok(layout) => {
                let to = self.keep(route);
                self.step(Input::Accept { to, ballot: accept.ballot, layout });
            }
            Err(_) => route.refuse(Refusal::Malformed { kind: Kind::Accept as u16 }),
        }
    }

    /// Remembers a layout that was decided.
    pub(super) fn learn(self: &Rc<Self>, route: ReplyRoute, learn: &Learn) {
        match Layout::decode(&learn.record) {
            Ok(layout) => {
                let to = self.keep(route);
                self.step(Input::Learn { to, layout });
            }
            Err(_) => route.refuse(Refusal::Malformed { kind: Kind::Learn as u16 }),
        }
    }

    /// Says whether an epoch is still the latest.
    pub(super) fn lease(self: &Rc<Self>, route: ReplyRoute, lease: Lease) {
        if self.acceptor.borrow().grants_lease(lease.epoch) {
            self.grants.borrow_mut().granted(lease.node, self.env.now());
        }
        let to = self.keep(route);
        self.step(Input::Lease { to, epoch: lease.epoch });
    }

    fn keep(&self, route: ReplyRoute) -> ReplyTo {
        ReplyTo(self.routes.borrow_mut().insert(Some(route)) as u64)
    }

    fn step(self: &Rc<Self>, input: Input) {
        let mut effects = Vec::new();
        self.acceptor.borrow_mut().step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist { record } => self.persist(record),
                Effect::Reply { to, answer } => {
                    if let Some(route) = self.routes.borrow_mut().remove(to.0 as usize) {
                        self.reply(&route, answer);
                    }
                }
            }
        }
        self.look();
    }

    /// Sees whether there is a later layout than before.
    fn look(&self) {
        let known = self.epoch();
        let acceptor = self.acceptor.borrow();
        if let Some(layout) = acceptor.latest().filter(|layout| Some(layout.epoch) > known) {
            self.latest.replace(Some(Rc::new(layout.clone())));
            self.changed.ring();
        }
    }

    fn reply(&self, route: &ReplyRoute, answer: Answer) {
        match answer {
            Answer::Promise(vote) => route.send(&Promise { vote: encode(vote), leases: self.leases_left() }),
            Answer::Accepted(vote) => route.send(&Accepted { vote: encode(vote) }),
            Answer::Learned(epoch) => route.send(&Learned { epoch }),
            Answer::Leased(granted) => route.send(&Leased { granted }),
            Answer::Layout(layout) => route.send_in(layout.epoch, &LayoutRecord { record: layout.encode() }),
            Answer::Refused(refusal) => route.refuse(refusal),
        }
    }

    /// For how long leases of members may be good yet that it has granted.
    fn leases_left(&self) -> LeasesLeft {
        let mut left = self.grants.borrow().left(self.env.now());
        let latest = self.latest();
        left.nodes.retain(|node, _| latest.as_ref().is_some_and(|layout| layout.node(*node).is_some()));
        left
    }

    fn persist(self: &Rc<Self>, record: Bytes) {
        let keeper = Rc::clone(self);
        self.env.spawn(async move {
            let mut register = keeper.taken().await;
            let written = register.write(&record).await;
            if let Err(error) = &written {
                tracing::error!(%error, "a layout could not be stored; no further one will be decided");
            }
            keeper.put_back(register);
            keeper.step(if written.is_ok() { Input::Persisted } else { Input::Failed });
            keeper.env.spawn(copy_later(keeper.env.clone(), Rc::downgrade(&keeper)));
        });
    }
}

/// Makes both copies of a decision the same, once no other one follows it at once: whoever goes on to the next epoch does not wait for it.
async fn copy_later(env: Env, keeper: Weak<LayoutKeeper>) {
    env.sleep(COPY_AFTER).await;
    let Some(keeper) = keeper.upgrade() else { return };
    // If one is being written it is copied after that.
    let Some(mut register) = keeper.register.take() else { return };
    if let Err(error) = register.copy().await {
        tracing::warn!(%error, "a layout is stored once only");
    }
    keeper.put_back(register);
}

/// A vote as it is sent.
fn encode(vote: Vote<Layout>) -> Vote {
    match vote.try_map(|layout| Ok::<_, std::convert::Infallible>(layout.encode())) {
        Ok(vote) => vote,
    }
}
