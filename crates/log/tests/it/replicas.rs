//! Several copies of each entry: what is on one replica only is completed, and everybody sees the same.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::Env;
use ithaca_log::client::{CallError, Client, ClientOptions, Connection, EntryKind, Identity};
use ithaca_log::entry::EntryMeta;
use ithaca_log::pos::{Addr, AddrRange, ClientId, ClusterId, Epoch, LogPos, NodeId, RequestNo};
use ithaca_log::server::{LocalCluster, StartError};
use ithaca_log::wire::{
    Fill, Filled, Head, Message, Read, RunState, Runs, Trim, Trimmed, Write, Written, encode_head,
};

use crate::worlds::{append, connect, entry, read_all, replicated, restart, run};

/// Numbers of units and copies.
const SHAPES: [(usize, usize); 4] = [(2, 2), (3, 2), (4, 2), (3, 3)];

async fn start(env: &Env, dir: &std::path::Path, units: usize, replicas: usize) -> (LocalCluster, Client) {
    let cluster = LocalCluster::start(env, replicated(dir, units, replicas)).await.expect("it starts");
    let client = connect(env, &cluster).await;
    (cluster, client)
}

/// A connection to one unit, as some other client.
async fn unit(env: &Env, cluster: &LocalCluster, node: NodeId) -> Connection {
    let who = Identity { client: ClientId(7), node, cluster: ClusterId::UNKNOWN };
    let deadline = env.now() + Duration::from_secs(20);
    let addr = cluster.addrs()[node.0 as usize - 1];
    Connection::open(env, addr, who, deadline).await.expect("it serves")
}

async fn call<M: Message, R: Message>(
    env: &Env,
    cluster: &LocalCluster,
    node: NodeId,
    request: &M,
) -> Result<R, CallError> {
    let connection = unit(env, cluster, node).await;
    let deadline = env.now() + Duration::from_secs(20);
    let answer = connection.call::<M, R>(env, cluster.layout().epoch, request, deadline).await;
    answer.map(|(reply, _, _)| reply)
}

/// Writes an entry at an address of one unit alone, as client 7.
async fn write_at(env: &Env, cluster: &LocalCluster, node: NodeId, addr: Addr, number: u64) -> Written {
    let data = entry(number);
    let meta = EntryMeta::new(ClientId(7), addr, RequestNo(number)).to_bytes();
    let write = Write { addr, meta, table: Table::of_payloads([&data]) };
    let (deadline, epoch) = (env.now() + Duration::from_secs(20), cluster.layout().epoch);
    let connection = unit(env, cluster, node).await;
    let encode = |id, out: &mut _| encode_head(out, Head::new(id, epoch), &write, data.len());
    let answer = connection.call_with::<Written>(env, encode, std::iter::once(data.clone()), deadline);
    answer.await.expect("it serves").0
}

/// What each replica of a position holds: in the order of the chain.
async fn held(env: &Env, cluster: &LocalCluster, pos: u64) -> Vec<RunState> {
    let location = cluster.layout().locate(LogPos(pos)).expect("it has a place");
    let mut held = Vec::new();
    for &node in location.replicas {
        let ranges = vec![AddrRange::new(location.addr, Addr(location.addr.0 + 1))];
        let runs: Runs = call(env, cluster, node, &Read { limit_bytes: 1 << 20, committed: false, ranges })
            .await
            .expect("it serves");
        held.push(runs.runs[0].state.clone());
    }
    held
}

/// A client that asks for positions and writes to the units itself.
async fn writer(env: &Env, cluster: &LocalCluster) -> Client {
    let endpoints = vec![cluster.addrs()[0]];
    let options =
        ClientOptions { endpoints, forward_appends: false, relay_writes: false, ..ClientOptions::default() };
    Client::connect(env, options).await.expect("it serves")
}

#[test]
fn every_replica_holds_every_entry_with_the_same_meta() {
    for (units, replicas) in SHAPES {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, dir.path(), units, replicas).await;
            append(&client, 0, 100).await;
            for pos in 0..100 {
                let held = held(&env, &cluster, pos).await;
                assert_eq!(held.len(), replicas);
                assert!(matches!(held[0], RunState::Data { .. }), "{pos}: {held:?}");
                assert!(held.iter().all(|state| *state == held[0]), "{pos}: {held:?}");
            }
            assert!(read_all(&client, 0).await.iter().all(|found| found.data == entry(found.pos.0)));
        });
    }
}

#[test]
fn what_the_first_replica_holds_is_copied_by_a_fill_and_a_hole_is_junk_on_all() {
    for (units, replicas) in SHAPES {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, dir.path(), units, replicas).await;
            client.tokens(2).await.expect("granted");
            append(&client, 2, 1).await;
            let (chain, addr) = {
                let location = cluster.layout().locate(LogPos(1)).expect("it has a place");
                (location.replicas.to_vec(), location.addr)
            };
            write_at(&env, &cluster, chain[0], addr, 1).await;
            assert_eq!(client.fill(LogPos(0)).await, Ok(EntryKind::Junk));
            assert_eq!(client.fill(LogPos(1)).await, Ok(EntryKind::Data));
            assert_eq!(client.read(LogPos(1)).await.expect("copied").data, entry(1));
            let junk = held(&env, &cluster, 0).await;
            assert!(junk.iter().all(|state| matches!(state, RunState::Junk { .. })), "{junk:?}");
            let data = held(&env, &cluster, 1).await;
            let RunState::Data { meta, .. } = &data[replicas - 1] else { panic!("{data:?}") };
            let meta = EntryMeta::decode(meta).expect("a meta");
            assert_eq!((meta.client, meta.request_at(addr)), (ClientId(7), RequestNo(1)));
            assert!(data.iter().all(|state| *state == data[0]), "{data:?}");
        });
    }
}

#[test]
fn range_readers_and_followers_complete_what_a_writer_left_on_the_first_replicas() {
    for (units, replicas) in SHAPES {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, dir.path(), units, replicas).await;
            client.tokens(6).await.expect("granted");
            append(&client, 6, 6).await;
            for pos in 0..6 {
                let location = cluster.layout().locate(LogPos(pos)).expect("it has a place");
                // The last two positions stay holes.
                for &node in &location.replicas[..if pos < 4 { 1 + pos as usize % (replicas - 1) } else { 0 }]
                {
                    write_at(&env, &cluster, node, location.addr, pos).await;
                }
            }
            let follower = connect(&env, &cluster).await;
            let (mut tailing, mut followed) = (follower.tail_from(LogPos(0)), Vec::new());
            while followed.len() < 12 {
                let entries = env.timeout(Duration::from_secs(20), tailing.next()).await.expect("it goes on");
                followed.extend(entries.expect("it serves"));
            }
            let read = read_all(&client, 0).await;
            assert_eq!(read, followed);
            for found in &read {
                let is_hole = (4..6).contains(&found.pos.0);
                let data = if is_hole { Bytes::new() } else { entry(found.pos.0) };
                assert_eq!((found.kind == EntryKind::Junk, &found.data), (is_hole, &data));
            }
        });
    }
}

#[test]
fn a_position_that_another_client_took_at_the_first_replica_is_left_alone_on_the_others() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, dir.path(), 2, 2).await;
        let writer = writer(&env, &cluster).await;
        let location = cluster.layout().locate(LogPos(1)).expect("it has a place");
        write_at(&env, &cluster, location.replicas[0], location.addr, 99).await;
        // Its second entry finds position 1 taken and takes another.
        assert_eq!(append(&writer, 0, 3).await, [0, 3, 2].map(LogPos));
        let both = held(&env, &cluster, 1).await;
        assert!(matches!(both[0], RunState::Data { .. }) && both[1] == RunState::Unwritten, "{both:?}");
        let read = read_all(&client, 0).await;
        assert_eq!(read[1].data, entry(99));
        assert_eq!(read[3].data, entry(1));
    });
}

#[test]
fn an_own_entry_that_a_fill_has_copied_already_counts_as_written() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, dir.path(), 2, 2).await;
        client.tokens(1).await.expect("granted");
        let location = cluster.layout().locate(LogPos(0)).expect("it has a place");
        let (chain, addr) = (location.replicas.to_vec(), location.addr);
        assert!(write_at(&env, &cluster, chain[0], addr, 5).await.taken.is_empty());
        assert_eq!(client.fill(LogPos(0)).await, Ok(EntryKind::Data));
        let late = write_at(&env, &cluster, chain[1], addr, 5).await;
        let own = matches!(
            late.taken[0].taken,
            ithaca_log::wire::Taken::Data { client: ClientId(7), request: RequestNo(5), .. }
        );
        assert!(own, "{late:?}");
    });
}

#[test]
fn a_trim_that_got_no_further_than_the_first_replica_is_completed_by_a_fill_or_a_trim() {
    for complete_by_fill in [true, false] {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, dir.path(), 3, 3).await;
            append(&client, 0, 6).await;
            let location = cluster.layout().locate(LogPos(2)).expect("it has a place");
            let ranges = vec![AddrRange::new(location.addr, Addr(location.addr.0 + 1))];
            let _: Trimmed =
                call(&env, &cluster, location.replicas[0], &Trim { ranges }).await.expect("it serves");
            assert_eq!(client.read(LogPos(2)).await.expect("not trimmed yet").data, entry(2));
            match complete_by_fill {
                true => assert_eq!(client.fill(LogPos(2)).await, Ok(EntryKind::Trimmed)),
                false => client.trim(LogPos(2)).await.expect("trimmed"),
            }
            assert_eq!(held(&env, &cluster, 2).await, vec![RunState::Trimmed; 3]);
            assert_eq!(client.read(LogPos(2)).await.map(|found| found.kind), Ok(EntryKind::Trimmed));
        });
    }
}

#[test]
fn a_trim_of_what_only_the_first_replica_holds_leaves_no_hole() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, dir.path(), 2, 2).await;
        client.tokens(2).await.expect("granted");
        let location = cluster.layout().locate(LogPos(0)).expect("it has a place");
        write_at(&env, &cluster, location.replicas[0], location.addr, 0).await;
        client.trim_prefix(LogPos(2)).await.expect("trimmed");
        for pos in 0..2 {
            assert_eq!(held(&env, &cluster, pos).await, vec![RunState::Trimmed; 2], "{pos}");
        }
        assert_eq!(client.check().await.expect("it serves").first, LogPos(2));
        assert_eq!(append(&client, 2, 1).await, [LogPos(2)]);
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_and_what_was_half_written_is_resolved() {
    for (units, replicas) in SHAPES {
        run(|env, dir| async move {
            let options = replicated(dir.path(), units, replicas);
            let (cluster, client) = start(&env, dir.path(), units, replicas).await;
            append(&client, 0, 50).await;
            client.tokens(1).await.expect("granted");
            let location = cluster.layout().locate(LogPos(50)).expect("it has a place");
            write_at(&env, &cluster, location.replicas[0], location.addr, 50).await;
            drop((client, cluster));
            let cluster = restart(&env, options).await;
            assert_eq!((cluster.layout().epoch, cluster.layout().tail()), (Epoch(2), LogPos(51)));
            let client = connect(&env, &cluster).await;
            let read = read_all(&client, 0).await;
            assert_eq!(read.len(), 51);
            assert!(read.iter().all(|found| found.data == entry(found.pos.0)));
            assert_eq!(append(&client, 51, 1).await, [LogPos(51)]);
        });
    }
}

#[test]
fn a_fill_of_one_replica_alone_does_not_show_before_the_last_has_it() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, dir.path(), 2, 2).await;
        client.tokens(1).await.expect("granted");
        let location = cluster.layout().locate(LogPos(0)).expect("it has a place");
        let ranges = vec![AddrRange::new(location.addr, Addr(location.addr.0 + 1))];
        let filled: Filled =
            call(&env, &cluster, location.replicas[0], &Fill { ranges }).await.expect("it serves");
        assert!(filled.taken.is_empty());
        assert!(client.read(LogPos(0)).await.is_err());
        assert_eq!(client.fill(LogPos(0)).await, Ok(EntryKind::Junk));
        let junk = held(&env, &cluster, 0).await;
        assert!(junk.iter().all(|state| matches!(state, RunState::Junk { .. })), "{junk:?}");
    });
}

#[test]
fn more_copies_than_units_or_another_number_than_before_are_refused() {
    run(|env, dir| async move {
        for (units, replicas) in [(1, 2), (2, 3), (1, 0), (9, 9)] {
            let refused = LocalCluster::start(&env, replicated(dir.path(), units, replicas)).await.err();
            assert!(matches!(refused, Some(StartError::Replicas { .. })), "{refused:?}");
        }
        drop(LocalCluster::start(&env, replicated(dir.path(), 2, 2)).await.expect("it starts"));
        let deadline = env.now() + Duration::from_secs(20);
        loop {
            match LocalCluster::start(&env, replicated(dir.path(), 2, 1)).await.err() {
                Some(StartError::ReplicasChanged { found: 2, asked: 1 }) => break,
                other => assert!(env.now() < deadline, "{other:?}"),
            }
        }
    });
}
