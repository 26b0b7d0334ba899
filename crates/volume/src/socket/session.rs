//! The requests of one connection: which may begin. Pure.
//!
//! ```text
//!   bytes ─► frame ─► request ─► Begin: it may be carried out        done(tx) ─► the next one of that transaction
//!                        └─► waits for an earlier one of its transaction ─┘
//! ```
//!
//! Requests of one transaction are carried out one after the other, in the order in which they came: a client may send a whole
//! transaction without waiting. Requests of different transactions, and plain ones, do not wait for each other.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use super::frame::{self, FrameError, Front, Head};
use super::limits::{REQUESTS_MAX, REQUESTS_MAX_BYTES};
use super::refusal::{Refusal, Status};
use super::request::{About, Request};
use crate::planted::{Planted, PlantedBug};

/// A request that may be carried out; [`Session::done`] is to be called when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub head: Head,
    /// Or why it is refused as it is, in its turn: the transaction is to know of a write that it lacks.
    pub request: Result<Request, Refusal>,
}

impl Asked {
    /// Bytes of data that it takes or gives.
    pub fn cost_bytes(&self) -> usize {
        self.request.as_ref().map_or(0, Request::cost_bytes)
    }
}

/// How a connection goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This one may be carried out.
    Begin(Asked),
    /// This one is refused as it is.
    Refuse(Head, Refusal),
    /// With more bytes: at least so many.
    Read(usize),
    /// When a request is done: as many are under way as may be.
    Full,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    /// Transactions of which a request is under way, and what waits behind it.
    busy: BTreeMap<u32, VecDeque<Asked>>,
    /// Requests that are under way or wait.
    taken: usize,
    taken_bytes: usize,
    planted: Planted,
}

impl Session {
    pub fn new(planted: Planted) -> Self {
        Self { busy: BTreeMap::new(), taken: 0, taken_bytes: 0, planted }
    }

    /// Takes frames off the front of `received` until one may begin, is refused, or more is needed. Errors: the connection
    /// ends.
    pub fn next(&mut self, received: &mut BytesMut) -> Result<Next, FrameError> {
        loop {
            if self.taken >= REQUESTS_MAX || self.taken_bytes >= REQUESTS_MAX_BYTES {
                return Ok(Next::Full);
            }
            let (head, body) = match frame::take(received)? {
                Front::Missing(bytes) => return Ok(Next::Read(bytes)),
                Front::Frame(head, body) => (head, body),
            };
            let request = match check(&head).and_then(|()| {
                Request::decode(head.kind, body).map_err(|error| Refusal::new(Status::Request, error))
            }) {
                Err(refusal) if head.tx == 0 || !Request::completes(head.kind) => {
                    return Ok(Next::Refuse(head, refusal));
                }
                request => request,
            };
            let asked = Asked { head, request };
            self.taken += 1;
            self.taken_bytes += asked.cost_bytes();
            if head.tx == 0 || self.planted.is(PlantedBug::RequestsOvertake) {
                return Ok(Next::Begin(asked));
            }
            match self.busy.get_mut(&head.tx) {
                Some(behind) => behind.push_back(asked),
                None => {
                    self.busy.insert(head.tx, VecDeque::new());
                    return Ok(Next::Begin(asked));
                }
            }
        }
    }

    /// A request was carried out. Returns the one that waited for that, which may begin now.
    pub fn done(&mut self, tx: u32, cost_bytes: usize) -> Option<Asked> {
        assert!(self.taken > 0 && self.taken_bytes >= cost_bytes, "what is done was taken");
        self.taken -= 1;
        self.taken_bytes -= cost_bytes;
        let behind = self.busy.get_mut(&tx)?;
        let next = behind.pop_front();
        if next.is_none() {
            self.busy.remove(&tx);
        }
        next
    }

    /// Nothing that waits will begin: the connection has ended.
    pub fn end(&mut self) {
        for (_, behind) in self.busy.iter_mut() {
            for asked in behind.drain(..) {
                self.taken -= 1;
                self.taken_bytes -= asked.cost_bytes();
            }
        }
    }

    /// Requests that are under way or wait.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// Whether a frame names a transaction if and only if its kind is about one.
fn check(head: &Head) -> Result<(), Refusal> {
    let words = match Request::about(head.kind) {
        None => format!("there is no request {}", head.kind),
        Some(_) if head.status != 0 => format!("a request with status {}", head.status),
        Some(About::Tx | About::NewTx) if head.tx == 0 => {
            format!("request {} needs a transaction, the frame names none", head.kind)
        }
        Some(About::None) if head.tx != 0 => {
            format!("request {} is about no transaction, the frame names {}", head.kind, head.tx)
        }
        Some(_) => return Ok(()),
    };
    Err(Refusal::new(Status::Request, words))
}
