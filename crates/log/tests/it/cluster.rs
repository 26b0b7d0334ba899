//! What a client sees of a healthy cluster.

use std::net::SocketAddr;
use std::time::Duration;

use ithaca_log::client::{Client, ClientOptions, EntryKind, Observer};
use ithaca_log::pos::LogPos;
use ithaca_log::server::{LocalCluster, LocalOptions};
use tempfile::TempDir;

use crate::worlds::{append, connect, entry, options, read_all, restart, run, start};

#[test]
fn entries_take_positions_in_the_order_of_the_calls_and_read_back_the_same() {
    for units in [1, 3] {
        run(|env, dir| async move {
            let (_cluster, client) = start(&env, &dir, units).await;
            let positions = append(&client, 0, 500).await;
            assert_eq!(positions, (0..500).map(LogPos).collect::<Vec<_>>());
            let entries = read_all(&client, 0).await;
            assert_eq!(entries.len(), 500);
            for (number, found) in entries.iter().enumerate() {
                assert_eq!((found.pos.0, found.kind), (number as u64, EntryKind::Data));
                assert_eq!(found.data, entry(number as u64), "{units} units, entry {number}");
            }
        });
    }
}

#[test]
fn two_clients_share_one_order() {
    run(|env, dir| async move {
        let (cluster, first) = start(&env, &dir, 2).await;
        let second = connect(&env, &cluster).await;
        let mut all = Vec::new();
        for round in 0..20 {
            let (one, two) = (first.append(entry(round)), second.append(entry(round + 1000)));
            all.extend([one.await.expect("appended"), two.await.expect("appended")]);
        }
        all.sort();
        assert_eq!(all, (0..40).map(LogPos).collect::<Vec<_>>());
    });
}

#[test]
fn single_positions_and_many_of_them_in_any_order_are_read() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 50).await;
        let wanted = [LogPos(49), LogPos(0), LogPos(7), LogPos(7)];
        let entries = client.read_many(&wanted).await.expect("written");
        for (pos, found) in wanted.iter().zip(&entries) {
            assert_eq!((found.pos, &found.data), (*pos, &entry(pos.0)));
        }
        assert_eq!(client.read(LogPos(3)).await.expect("written").data, entry(3));
    });
}

#[test]
fn a_follower_is_shown_what_was_there_and_what_comes_in_order() {
    for units in [1, 3] {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, &dir, units).await;
            append(&client, 0, 100).await;
            let follower = connect(&env, &cluster).await;
            let mut tailing = follower.tail_from(LogPos(10));
            let appender = env.spawn(async move {
                for batch in 1..5 {
                    append(&client, batch * 100, 100).await;
                }
                client
            });
            let mut next = 10;
            while next < 500 {
                for found in tailing.next().await.expect("it serves") {
                    assert_eq!((found.pos.0, found.data), (next, entry(next)), "{units} units");
                    next += 1;
                }
            }
            appender.join().await.expect("appended");
        });
    }
}

#[test]
fn trimmed_positions_stay_trimmed_and_the_rest_stays() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 30).await;
        client.trim(LogPos(20)).await.expect("trimmed");
        client.trim_prefix(LogPos(5)).await.expect("trimmed");
        let kinds: Vec<EntryKind> = read_all(&client, 0).await.iter().map(|entry| entry.kind).collect();
        let expected = |pos| if pos < 5 || pos == 20 { EntryKind::Trimmed } else { EntryKind::Data };
        assert_eq!(kinds, (0..30).map(expected).collect::<Vec<_>>());
        let bounds = client.check().await.expect("it serves");
        assert_eq!((bounds.first, bounds.tail), (LogPos(5), LogPos(30)));
    });
}

#[test]
fn every_node_says_what_it_does() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 10).await;
        let status = client.status().await.expect("a layout");
        assert_eq!(status.len(), 2);
        assert_eq!(status[0].1, cluster.addrs()[0]);
        let first = status[0].2.as_ref().expect("it answers");
        assert_eq!((first.tail, first.watermark.map(|addr| addr.0)), (Some(LogPos(10)), Some(5)));
    });
}

#[test]
fn a_unit_counts_what_it_stores_and_shows_whoever_took_the_append() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 10).await;
        read_all(&client, 0).await;
        for (node, _, answer) in client.status().await.expect("a layout") {
            let status = answer.expect("it answers");
            let counted = |name: &str| {
                status.counters.iter().find(|(counter, _)| counter == name).expect("it is counted").1
            };
            assert_eq!((counted("entries_written"), counted("entries_read")), (5, 5), "{node:?}");
            assert_eq!(counted("bytes_written"), counted("bytes_read"), "{node:?}");
            assert!(counted("writes") > 0 && counted("reads") > 0, "{node:?}");
        }
    });
}

#[test]
fn an_observer_needs_one_endpoint_that_answers_and_shows_the_others_fate() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 10).await;
        // It takes connections and says nothing.
        let silent = env.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let endpoints = vec![silent.local_addr(), cluster.addrs()[0]];
        let options = ClientOptions { endpoints, timeout: Duration::from_secs(3600), ..Default::default() };
        let mut observer = Observer::connect(&env, options).await.expect("one answers");
        let sight = observer.look().await;
        let tails: Vec<_> = sight.nodes.iter().map(|(_, _, answer)| answer.as_ref().ok()?.tail).collect();
        assert_eq!(tails, [Some(LogPos(10)), None]);
        drop((cluster, client));
        let sight = observer.look().await;
        assert!(sight.nodes.iter().all(|(_, _, answer)| answer.is_err()), "{sight:?}");
    });
}

#[test]
fn a_client_stays_with_the_cluster_that_it_found_first() {
    // What is appended would be split over two logs, and nobody would be told.
    run(|env, dir| async move {
        let other_dir = TempDir::new().expect("a directory");
        let mut clusters = Vec::new();
        for dir in [dir.path(), other_dir.path()] {
            clusters.push(LocalCluster::start(&env, options(dir, 1)).await.expect("it starts"));
        }
        let endpoints: Vec<SocketAddr> = clusters.iter().map(|cluster| cluster.addrs()[0]).collect();
        // At an endpoint of the other one nobody is when the client begins.
        let second = LocalOptions { listen: endpoints[1], ..options(other_dir.path(), 1) };
        clusters.pop().expect("there are two").stop().await;
        let timeout = Duration::from_secs(2);
        let connected =
            Client::connect(&env, ClientOptions { endpoints, timeout, ..ClientOptions::default() });
        let client = connected.await.expect("one serves");
        clusters.push(restart(&env, second).await);
        client.append(entry(0)).await.expect("appended");
        let found = client.layout().await.expect("known").cluster;
        let at = clusters.iter().position(|cluster| cluster.layout().cluster == found).expect("one of them");
        clusters.remove(at).stop().await;
        // The other one has gone further than what it was told.
        let alone = connect(&env, &clusters[0]).await;
        append(&alone, 100, 10).await;
        for number in 1..4 {
            client.append(entry(number)).await.expect_err("its cluster is gone");
        }
        assert_eq!(alone.check().await.expect("it serves").tail, LogPos(10), "nothing came there");
    });
}
