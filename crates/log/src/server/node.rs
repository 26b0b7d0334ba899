//! A node: the roles that it has, and the connections that it serves.
//!
//! A connection begins with a hello, soon, or is closed. It is read as fast as it is answered: while too many of its
//! requests are under way, or too much of what it was sent stands unread, nothing more is taken from it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use ithaca_env::net::{Conn, Listener, Reader};
use ithaca_env::sync::Counted;
use ithaca_env::task::TaskHandle;
use ithaca_env::{Env, Time};

use super::answers::Answers;
use super::cluster;
use super::drives::DriveOrders;
use super::follower::{self, Following};
use super::forward::{Forwarder, NO_FORWARDER};
use super::greeting::{self, Greeted};
use super::layouts::LayoutKeeper;
use super::leases::Leases;
use super::places::Places;
use super::relay::Relay;
use super::reply::ReplyRoute;
use super::streams::StreamKeeper;
use super::tasks::Tasks;
use super::unit_shell::{Route, UnitShell};
use super::views::{self, Views};
use super::watch;
use crate::layout::Layout;
use crate::limits;
use crate::planted::Planted;
use crate::pos::{Addr, ClusterId, Epoch, Incarnation, LogPos, NodeId, RequestId};
use crate::sequencer::{KnownStreams, Sequencer};
use crate::wire::{
    self, Check, Credit, DataSum, Durability, FLAG_RELAY, Frame, GetDrives, GetLayout, GetStatus, Grant,
    GroupGrant, Head, Kind, Message, NodeStatus, Refusal, Request, Roles, Seal, Tail, Token,
};

/// Requests of one connection under way past which no more are read.
const UNDER_WAY_MAX: usize = 4096;
/// What the requests of one connection take of a turn, until others have theirs: 32 of most kinds, 8 reads of streams, 128 other reads.
const TURN_WORK: usize = 256;
/// How long what the system says of the process's memory is good for: the question takes longer than all else of a status.
const RESIDENT_GOOD: Duration = Duration::from_millis(50);
/// Subscriptions of one connection.
const FOLLOWING_MAX: usize = 1024;

/// How a node grants positions while it is the sequencer.
#[derive(Clone, Copy, Debug)]
pub struct GrantOptions {
    /// Batches whose grants it remembers.
    pub remembered_max: usize,
    /// Writes of parts of streams that it remembers, for conditions.
    pub remembered_writes_max: usize,
    /// Positions in streams after which it makes a checkpoint of where streams end.
    pub checkpoint_every: u64,
}

impl Default for GrantOptions {
    fn default() -> Self {
        Self {
            remembered_max: limits::SEQUENCER_REMEMBERED_MAX_COUNT,
            remembered_writes_max: limits::SEQUENCER_WRITES_MAX_COUNT,
            checkpoint_every: limits::CHECKPOINT_EVERY_COUNT,
        }
    }
}

/// A node and its roles.
pub(super) struct Node {
    pub(super) env: Env,
    pub(super) id: NodeId,
    /// Its cluster; unknown until it is told of one.
    pub(super) cluster: Cell<ClusterId>,
    pub(super) incarnation: Incarnation,
    /// Set once, as soon as it belongs to a cluster.
    pub(super) unit: OnceCell<Rc<UnitShell>>,
    /// What looks after the unit's drives. Set together with the unit.
    pub(super) drives: OnceCell<Rc<DriveOrders>>,
    /// Its leave to say what is not there.
    pub(super) leases: Rc<Leases>,
    pub(super) sequencer: RefCell<Option<Sequencer>>,
    /// Where appends that are sent whole go; with a sequencer only.
    pub(super) forwarder: RefCell<Option<Forwarder>>,
    /// Learns where streams end; with a sequencer only.
    pub(super) streams: StreamKeeper,
    pub(super) layouts: Option<Rc<LayoutKeeper>>,
    /// Where relayed writes go on; knows the layout. Set together with the unit.
    pub(super) relay: OnceCell<Rc<Relay>>,
    /// What makes it one of a cluster of processes.
    pub(super) member: OnceCell<Weak<cluster::Inner>>,
    /// What its cluster may give it to do.
    pub(super) offers: Roles,
    /// Whether this node's status counts the process's time and memory; one of those that share a process does.
    pub(super) counts_process: bool,
    pub(super) started: Time,
    pub(super) counters: Counters,
    /// Where questions about objects go.
    pub(super) views: Views,
}

/// What a node counts beside its unit.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) connections: Cell<u64>,
    pub(super) tokens: Cell<u64>,
    pub(super) appends: Cell<u64>,
    /// Groups that were refused because something that they read was written since.
    conflicts: Cell<u64>,
    /// Groups that were refused because nobody knows.
    too_old: Cell<u64>,
    /// The process's resident memory, and when the system was asked for it.
    resident: Cell<Option<(Time, u64)>>,
    pub(super) repairs: cluster::Repairs,
}

impl Counters {
    fn count_grant(&self, grant: &Grant) {
        add(&self.tokens, grant.count().into());
        for group in &grant.groups {
            match group {
                GroupGrant::Granted { .. } => {}
                GroupGrant::Conflict { .. } => add(&self.conflicts, 1),
                GroupGrant::TooOld { .. } => add(&self.too_old, 1),
            }
        }
    }
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

impl Node {
    /// The sequencer has answered so to somebody who asked for positions: it is counted, and whoever waits for a stream is told.
    fn note_granted(&self, answer: &Result<Grant, Refusal>) {
        self.look_after_streams(answer);
        if let Ok(grant) = answer {
            self.counters.count_grant(grant);
            self.streams.watchers().granted(grant);
        }
    }

    /// The part that the newest layout gives the node, or, where it is in none, the one that it would have.
    fn part(&self) -> Roles {
        let latest = self.layouts.as_ref().and_then(|layouts| layouts.latest());
        let listed = latest.as_ref().and_then(|layout| layout.node(self.id));
        listed.map_or(self.offers.of_member(), |listed| listed.roles)
    }

    /// Its unit, if that stores entries: a node without that role has one all the same, and only has it sealed.
    pub(super) fn storing(&self) -> Option<&Rc<UnitShell>> {
        self.unit.get().filter(|_| self.part().has(Roles::UNIT))
    }

    /// What the node does.
    pub(super) fn roles(&self) -> Roles {
        let mut roles = Roles::default();
        if self.layouts.is_some() && !self.part().has(Roles::ABSTAINS) {
            roles = roles.with(Roles::LAYOUT);
        }
        if self.sequencer.borrow().is_some() {
            roles = roles.with(Roles::SEQUENCER);
        }
        if self.storing().is_some() {
            roles = roles.with(Roles::UNIT);
        }
        if self.forwarder.borrow().is_some() {
            roles = roles.with(Roles::FORWARDER);
        }
        if self.views.is_hosting() {
            roles = roles.with(Roles::VIEWS);
        }
        roles
    }

    /// The epoch that the node serves in, as far as it knows.
    pub(super) fn epoch(&self) -> Epoch {
        let sequencer = self.sequencer.borrow().as_ref().map(Sequencer::epoch);
        let layout = self.layouts.as_ref().and_then(|layouts| layouts.epoch());
        sequencer.max(layout).unwrap_or_default()
    }

    /// Takes over what `layout` gives this node to do; `may_grant` says that no earlier life of it may have granted positions
    /// in that epoch.
    pub(super) fn go_on(
        self: &Rc<Self>,
        layout: &Rc<Layout>,
        may_grant: bool,
        options: GrantOptions,
        planted: Planted,
    ) {
        let Some(relay) = self.relay.get() else { return };
        relay.learn(Rc::clone(layout));
        if let Some(unit) = self.unit.get() {
            unit.list(layout, self.id);
        }
        let (mut sequencer, mut forwarder) = (None, None);
        if may_grant && layout.sequencer == self.id {
            let started = Sequencer::start_planted(layout.epoch, layout.tail(), planted);
            let started = match layout.shortage() {
                Some((kept, needed)) => started.short_of_replicas(kept, needed),
                None => started,
            };
            let started = started.remembering(options.remembered_max);
            let mut started = started.remembering_writes(options.remembered_writes_max);
            if layout.tail() == LogPos(0) {
                started.learn_streams(KnownStreams::default());
            }
            sequencer = Some(started);
            forwarder = Some(Forwarder::new(Rc::clone(layout), Rc::clone(relay), planted));
        }
        let is_sequencer = sequencer.is_some();
        self.sequencer.replace(sequencer);
        self.forwarder.replace(forwarder);
        match is_sequencer {
            true => self.streams.begin(self, layout, options.checkpoint_every),
            false => self.streams.stop(),
        }
    }

    /// Grants nothing of `epoch` and before any more, and does not say where its log ends.
    fn stop_granting(&self, epoch: Epoch) {
        let is_over = self.sequencer.borrow().as_ref().is_some_and(|sequencer| sequencer.epoch() <= epoch);
        if is_over {
            self.sequencer.replace(None);
            self.forwarder.replace(None);
            self.streams.stop();
        }
    }

    /// Whether its unit stores nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.unit.get().is_some_and(|unit| unit.has_failed())
    }

    /// How long its unit takes to store a write, of late, in microseconds; 0 if it has stored none.
    pub(super) fn write_us(&self) -> u32 {
        self.unit.get().map_or(0, |unit| unit.write_us())
    }

    /// Serves `listener` until the task is aborted.
    pub(super) fn serve(self: &Rc<Self>, listener: Listener) -> TaskHandle<()> {
        let node = Rc::clone(self);
        self.env.spawn(async move {
            let (strangers, connections) = (Rc::new(Tasks::default()), Rc::new(Tasks::default()));
            let places = Rc::new(Places::default());
            loop {
                match listener.accept().await {
                    Ok(conn) => {
                        add(&node.counters.connections, 1);
                        places.make_room(&node, &strangers);
                        let (places, connections) = (Rc::clone(&places), Rc::downgrade(&connections));
                        strangers.spawn(&node.env, meet(Rc::clone(&node), conn, places, connections));
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: those in use will be closed, those who wait are not lost.
                        tracing::warn!(node = node.id.0, %error, "a connection could not be accepted");
                        node.env.sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        })
    }

    /// Memory of the process, as of a moment ago.
    fn resident_bytes(&self) -> u64 {
        let now = self.env.now();
        let known = self.counters.resident.get().filter(|(asked, _)| now.since(*asked) < RESIDENT_GOOD);
        let (asked, bytes) = known.unwrap_or_else(|| (now, self.env.resident_bytes()));
        self.counters.resident.set(Some((asked, bytes)));
        bytes
    }

    /// What the node says of itself.
    pub(super) fn status(&self) -> NodeStatus {
        let counters = &self.counters;
        let counted = [
            ("connections", &counters.connections),
            ("tokens", &counters.tokens),
            ("appends", &counters.appends),
            ("token_conflicts", &counters.conflicts),
            ("tokens_too_old", &counters.too_old),
            ("lost_entries_found", &counters.repairs.found),
            ("lost_entries_repaired", &counters.repairs.repaired),
            ("lost_entries_left", &counters.repairs.open),
        ];
        let mut counters: Vec<(String, u64)> =
            counted.into_iter().map(|(name, counter)| (name.to_owned(), counter.get())).collect();
        let is_full = self.sequencer.borrow().as_ref().is_some_and(Sequencer::is_full);
        counters.push(("appends_refused_full".to_owned(), u64::from(is_full)));
        counters.push(("view_questions_under_way".to_owned(), self.views.under_way() as u64));
        counters.push(("streams_watched".to_owned(), self.streams.watchers().len() as u64));
        if let Some(unit) = self.storing() {
            counters.extend(unit.counters());
        }
        let sequencer = self.sequencer.borrow();
        NodeStatus {
            node: self.id,
            incarnation: self.incarnation,
            roles: self.roles(),
            offers: self.offers,
            durability: Durability::Fsync,
            cpu_us: if self.counts_process { self.env.cpu_us() } else { 0 },
            rss_bytes: if self.counts_process { self.resident_bytes() } else { 0 },
            uptime_ms: self.env.now().since(self.started).as_millis() as u64,
            tail: sequencer.as_ref().and_then(|sequencer| sequencer.tail(sequencer.epoch()).ok()),
            watermark: self.storing().map(|unit| unit.watermark(Addr(0))),
            counters,
        }
    }
}

/// Waits until whoever is at the other end of `conn` has greeted, and serves them then, among `connections`.
async fn meet(node: Rc<Node>, conn: Conn, places: Rc<Places>, connections: Weak<Tasks>) {
    let Conn { mut reader, writer } = conn;
    let (peer, tasks, mut buf) = (reader.peer_addr(), Rc::new(Tasks::default()), BytesMut::new());
    let answers = Answers::new(writer, &tasks);
    let Greeted { is_node, place } =
        match greeting::wait(&node, &places, &answers, &mut reader, &mut buf).await {
            Ok(greeted) => greeted,
            Err(why) => return tracing::debug!(node = node.id.0, %peer, %why, "connection ended"),
        };
    let env = node.env.clone();
    let session = Session {
        node,
        answers,
        _tasks: tasks,
        following: BTreeMap::new(),
        waits: Rc::default(),
        is_of_node: is_node,
        _place: place,
    };
    let Some(connections) = connections.upgrade() else { return };
    connections.spawn(&env, async move {
        let node = Rc::clone(&session.node);
        if let Err(why) = session.run(reader, buf).await {
            tracing::debug!(node = node.id.0, %peer, %why, "connection ended");
        }
    });
}

/// One connection being served: it has greeted.
struct Session {
    node: Rc<Node>,
    answers: Rc<Answers>,
    /// What makes its answers.
    _tasks: Rc<Tasks>,
    following: BTreeMap<RequestId, Following>,
    /// Requests that wait for something to come.
    waits: Rc<Tasks>,
    /// Whether it is another node's.
    is_of_node: bool,
    /// What it counts as, for as long as it is served.
    _place: Counted,
}

/// Why a connection ended before its peer closed it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error(transparent)]
    Net(#[from] ithaca_env::net::NetError),
    #[error(transparent)]
    Frame(#[from] wire::FrameError),
    #[error("it was not greeted properly")]
    Greeting,
}

impl Session {
    /// Serves what comes: what stands in `buf`, and what `reader` brings.
    async fn run(mut self, mut reader: Reader, mut buf: BytesMut) -> Result<(), Ended> {
        let mut work = 0;
        loop {
            self.keep_up().await?;
            let Some(frame) = wire::next_frame(&mut buf)? else {
                if reader.read(&mut buf).await? == 0 {
                    return Ok(());
                }
                continue;
            };
            work += work_of(frame.kind);
            self.handle(frame);
            if work >= TURN_WORK {
                work = 0;
                self.node.env.next_turn().await;
            }
        }
    }

    /// Waits while too much is under way or unsent: one read of the socket may bring thousands of requests.
    async fn keep_up(&self) -> Result<(), Ended> {
        let Answers { writer, under_way, .. } = &*self.answers;
        if under_way.get() >= UNDER_WAY_MAX {
            under_way.below(UNDER_WAY_MAX).await;
        }
        if writer.queued_bytes() >= limits::UNSENT_MAX_BYTES {
            writer.below(limits::UNSENT_MAX_BYTES).await?;
        }
        Ok(())
    }

    fn route(&self, head: Head) -> ReplyRoute {
        ReplyRoute::new(&self.answers, head)
    }

    fn handle(&mut self, frame: Frame) {
        // What comes with data of its own goes where the data does, decoded without a detour.
        if frame.kind == Kind::Write as u16 {
            return self.write(frame);
        }
        if frame.kind == Kind::Append as u16 {
            return self.append(frame);
        }
        if frame.kind == Kind::AskView as u16 {
            return self.ask_view(frame);
        }
        match Request::decode(&frame) {
            Ok(Request::Hello(_)) => self.route(frame.head).refuse(Refusal::Greeting),
            Ok(request) => self.serve(frame.head, request),
            Err(error) => {
                tracing::debug!(node = self.node.id.0, %error, "refused");
                self.route(frame.head).refuse(Refusal::Malformed { kind: frame.kind });
            }
        }
    }

    fn write(&mut self, frame: Frame) {
        let route = self.route(frame.head);
        let Some(unit) = self.node.unit.get() else {
            return route.refuse(Refusal::NotServing { roles: Roles::UNIT });
        };
        match wire::Write::decode_body(&frame.body, frame.data.len()) {
            Ok(write) => {
                let run = write.into_run(frame.head.epoch, frame.data);
                match (frame.head.flags & FLAG_RELAY != 0, self.node.relay.get()) {
                    (true, Some(relay)) => relay.write_here(self.node.id, unit, route, run),
                    _ => unit.write(Route::Reply(route), run),
                }
            }
            Err(_) => route.refuse(Refusal::Malformed { kind: frame.kind }),
        }
    }

    fn append(&mut self, frame: Frame) {
        let route = self.route(frame.head);
        let (mut sequencer, forwarder) = (self.node.sequencer.borrow_mut(), self.node.forwarder.borrow());
        let (Some(sequencer), Some(forwarder)) = (sequencer.as_mut(), forwarder.as_ref()) else {
            return route.refuse(NO_FORWARDER);
        };
        match wire::Append::decode_body(&frame.body, frame.data.len()) {
            Ok(append) => {
                add(&self.node.counters.appends, 1);
                forwarder
                    .append(sequencer, route, append, frame.data, |granted| self.node.note_granted(granted));
            }
            Err(_) => route.refuse(Refusal::Malformed { kind: frame.kind }),
        }
    }

    fn ask_view(&self, frame: Frame) {
        let route = self.route(frame.head);
        match wire::AskView::decode_body(&frame.body, frame.data.len()) {
            Ok(asked) if asked.question == DataSum::of(&frame.data) => {
                views::ask(&self.node, route, asked, frame.data);
            }
            Ok(_) | Err(_) => route.refuse(Refusal::Malformed { kind: frame.kind }),
        }
    }

    fn serve(&mut self, head: Head, request: Request) {
        match request {
            Request::Token(token) => self.grant(head, token),
            Request::Check(check) => self.check(head, &check),
            Request::WatchStream(asked) => watch::watch(&self.node, &self.waits, self.route(head), asked),
            Request::GetStatus(GetStatus) => self.route(head).send_in(self.node.epoch(), &self.node.status()),
            Request::GetLayout(GetLayout { epoch }) => match &self.node.layouts {
                Some(layouts) => layouts.get(self.route(head), epoch),
                None => self.route(head).refuse(Refusal::NotServing { roles: Roles::LAYOUT }),
            },
            Request::WatchLayout(asked) => match &self.node.layouts {
                Some(layouts) => layouts.watch(&self.waits, self.route(head), asked),
                None => self.route(head).refuse(Refusal::NotServing { roles: Roles::LAYOUT }),
            },
            Request::Prepare(_) | Request::Accept(_) | Request::Learn(_) | Request::Lease(_) => {
                self.serve_acceptor(head, request)
            }
            Request::Seal(seal) => self.seal(head, seal),
            Request::Beat(beat) => match self.member() {
                Some(member) => member.beat(&self.route(head), &beat),
                None => self.route(head).refuse(Refusal::NotServing { roles: Roles::LAYOUT }),
            },
            Request::ChangeCluster(asked) => match self.member() {
                Some(member) => member.order(self.route(head), asked),
                None => self.route(head).refuse(Refusal::NotServing { roles: Roles::LAYOUT }),
            },
            Request::GetDrives(_) | Request::ChangeDrives(_) => self.serve_drives(head, request),
            Request::Credit(Credit { credit_bytes }) => {
                if let Some(following) = self.following.get(&head.request) {
                    following.add_credit(credit_bytes);
                }
            }
            request => self.serve_unit(head, request),
        }
    }

    fn member(&self) -> Option<Rc<cluster::Inner>> {
        self.node.member.get().and_then(Weak::upgrade)
    }

    fn serve_acceptor(&self, head: Head, request: Request) {
        let route = self.route(head);
        let Some(layouts) = &self.node.layouts else {
            return route.refuse(Refusal::NotServing { roles: Roles::LAYOUT });
        };
        match request {
            // Only nodes take a cluster from one epoch to the next.
            Request::Prepare(_) if !self.is_of_node => refuse_client(&route, Kind::Prepare),
            Request::Accept(_) if !self.is_of_node => refuse_client(&route, Kind::Accept),
            Request::Learn(_) if !self.is_of_node => refuse_client(&route, Kind::Learn),
            // It has nothing to decide, and its register may be about to say which cluster it belongs to.
            Request::Prepare(_) | Request::Accept(_)
                if self.member().is_some_and(|member| !member.is_formed()) =>
            {
                route.refuse(Refusal::NotServing { roles: Roles::LAYOUT });
            }
            Request::Prepare(prepare) => layouts.prepare(route, prepare),
            Request::Accept(accept) => layouts.accept(route, &accept),
            Request::Learn(learn) => match self.member() {
                Some(member) => member.learn(route, learn),
                None => layouts.learn(route, &learn),
            },
            Request::Lease(lease) => layouts.lease(route, lease),
            _ => route.refuse(Refusal::Malformed { kind: 0 }),
        }
    }

    fn serve_drives(&self, head: Head, request: Request) {
        let route = self.route(head);
        match (self.node.drives.get(), request) {
            (Some(drives), Request::GetDrives(GetDrives)) => route.send(&drives.list()),
            (Some(drives), Request::ChangeDrives(asked)) => drives.change(&self.waits, route, asked),
            _ => route.refuse(Refusal::NotServing { roles: Roles::UNIT }),
        }
    }

    fn serve_unit(&mut self, head: Head, request: Request) {
        let Some(unit) = self.node.unit.get().cloned() else {
            return self.route(head).refuse(Refusal::NotServing { roles: Roles::UNIT });
        };
        match request {
            Request::Read(read) => unit.read(self.route(head), read),
            Request::ReadStream(read) => watch::read_stream(unit, &self.waits, self.route(head), read),
            Request::Fill(fill) => unit.fill(self.route(head), fill.ranges),
            Request::GetTrims(asked) => unit.trims(&self.route(head), asked.extent),
            Request::Trim(trim) => unit.trim(self.route(head), trim.ranges),
            Request::Subscribe(subscribe) => {
                self.following.retain(|_, following| following.is_open());
                if self.following.len() >= FOLLOWING_MAX {
                    let (pending, limit) = (self.following.len() as u64, FOLLOWING_MAX as u64);
                    return self.route(head).refuse(Refusal::Overloaded { pending, limit });
                }
                let following = follower::follow(&self.node.env, unit, &self.answers, head, subscribe);
                self.following.insert(head.request, following);
            }
            Request::Unsubscribe(_) => match self.following.remove(&head.request) {
                Some(following) => following.end(),
                None => self.route(head).refuse(Refusal::NoSubscription),
            },
            _ => self.route(head).refuse(Refusal::Malformed { kind: 0 }),
        }
    }

    fn seal(&self, head: Head, seal: Seal) {
        let route = self.route(head);
        let Some(unit) = self.node.unit.get() else {
            return route.refuse(Refusal::NotServing { roles: Roles::UNIT });
        };
        // What is refused ends nothing, the sequencer's epoch neither.
        if unit.check_told(seal.epoch).is_ok() {
            // A client that is mistaken would end the epoch at hand, and could take away what the next layout is made of.
            if !self.is_of_node {
                return refuse_client(&route, Kind::Seal);
            }
            self.node.stop_granting(seal.epoch);
        }
        unit.seal(route, seal);
    }

    fn grant(&self, head: Head, token: Token) {
        let route = self.route(head);
        let mut sequencer = self.node.sequencer.borrow_mut();
        match sequencer.as_mut() {
            None => route.refuse(Refusal::NotServing { roles: Roles::SEQUENCER }),
            Some(sequencer) => {
                let granted = sequencer.grant_groups(head.epoch, &token.groups);
                self.node.note_granted(&granted);
                match granted {
                    Ok(grant) => route.send(&grant),
                    Err(refusal) => route.refuse(refusal),
                }
            }
        }
    }

    fn check(&self, head: Head, check: &Check) {
        let route = self.route(head);
        let unit = self.node.unit.get();
        let extents = match unit.map(|unit| unit.bounds(head.epoch, &check.extents)) {
            Some(Err(refusal)) => return route.refuse(refusal),
            bounds => bounds.and_then(Result::ok).unwrap_or_default(),
        };
        match self.node.tails(head.epoch, &check.streams) {
            Some(Ok(tail)) => route.send(&Tail { extents, ..tail }),
            Some(Err(refusal)) => route.refuse(refusal),
            None => route.send(&Tail { tail: None, extents, streams: Vec::new() }),
        }
    }
}

/// What a request takes of a turn. What appends are made of is left out: it is little, and what a node is there for.
fn work_of(kind: u16) -> usize {
    let is = |of: Kind| kind == of as u16;
    if is(Kind::Write) || is(Kind::Append) || is(Kind::Token) || is(Kind::Credit) {
        0
    } else if is(Kind::Read) {
        2
    } else if is(Kind::ReadStream) {
        32
    } else {
        8
    }
}

/// Refuses to a client what only other nodes may ask for.
fn refuse_client(route: &ReplyRoute, kind: Kind) {
    route.refuse(Refusal::Malformed { kind: kind as u16 });
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
