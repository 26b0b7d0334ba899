//! Batches that go whole to the sequencer.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::Env;
use ithaca_log::client::{CallError, Client, ClientOptions, Connection, EntryKind, Identity};
use ithaca_log::pos::{BatchNo, ClientId, ClusterId, Epoch, LogPos, NodeId, RequestNo};
use ithaca_log::server::LocalCluster;
use ithaca_log::wire::{Appended, BatchHead, Head, Refusal, encode_append_head};

use crate::worlds::{append, connect, entry, options, read_all, run, start};

/// Sends a batch of two entries, whose number is that of the first, as another client than [`connect`]'s.
async fn send(env: &Env, cluster: &LocalCluster, number: u64, after: u64) -> Result<Appended, CallError> {
    let deadline = env.now() + Duration::from_secs(20);
    let who = Identity { client: ClientId(7), node: NodeId(0), cluster: ClusterId::UNKNOWN };
    let connection = Connection::open(env, cluster.addrs()[0], who, deadline).await?;
    let entries: Vec<Bytes> = (number..number + 2).map(entry).collect();
    let table = Table::of_payloads(&entries);
    let batch = BatchHead {
        client: who.client,
        number: BatchNo(number),
        request: RequestNo(number),
        after: LogPos(after),
    };
    let tables: Vec<_> = table.entries().collect();
    let encode =
        |id, out: &mut _| encode_append_head(out, Head::new(id, Epoch(1)), &batch, tables.into_iter(), &[]);
    let answer = connection.call_with::<Appended>(env, encode, entries.into_iter(), deadline);
    answer.await.map(|(appended, _, _)| appended)
}

#[test]
fn a_batch_that_is_sent_twice_is_appended_once() {
    for units in [1, 3] {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, &dir, units).await;
            let first = send(&env, &cluster, 0, 0).await;
            assert_eq!(first, Ok(Appended { first: LogPos(0), count: 2, written: true, groups: vec![] }));
            append(&client, 2, 3).await;
            let again = send(&env, &cluster, 0, 0).await;
            assert_eq!(again, Ok(Appended { first: LogPos(0), count: 2, written: false, groups: vec![] }));
            let entries = read_all(&client, 0).await;
            assert_eq!(entries.len(), 5, "{units} units");
            assert!(entries.iter().all(|found| found.data == entry(found.pos.0)));
        });
    }
}

#[test]
fn a_batch_that_may_be_forgotten_is_refused_and_an_idle_client_learns_the_tail() {
    run(|env, dir| async move {
        let mut forgetful = options(dir.path(), 1);
        forgetful.grants.remembered_max = 1;
        let cluster = LocalCluster::start(&env, forgetful).await.expect("it starts");
        let idle = connect(&env, &cluster).await;
        send(&env, &cluster, 0, 0).await.expect("appended");
        send(&env, &cluster, 2, 2).await.expect("appended");
        let late = send(&env, &cluster, 0, 0).await;
        assert_eq!(late, Err(CallError::Refused(Refusal::Forgotten { from: LogPos(2) })));
        assert_eq!(append(&idle, 4, 1).await, [LogPos(4)]);
        assert_eq!(read_all(&idle, 0).await.len(), 5);
    });
}

#[test]
fn an_entry_whose_position_went_to_junk_takes_another_and_the_rest_of_its_batch_stays() {
    for units in [1, 2] {
        run(|env, dir| async move {
            let (_cluster, client) = start(&env, &dir, units).await;
            assert_eq!(client.fill(LogPos(1)).await, Ok(EntryKind::Junk));
            assert_eq!(append(&client, 0, 3).await, [0, 3, 2].map(LogPos), "{units} units");
            let entries = read_all(&client, 0).await;
            assert_eq!((entries.len(), &entries[3].data), (4, &entry(1)));
        });
    }
}

#[test]
fn batches_and_tokens_share_one_order() {
    run(|env, dir| async move {
        let (cluster, whole) = start(&env, &dir, 2).await;
        let endpoints = vec![cluster.addrs()[0]];
        let options = ClientOptions { endpoints, forward_appends: false, ..ClientOptions::default() };
        let tokens = Client::connect(&env, options).await.expect("it serves");
        for round in 0..20 {
            let client = if round % 2 == 0 { &whole } else { &tokens };
            let expected: Vec<_> = (round * 5..round * 5 + 5).map(LogPos).collect();
            assert_eq!(append(client, round * 5, 5).await, expected);
        }
        let entries = read_all(&whole, 0).await;
        assert!(entries.iter().all(|found| found.data == entry(found.pos.0)));
    });
}
