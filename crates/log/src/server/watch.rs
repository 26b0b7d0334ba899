//! Questions that wait: for a stream to go on, and for an address to be decided.
//!
//! ```text
//!   follower ── WatchStream, next 7 ──► sequencer's node        nothing is sent while the stream stands still
//!                                            │ grants position 7 in the stream
//!            ◄──────────── Tail ─────────────┘
//!            ── ReadStream, wait ─────► log unit                nothing is sent while the entry is on its way
//!                                            │ the entry is durable
//!            ◄────────── StreamRuns ─────────┘
//! ```
//!
//! A question that waits is answered once, at its deadline at the latest, and what it is told is so when it is sent. It ends with its
//! connection. Where too many wait, one more is answered at once. (docs/protocol/stream-reads.md)

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::sync::Notify;
use ithaca_env::task::race;

use super::node::Node;
use super::reply::ReplyRoute;
use super::tasks::Tasks;
use super::unit_shell::UnitShell;
use crate::limits;
use crate::pos::{Epoch, StreamId};
use crate::wire::{Grant, GroupGrant, ReadStream, Refusal, Roles, Tail, WatchStream};

/// Streams that somebody waits for.
#[derive(Default)]
pub(super) struct Watchers {
    streams: RefCell<BTreeMap<StreamId, Rc<Notify>>>,
}

impl Watchers {
    /// One more waits for `stream`; `None` if too many streams are waited for.
    fn add(self: &Rc<Self>, stream: StreamId) -> Option<Watching> {
        let mut streams = self.streams.borrow_mut();
        let has_room = streams.len() < limits::WATCHES_MAX_COUNT || streams.contains_key(&stream);
        has_room.then(|| {
            let granted = Rc::clone(streams.entry(stream).or_default());
            Watching { watchers: Rc::clone(self), stream, granted }
        })
    }

    /// Groups were granted positions, or refused.
    pub(super) fn granted(&self, grant: &Grant) {
        let streams = self.streams.borrow();
        if streams.is_empty() {
            return;
        }
        for place in grant.groups.iter().flat_map(GroupGrant::places) {
            if let Some(granted) = streams.get(&place.stream) {
                granted.ring();
            }
        }
    }

    /// How many streams are waited for.
    pub(super) fn len(&self) -> usize {
        self.streams.borrow().len()
    }

    /// The sequencer is another one, or none: everybody is told.
    pub(super) fn end(&self) {
        self.streams.borrow().values().for_each(|granted| granted.ring());
    }
}

/// Somebody who waits for a stream, until this is dropped.
struct Watching {
    watchers: Rc<Watchers>,
    stream: StreamId,
    granted: Rc<Notify>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        // This one's and the table's are left of it: nobody else waits.
        if Rc::strong_count(&self.granted) == 2 {
            self.watchers.streams.borrow_mut().remove(&self.stream);
        }
    }
}

/// Answers where a stream ends as soon as that is past what is known, or at the deadline.
pub(super) fn watch(node: &Rc<Node>, waits: &Rc<Tasks>, route: ReplyRoute, watch: WatchStream) {
    let is_waiting = node.waits_for(route.epoch(), &watch) && waits.len() < limits::WAITS_MAX_COUNT;
    let Some(watching) = is_waiting.then(|| node.streams.watchers().add(watch.stream)).flatten() else {
        return answer(node, &route, &watch);
    };
    let (node, env) = (Rc::clone(node), node.env.clone());
    let span = Duration::from_millis(watch.wait_ms.into());
    waits.spawn(&node.env.clone(), async move {
        let went_on = async {
            loop {
                let ticket = watching.granted.ticket();
                if !node.waits_for(route.epoch(), &watch) {
                    return;
                }
                watching.granted.after(ticket).await;
            }
        };
        race(went_on, env.sleep(span)).await;
        answer(&node, &route, &watch);
    });
}

fn answer(node: &Rc<Node>, route: &ReplyRoute, watch: &WatchStream) {
    match node.tails(route.epoch(), &[watch.stream]) {
        Some(Ok(tail)) => route.send(&tail),
        Some(Err(refusal)) => route.refuse(refusal),
        None => route.refuse(Refusal::NotServing { roles: Roles::SEQUENCER }),
    }
}

/// Answers a read of a stream, which waits for its first address to be decided if it asks for that.
pub(super) fn read_stream(unit: Rc<UnitShell>, waits: &Rc<Tasks>, route: ReplyRoute, read: ReadStream) {
    let is_waiting = read.wait_ms > 0 && waits.len() < limits::WAITS_MAX_COUNT;
    if !is_waiting || unit.is_decided(route.epoch(), &read) {
        return unit.read_stream(route, read);
    }
    let env = unit.env().clone();
    let span = Duration::from_millis(read.wait_ms.into());
    waits.spawn(&env.clone(), async move {
        let decided = async {
            loop {
                let ticket = unit.advanced().ticket();
                if unit.is_decided(route.epoch(), &read) {
                    return;
                }
                unit.advanced().after(ticket).await;
            }
        };
        race(decided, env.sleep(span)).await;
        unit.read_stream(route, read);
    });
}

impl Node {
    /// What its sequencer says of the tail and of where streams end; `None` if it has none.
    pub(super) fn tails(&self, epoch: Epoch, streams: &[StreamId]) -> Option<Result<Tail, Refusal>> {
        let tail = self.sequencer.borrow().as_ref()?.tail(epoch);
        // Whoever asks the tail in an old epoch must learn that it is over.
        Some(tail.and_then(|tail| {
            let streams = self.stream_tails(epoch, streams);
            self.leases.check(epoch)?;
            Ok(Tail { tail: Some(tail), extents: Vec::new(), streams: streams? })
        }))
    }

    /// Whether there is nothing new of a stream yet, but may be.
    fn waits_for(&self, epoch: Epoch, watch: &WatchStream) -> bool {
        let sequencer = self.sequencer.borrow();
        let tails = sequencer.as_ref().and_then(|it| it.stream_tails(epoch, &[watch.stream]).ok());
        watch.wait_ms > 0 && tails.is_some_and(|tails| tails.iter().all(|tail| tail.next <= watch.next))
    }
}
