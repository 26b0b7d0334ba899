//! Witnesses: clients that append, read and ask for the tail, one thing after the other, and note when each call began and
//! ended, so that their history can be judged as that of one log; and a follower.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ithaca_env::Env;
use ithaca_env::sim::Random;
use ithaca_log::client::{Client, ClientError, Entry, EntryKind};
use ithaca_log::pos::LogPos;

use super::super::acks::Acks;
use super::super::entry::{Content, Name};
use super::super::ledger::Ledger;
use super::super::load::must_have_ended;
use crate::sim::history::{Checked, Fate, History, Moment, Seen};
use crate::sim::value::Value;

/// The number of the first witness among the workers of the ledger.
const FIRST: u32 = 1 << 30;
/// Bytes of their entries.
const ENTRY_BYTES: u32 = 128;
/// A follower that lost the cluster begins again after this.
const AGAIN: Duration = Duration::from_millis(50);

/// What all witnesses of a cluster share.
pub struct Shared {
    /// The environment.
    pub env: Env,
    /// What is known of every position.
    pub ledger: Rc<RefCell<Ledger>>,
    /// What they did and saw.
    pub history: History,
    /// When their appends were acknowledged.
    pub acks: Acks,
    /// The longest rest between two calls, in microseconds.
    pub rest_us: u64,
    /// Whether they are to end.
    pub stopped: Cell<bool>,
}

/// Witness number `nth`, until it is to stop.
pub async fn attest(shared: Rc<Shared>, client: Client, nth: u32, mut random: Random) {
    let worker = FIRST + nth;
    let mut number = 0;
    while !shared.stopped.get() {
        match random.below(20) {
            0..12 => {
                append(&shared, &client, Name { worker, len: ENTRY_BYTES, number }).await;
                number += 1;
            }
            12..18 => {
                // Mostly at the end, where things are decided.
                let end = shared.history.known_end();
                let pos = match random.below(3) {
                    0 => random.below(end + 1),
                    _ => (end + random.below(4)).saturating_sub(random.below(6)),
                };
                read(&shared, &client, pos).await;
            }
            _ => check(&shared, &client).await,
        }
        shared.env.sleep(Duration::from_micros(random.below(shared.rest_us))).await;
    }
}

async fn append(shared: &Shared, client: &Client, name: Name) {
    shared.ledger.borrow_mut().sending(name);
    let (start, begun) = (shared.history.now(), Instant::now());
    let result = client.append(name.bytes()).await;
    must_have_ended(&mut shared.ledger.borrow_mut(), "an append", begun);
    shared.ledger.borrow_mut().settled(name, &result);
    shared.history.appended(value_of(name), start, Fate::of(&result));
    if result.is_ok() {
        shared.acks.acked(begun);
    }
}

async fn read(shared: &Shared, client: &Client, pos: u64) {
    let was_trimmed = shared.ledger.borrow().is_trimmed(pos);
    let (start, begun) = (shared.history.now(), Instant::now());
    let result = client.read(LogPos(pos)).await;
    must_have_ended(&mut shared.ledger.borrow_mut(), "a read", begun);
    match result {
        Ok(entry) => {
            shared.ledger.borrow_mut().observed(pos, entry.kind, &entry.data, was_trimmed);
            note(&shared.history, &entry, start);
        }
        Err(ClientError::Unwritten { pos }) => shared.history.saw(pos.0, Seen::Unwritten, start),
        Err(ClientError::Damaged { pos }) => shared.history.saw(pos.0, Seen::Damaged, start),
        Err(_) => {}
    }
}

async fn check(shared: &Shared, client: &Client) {
    let (start, begun) = (shared.history.now(), Instant::now());
    let result = client.check().await;
    must_have_ended(&mut shared.ledger.borrow_mut(), "a check", begun);
    if let Ok(bounds) = result {
        let end = shared.history.now();
        let check = Checked { tail: bounds.tail.0, first: bounds.first.0, start, end };
        shared.history.checks.borrow_mut().push(check);
    }
}

/// Follows the log from its beginning on, until it is dropped. What it is pushed was read at some time since the beginning.
pub async fn follow(shared: Rc<Shared>, client: Client) {
    let mut tailing = client.tail_from(LogPos(0));
    let start = shared.history.now();
    loop {
        let next = tailing.position().0;
        match tailing.next().await {
            Ok(entries) => {
                for (pos, entry) in (next..).zip(&entries) {
                    if entry.pos.0 != pos {
                        let what = format!("a follower was given {} in the place of {pos}", entry.pos);
                        shared.history.wrong.borrow_mut().push(what);
                    }
                    // What was trimmed meanwhile may have been under way.
                    shared.ledger.borrow_mut().observed(entry.pos.0, entry.kind, &entry.data, false);
                    note(&shared.history, entry, start);
                }
            }
            Err(_) => shared.env.sleep(AGAIN).await,
        }
    }
}

fn note(history: &History, entry: &Entry, start: Moment) {
    let seen = match entry.kind {
        EntryKind::Junk => Seen::Junk,
        EntryKind::Trimmed => Seen::Trimmed,
        EntryKind::Data => match Content::of(&entry.data) {
            Some(Content::Named(name)) => Seen::Data(value_of(name)),
            // One too short for a name; or nobody's, which the ledger tells.
            _ => Seen::SomeData,
        },
    };
    history.saw(entry.pos.0, seen, start);
}

fn value_of(name: Name) -> Value {
    Value { client: name.worker, number: name.number as u32 }
}
