//! Compares what the replicas of every position hold, when a run is over.
//!
//! * 20 chain order: a value at a replica is at every earlier one, unless it was trimmed there · 21 junk for all or data for all,
//!   replica by replica · a trim goes down the replicas in order too

use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::{CallError, Client, ClientError, Connection, Identity, Phase};
use ithaca_log::entry::EntryMeta;
use ithaca_log::layout::{Layout, Piece};
use ithaca_log::pos::{Addr, AddrRange, ClientId, LogPos, NodeId};
use ithaca_log::wire::{Read, Refusal, RunHead, RunState, Runs};

use super::history::History;

/// Times that the units are asked again after an error: a node may be on its way back.
const TRIES_MAX: u32 = 20;
/// The wait before they are.
const AGAIN: Duration = Duration::from_millis(50);
/// A unit answers within this.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a unit holds at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Unwritten,
    Junk,
    Trimmed,
    /// Refused as damaged.
    Damaged,
    /// Who appended it, as which request, and the length and checksum of the entry.
    Data(u64, u64, u32, u32),
}

/// Notes every position below `tail` whose replicas differ in a way that writing, filling and trimming them in order does not
/// explain.
pub async fn compare(env: &Env, client: &Client, history: &History, tail: LogPos) -> Result<(), ClientError> {
    for tried in 1.. {
        let layout = client.layout().await?;
        match compare_in(env, &layout, history, tail).await {
            Err(error) if tried >= TRIES_MAX => return Err(error),
            Err(_) => env.sleep(AGAIN).await,
            Ok(()) => break,
        }
    }
    Ok(())
}

async fn compare_in(env: &Env, layout: &Layout, history: &History, tail: LogPos) -> Result<(), ClientError> {
    for piece in layout.pieces(LogPos(0), tail) {
        if piece.replicas.len() == 1 {
            continue;
        }
        let mut later: Option<(NodeId, Vec<Held>)> = None;
        // The last one first: a trim on its way meanwhile has been at all before one that was seen to have it.
        for &node in piece.replicas.iter().rev() {
            let earlier = held(env, layout, node, piece.addrs, history.has_rot.get()).await?;
            let damaged = earlier.iter().filter(|&&held| held == Held::Damaged).count() as u64;
            history.lost_copies.set(history.lost_copies.get() + damaged);
            if let Some((after, later)) = &later {
                note_differences(history, &piece, (node, &earlier), (*after, later));
            }
            later = Some((node, earlier));
        }
    }
    Ok(())
}

fn note_differences(
    history: &History,
    piece: &Piece<'_>,
    (before, earlier): (NodeId, &[Held]),
    (node, later): (NodeId, &[Held]),
) {
    for ((addr, &first), &second) in piece.addrs.numbers().zip(earlier).zip(later) {
        let agrees = match (first, second) {
            (_, Held::Unwritten | Held::Damaged) | (Held::Trimmed | Held::Damaged, _) => true,
            (first, second) => first == second,
        };
        if !agrees {
            let pos = piece.position(Addr(addr));
            let what = format!(
                "rule 20 is broken: position {pos} is {second:?} on {node}, and {first:?} before it on {before}"
            );
            history.differences.borrow_mut().push(what);
        }
    }
}

/// What a unit holds at each of `addrs`. Where it has lost something, that is an error, unless there is `rot`.
async fn held(
    env: &Env,
    layout: &Layout,
    node: NodeId,
    addrs: AddrRange,
    rot: bool,
) -> Result<Vec<Held>, ClientError> {
    let connection = open(env, layout, node).await?;
    let (mut held, mut end) = (Vec::new(), addrs.end);
    while (held.len() as u64) < addrs.count() {
        let rest = AddrRange::new(Addr(addrs.start.0 + held.len() as u64), end);
        let read = Read { limit_bytes: 1 << 20, committed: false, ranges: vec![rest] };
        let answer = connection.call::<_, Runs>(env, layout.epoch, &read, env.now() + PATIENCE).await;
        let runs = match answer {
            Err(CallError::Refused(Refusal::Damaged { addr })) if rot && rest.numbers().contains(&addr.0) => {
                // What comes before it first.
                if addr == rest.start {
                    held.push(Held::Damaged);
                }
                end = if addr == rest.start { addrs.end } else { addr };
                continue;
            }
            answer => answer.map_err(|error| failed(layout, node, error))?.0,
        };
        end = addrs.end;
        for run in &runs.runs {
            (0..run.count).for_each(|nth| held.push(held_by(run, nth)));
        }
    }
    Ok(held)
}

/// A connection to a node of `layout`.
pub(super) async fn open(env: &Env, layout: &Layout, node: NodeId) -> Result<Connection, ClientError> {
    let addr = address(layout, node).ok_or(ClientError::NoEndpoint)?;
    let who = Identity { client: ClientId(0), node, cluster: layout.cluster };
    let deadline = env.now() + PATIENCE;
    Connection::open(env, addr, who, deadline).await.map_err(|error| failed(layout, node, error))
}

/// What a call of a node came to.
pub(super) fn failed(layout: &Layout, node: NodeId, error: CallError) -> ClientError {
    match address(layout, node) {
        Some(addr) => ClientError::Node { addr, epoch: layout.epoch, phase: Phase::Read, error },
        None => ClientError::NoEndpoint,
    }
}

fn address(layout: &Layout, node: NodeId) -> Option<SocketAddr> {
    layout.node(node).and_then(|node| node.address.parse().ok())
}

fn held_by(run: &RunHead, nth: u64) -> Held {
    match &run.state {
        RunState::Unwritten => Held::Unwritten,
        RunState::Junk { .. } => Held::Junk,
        RunState::Trimmed => Held::Trimmed,
        RunState::Data { meta, table, .. } => {
            let meta = EntryMeta::decode(meta).unwrap_or_default();
            let entry = table.get(nth as usize);
            let request = meta.request_at(Addr(run.addr.0 + nth));
            Held::Data(meta.client.0, request.0, entry.len, entry.checksum)
        }
    }
}
