//! The role that keeps layouts: decides one for each epoch, once, and remembers it across restarts.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use slab::Slab;

use super::register::Register;
use super::reply::ReplyRoute;
use crate::layout::Layout;
use crate::layout::acceptor::{Acceptor, Effect, Input};
use crate::pos::Epoch;
use crate::unit::ReplyTo;
use crate::wire::{Kind, LayoutRecord, Propose, Refusal};

/// The acceptor and the register that its decisions lie in.
pub(super) struct LayoutKeeper {
    env: Env,
    acceptor: RefCell<Acceptor>,
    /// `None` while a decision is written; the acceptor never has two to write.
    register: RefCell<Option<Register>>,
    routes: RefCell<Slab<ReplyRoute>>,
}

impl LayoutKeeper {
    pub(super) fn new(env: &Env, register: Register, acceptor: Acceptor) -> Rc<Self> {
        Rc::new(Self {
            env: env.clone(),
            acceptor: RefCell::new(acceptor),
            register: RefCell::new(Some(register)),
            routes: RefCell::default(),
        })
    }

    /// The epoch of the latest layout.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.acceptor.borrow().latest().map(|layout| layout.epoch)
    }

    /// Answers with the layout of `epoch`, or the latest.
    pub(super) fn get(self: &Rc<Self>, route: ReplyRoute, epoch: Option<Epoch>) {
        let to = self.keep(route);
        self.step(Input::Get { to, epoch });
    }

    /// Decides the proposed layout, if its epoch has none yet, and answers with the one that is decided.
    pub(super) fn propose(self: &Rc<Self>, route: ReplyRoute, propose: &Propose) {
        match Layout::decode(&propose.record) {
            Ok(layout) => {
                let to = self.keep(route);
                self.step(Input::Propose { to, layout });
            }
            Err(_) => route.refuse(Refusal::Malformed { kind: Kind::Propose as u16 }),
        }
    }

    fn keep(&self, route: ReplyRoute) -> ReplyTo {
        ReplyTo(self.routes.borrow_mut().insert(route) as u64)
    }

    fn step(self: &Rc<Self>, input: Input) {
        let mut effects = Vec::new();
        self.acceptor.borrow_mut().step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist { record } => self.persist(record),
                Effect::Reply { to, layout } => {
                    let reply = LayoutRecord { record: layout.encode() };
                    self.routes.borrow_mut().remove(to.0 as usize).send_in(layout.epoch, &reply);
                }
                Effect::Refuse { to, refusal } => {
                    self.routes.borrow_mut().remove(to.0 as usize).refuse(refusal)
                }
            }
        }
    }

    fn persist(self: &Rc<Self>, record: Bytes) {
        let mut register = self.register.take().expect("the acceptor writes one record at a time");
        let keeper = Rc::clone(self);
        self.env.spawn(async move {
            let written = register.write(&record).await;
            if let Err(error) = &written {
                tracing::error!(%error, "a layout could not be stored; no further one will be decided");
            }
            keeper.register.replace(Some(register));
            keeper.step(if written.is_ok() { Input::Persisted } else { Input::Failed });
        });
    }
}
