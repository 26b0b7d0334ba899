//! The requests of one connection: which may begin. Pure.
//!
//! ```text
//!   bytes ─► frame ─► request ─► Begin: it may be carried out        turn(tx) ─► the next one of that transaction
//!                        └─► waits for an earlier one of its transaction ─┘
//! ```
//!
//! Requests of one transaction are carried out one after the other, in the order in which they came: a client may send a whole
//! transaction without waiting. Requests of different transactions, and plain ones, do not wait for each other.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use super::frame::{self, FrameError, Front, Head};
use super::limits::{PLAIN_BODY_BYTES, REQUESTS_MAX, REQUESTS_MAX_BYTES};
use super::refusal::{Refusal, Status};
use super::request::{About, Request};
use crate::planted::{Planted, PlantedBug};

/// A request that may be carried out; [`Session::turn`] and [`Session::done`] are to be called when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked<R> {
    pub head: Head,
    /// Or why it is refused as it is, in its turn: the transaction is to know of a write that it lacks.
    pub request: Result<Request, Refusal>,
    /// For its data, if it takes or gives any.
    pub room: Option<R>,
}

impl<R> Asked<R> {
    /// Bytes of data that it takes or gives.
    pub fn cost_bytes(&self) -> usize {
        self.request.as_ref().map_or(0, Request::cost_bytes)
    }
}

/// How a connection goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next<R> {
    /// This one may be carried out.
    Begin(Asked<R>),
    /// This one is refused as it is.
    Refuse(Head, Refusal),
    /// With more bytes: at least so many.
    Read(usize),
    /// When there is room for so many bytes, which [`Session::give_room`] says.
    Room(usize),
    /// When a request is done: as many are under way as may be.
    Full,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session<R> {
    /// Transactions of which a request is under way, and what waits behind it.
    busy: BTreeMap<u32, VecDeque<Asked<R>>>,
    /// Requests that are under way or wait.
    taken: usize,
    taken_bytes: usize,
    /// Of the next request.
    room: Option<R>,
    /// The next request, which needs room.
    next: Option<Asked<R>>,
    planted: Planted,
}

impl<R> Session<R> {
    pub fn new(planted: Planted) -> Self {
        let (taken, taken_bytes) = (0, 0);
        Self { busy: BTreeMap::new(), taken, taken_bytes, room: None, next: None, planted }
    }

    /// Takes frames off the front of `received` until one may begin, is refused, or something is needed. `take_room` gives room for so many bytes if
    /// there is some at once. Errors: the connection ends.
    pub fn next(
        &mut self,
        received: &mut BytesMut,
        mut take_room: impl FnMut(usize) -> Option<R>,
    ) -> Result<Next<R>, FrameError> {
        loop {
            if self.taken >= REQUESTS_MAX || self.taken_bytes >= REQUESTS_MAX_BYTES {
                return Ok(Next::Full);
            }
            let mut asked = match self.next.take() {
                Some(asked) => asked,
                None => match self.take(received, &mut take_room)? {
                    Ok(asked) => asked,
                    Err(next) => return Ok(next),
                },
            };
            let cost_bytes = asked.cost_bytes();
            if cost_bytes > 0 && asked.room.is_none() {
                asked.room = self.room.take().or_else(|| take_room(cost_bytes));
                if asked.room.is_none() {
                    self.next = Some(asked);
                    return Ok(Next::Room(cost_bytes));
                }
            }
            if let Some(asked) = self.enter(asked) {
                return Ok(Next::Begin(asked));
            }
        }
    }

    /// Takes a request off the front, or says what comes before that.
    fn take(
        &mut self,
        received: &mut BytesMut,
        take_room: &mut impl FnMut(usize) -> Option<R>,
    ) -> Result<Result<Asked<R>, Next<R>>, FrameError> {
        let announced = match frame::announced(received)? {
            Ok(announced) => announced,
            Err(missing) => return Ok(Err(Next::Read(missing))),
        };
        if announced.body_bytes > PLAIN_BODY_BYTES && self.room.is_none() {
            self.room = take_room(announced.body_bytes);
            if self.room.is_none() {
                return Ok(Err(Next::Room(announced.body_bytes)));
            }
        }
        let (head, body) = match announced.take(received)? {
            Front::Missing(bytes) => return Ok(Err(Next::Read(bytes))),
            Front::Frame(head, body) => (head, body),
        };
        let room = self.room.take();
        let request = check(&head).and_then(|()| {
            Request::decode(head.kind, body).map_err(|error| Refusal::new(Status::Request, error))
        });
        Ok(match request {
            Err(refusal) if head.tx == 0 || !Request::completes(head.kind) => {
                Err(Next::Refuse(head, refusal))
            }
            // It may wait for long, or stay with the transaction.
            Ok(request) if head.tx != 0 => Ok(Asked { head, request: Ok(request.detached()), room }),
            request => Ok(Asked { head, request, room }),
        })
    }

    /// Counts a request, and gives it back if it need not wait for another.
    fn enter(&mut self, asked: Asked<R>) -> Option<Asked<R>> {
        self.taken += 1;
        self.taken_bytes += asked.cost_bytes();
        let tx = asked.head.tx;
        if tx == 0 || self.planted.is(PlantedBug::RequestsOvertake) {
            return Some(asked);
        }
        match self.busy.get_mut(&tx) {
            Some(behind) => {
                behind.push_back(asked);
                None
            }
            None => {
                self.busy.insert(tx, VecDeque::new());
                Some(asked)
            }
        }
    }

    /// There is room for the next request, which has asked for it.
    pub fn give_room(&mut self, room: R) {
        self.room = Some(room);
    }

    /// A request of this transaction was carried out. Returns the one that waited for that, which may begin now.
    pub fn turn(&mut self, tx: u32) -> Option<Asked<R>> {
        let behind = self.busy.get_mut(&tx)?;
        let next = behind.pop_front();
        if next.is_none() {
            self.busy.remove(&tx);
        }
        next
    }

    /// Nothing is held any more for a request that was carried out.
    pub fn done(&mut self, cost_bytes: usize) {
        assert!(self.taken > 0 && self.taken_bytes >= cost_bytes, "what is done was taken");
        self.taken -= 1;
        self.taken_bytes -= cost_bytes;
    }

    /// Nothing that waits will begin: the connection has ended.
    pub fn end(&mut self) {
        (self.room, self.next) = (None, None);
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
