//! The ways in which entries reach their replicas, all through one suite.
//!
//! Whole batches handed out by the sequencer's node, writes that the first replica's node hands on, and writes that the client
//! carries to one replica after the other; nodes that share a process, and nodes that reach each other over sockets.

use std::path::Path;

use ithaca_env::Env;
use ithaca_log::client::{Client, ClientOptions, EntryKind};
use ithaca_log::pos::LogPos;
use ithaca_log::server::{LocalCluster, LocalOptions};

use crate::worlds::{append, entry, read_all, replicated, restart, run};

/// Who carries entries to their replicas.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    /// The node of the sequencer.
    Forwarder,
    /// The nodes of the units, from the first replica on.
    Units,
    /// The client.
    Client,
}

#[derive(Clone, Copy, Debug)]
struct Mode {
    units: usize,
    replicas: usize,
    carrier: Carrier,
    sockets_between_nodes: bool,
}

impl Mode {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (units, replicas) in [(1, 1), (2, 2), (3, 2), (3, 3)] {
            for carrier in [Carrier::Forwarder, Carrier::Units, Carrier::Client] {
                for sockets_between_nodes in [false, true] {
                    all.push(Self { units, replicas, carrier, sockets_between_nodes });
                }
            }
        }
        all
    }

    fn options(self, dir: &Path) -> LocalOptions {
        let sockets_between_nodes = self.sockets_between_nodes;
        LocalOptions { sockets_between_nodes, ..replicated(dir, self.units, self.replicas) }
    }

    async fn connect(self, env: &Env, cluster: &LocalCluster) -> Client {
        let options = ClientOptions {
            endpoints: vec![cluster.addrs()[0]],
            forward_appends: matches!(self.carrier, Carrier::Forwarder),
            relay_writes: !matches!(self.carrier, Carrier::Client),
            ..ClientOptions::default()
        };
        Client::connect(env, options).await.expect("it serves")
    }

    async fn start(self, env: &Env, dir: &Path) -> (LocalCluster, Client) {
        let cluster = LocalCluster::start(env, self.options(dir)).await.expect("it starts");
        let client = self.connect(env, &cluster).await;
        (cluster, client)
    }
}

#[test]
fn entries_take_positions_in_the_order_of_the_calls_and_read_back_the_same() {
    for mode in Mode::all() {
        run(|env, dir| async move {
            let (_cluster, client) = mode.start(&env, dir.path()).await;
            let positions = append(&client, 0, 200).await;
            assert_eq!(positions, (0..200).map(LogPos).collect::<Vec<_>>(), "{mode:?}");
            let entries = read_all(&client, 0).await;
            assert_eq!(entries.len(), 200, "{mode:?}");
            assert!(entries.iter().all(|found| found.data == entry(found.pos.0)), "{mode:?}");
        });
    }
}

#[test]
fn two_clients_share_one_order() {
    for mode in Mode::all() {
        run(|env, dir| async move {
            let (cluster, first) = mode.start(&env, dir.path()).await;
            let second = mode.connect(&env, &cluster).await;
            let mut all = Vec::new();
            for round in 0..10 {
                let (one, two) = (first.append(entry(round)), second.append(entry(round + 1000)));
                all.extend([one.await.expect("appended"), two.await.expect("appended")]);
            }
            all.sort();
            assert_eq!(all, (0..20).map(LogPos).collect::<Vec<_>>(), "{mode:?}");
        });
    }
}

#[test]
fn an_entry_whose_position_went_to_junk_takes_another_and_the_rest_of_its_batch_stays() {
    for mode in Mode::all() {
        run(|env, dir| async move {
            let (_cluster, client) = mode.start(&env, dir.path()).await;
            assert_eq!(client.fill(LogPos(1)).await, Ok(EntryKind::Junk));
            assert_eq!(append(&client, 0, 3).await, [0, 3, 2].map(LogPos), "{mode:?}");
            let entries = read_all(&client, 0).await;
            assert_eq!((entries.len(), &entries[3].data), (4, &entry(1)), "{mode:?}");
        });
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_crash() {
    for mode in Mode::all() {
        run(|env, dir| async move {
            let (cluster, client) = mode.start(&env, dir.path()).await;
            append(&client, 0, 60).await;
            drop((client, cluster));
            let cluster = restart(&env, mode.options(dir.path())).await;
            let client = mode.connect(&env, &cluster).await;
            assert_eq!(append(&client, 60, 1).await, [LogPos(60)], "{mode:?}");
            let entries = read_all(&client, 0).await;
            assert!(entries.iter().all(|found| found.data == entry(found.pos.0)), "{mode:?}");
        });
    }
}

#[test]
fn a_follower_is_shown_what_was_there_and_what_comes_in_order() {
    for mode in Mode::all() {
        run(|env, dir| async move {
            let (cluster, client) = mode.start(&env, dir.path()).await;
            append(&client, 0, 40).await;
            let follower = mode.connect(&env, &cluster).await;
            let mut tailing = follower.tail_from(LogPos(10));
            append(&client, 40, 40).await;
            let mut next = 10;
            while next < 80 {
                for found in tailing.next().await.expect("it serves") {
                    assert_eq!((found.pos.0, found.data), (next, entry(next)), "{mode:?}");
                    next += 1;
                }
            }
        });
    }
}

#[test]
fn a_relayed_write_takes_one_round_trip_of_the_client_and_is_counted_by_each_unit() {
    run(|env, dir| async move {
        let mode = Mode { units: 3, replicas: 3, carrier: Carrier::Units, sockets_between_nodes: true };
        let (cluster, client) = mode.start(&env, dir.path()).await;
        append(&client, 0, 1).await;
        for status in cluster.status() {
            let counted =
                |name: &str| status.counters.iter().find(|(counter, _)| counter == name).map(|at| at.1);
            // Written once by each: the client has not written to the later ones after the first.
            assert_eq!((counted("writes"), counted("entries_written")), (Some(1), Some(1)), "{status:?}");
        }
    });
}
