//! What is there after the cluster stopped, in order or not.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::Sim;
use ithaca_log::client::{Client, ClientError, ClientOptions, Connection, EntryKind, Identity, StreamReader};
use ithaca_log::pos::{ClientId, ClusterId, Epoch, LogPos, NodeId, StreamId};
use ithaca_log::server::{LocalCluster, LocalOptions};
use ithaca_log::wire::{Grant, Token, TokenGroup};

use crate::worlds::{append, connect, entry, options, read_all, restart, run, start};

#[test]
fn a_restart_keeps_entries_junk_and_trims_and_goes_on_in_a_new_epoch() {
    for (units, orderly) in [(1, true), (1, false), (2, true), (2, false)] {
        run(|env, dir| async move {
            let (cluster, client) = start(&env, &dir, units).await;
            append(&client, 0, 400).await;
            client.fill(LogPos(400)).await.expect("filled");
            client.trim_prefix(LogPos(50)).await.expect("trimmed");
            client.trim(LogPos(300)).await.expect("trimmed");
            drop(client);
            if orderly {
                cluster.stop().await
            } else {
                drop(cluster)
            }
            let cluster = restart(&env, options(dir.path(), units)).await;
            let client = connect(&env, &cluster).await;
            assert_eq!(cluster.layout().epoch, Epoch(2));
            assert_eq!(cluster.layout().tail(), LogPos(401), "{units} units, orderly {orderly}");
            let entries = read_all(&client, 0).await;
            for found in &entries {
                let pos = found.pos.0;
                let expected = match pos {
                    0..50 | 300 => EntryKind::Trimmed,
                    400 => EntryKind::Junk,
                    _ => EntryKind::Data,
                };
                assert_eq!(found.kind, expected, "position {pos}");
                assert!(expected != EntryKind::Data || found.data == entry(pos), "position {pos}");
            }
            assert_eq!(entries.len(), 401);
            assert_eq!(append(&client, 401, 1).await, [LogPos(401)]);
        });
    }
}

#[test]
fn a_client_that_outlives_the_cluster_goes_on_with_the_next_one() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        let addr = cluster.addrs()[0];
        append(&client, 0, 5).await;
        drop(cluster);
        let pending = client.append(entry(5));
        let mut again = options(dir.path(), 1);
        again.listen = addr;
        let _cluster = restart(&env, again).await;
        assert_eq!(pending.await, Ok(LogPos(5)));
        assert_eq!(read_all(&client, 0).await.len(), 6);
    });
}

#[test]
fn a_client_of_one_epoch_goes_on_in_no_other() {
    // What it was to say held in that epoch only: a chunk of a checkpoint, which is of positions that the next one grants again.
    for forward_appends in [true, false] {
        run(|env, dir| async move {
            let (cluster, other) = start(&env, &dir, 1).await;
            let addr = cluster.addrs()[0];
            let (endpoints, timeout) = (vec![addr], std::time::Duration::from_secs(1));
            let defaults = ClientOptions::default();
            let options =
                ClientOptions { endpoints, timeout, forward_appends, only_epoch: Some(Epoch(1)), ..defaults };
            let client = Client::connect(&env, options).await.expect("it serves");
            assert_eq!(client.append(entry(0)).await, Ok(LogPos(0)));
            drop(cluster);
            let pending = client.append(entry(1));
            let mut again = self::options(dir.path(), 1);
            again.listen = addr;
            let _cluster = restart(&env, again).await;
            assert!(pending.await.is_err(), "forwarded: {forward_appends}");
            assert!(client.append(entry(2)).await.is_err(), "forwarded: {forward_appends}");
            assert_eq!(read_all(&other, 0).await.len(), 1);
        });
    }
}

#[test]
fn an_append_that_may_not_be_repeated_says_what_is_known() {
    run(|env, dir| async move {
        let (cluster, _) = start(&env, &dir, 1).await;
        let endpoints = vec![cluster.addrs()[0]];
        let timeout = std::time::Duration::from_millis(300);
        let options = ClientOptions { endpoints, timeout, retry_appends: false, ..ClientOptions::default() };
        let client = Client::connect(&env, options).await.expect("it serves");
        client.append(Bytes::from("first")).await.expect("appended");
        drop(cluster);
        let lost = client.append(Bytes::from("second")).await;
        let unavailable = matches!(
            lost,
            Err(ClientError::TimedOut { .. }
                | ClientError::Slow { .. }
                | ClientError::Node { .. }
                | ClientError::OutcomeUnknown { .. }
                | ClientError::OutcomeUnknownAfter { .. })
        );
        assert!(unavailable, "{lost:?}");
    });
}

#[test]
fn appends_keep_their_order_across_a_restart_of_the_cluster() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 3).await;
        let addr = cluster.addrs()[0];
        let mut pending: Vec<_> = (0..40).map(|number| client.append(entry(number))).collect();
        env.yield_now().await;
        drop(cluster);
        // Each of these is a batch of its own, and every batch has to ask again.
        for number in 40..60 {
            pending.push(client.append(entry(number)));
            env.yield_now().await;
        }
        let mut again = options(dir.path(), 3);
        again.listen = addr;
        let _cluster = restart(&env, again).await;
        let mut positions = Vec::new();
        for append in pending {
            positions.push(append.await.expect("appended"));
        }
        // What was under way when the cluster stopped may have had to take another position; the rest is in order.
        assert!(positions[40..].is_sorted(), "{positions:?}");
        let entries = read_all(&client, 0).await;
        for (number, pos) in positions.iter().enumerate() {
            assert_eq!(entries[pos.0 as usize].data, entry(number as u64));
        }
    });
}

#[test]
fn a_follower_goes_on_with_the_cluster_that_is_started_again_elsewhere() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 3).await;
        let addr = cluster.addrs()[0];
        let follower = connect(&env, &cluster).await;
        append(&client, 0, 30).await;
        let mut tailing = follower.tail_from(LogPos(0));
        let mut next = tailing.next().await.expect("it serves").len() as u64;
        drop((cluster, client));
        // Only the first node listens where it did: what the follower knew of the others is of no use.
        let mut again = options(dir.path(), 3);
        again.listen = addr;
        let cluster = restart(&env, again).await;
        append(&connect(&env, &cluster).await, 30, 30).await;
        while next < 60 {
            for found in tailing.next().await.expect("it serves again") {
                assert_eq!((found.pos, &found.data), (LogPos(next), &entry(next)));
                next += 1;
            }
        }
    });
}

#[test]
fn what_was_granted_in_an_epoch_before_is_no_hole_in_the_next_one() {
    // Whoever takes it for one makes junk of positions that nobody was granted, and of the appends that are granted them later.
    let sim = Sim::new(1);
    let process = sim.process("node", [127, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = options(Path::new("data"), 1);
        let mut cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
        options.listen = cluster.addrs()[0];
        let (hole_wait, timeout) = (Duration::from_secs(60), Duration::from_secs(600));
        let endpoints = vec![options.listen];
        let client = ClientOptions { endpoints, hole_wait, timeout, ..ClientOptions::default() };
        let client = Client::connect(&env, client).await.expect("it serves");
        append(&client, 0, 3).await;
        let (from, to, stream) = (LogPos(3), LogPos(8), StreamId(1000));
        for waits in [false, true] {
            client.tokens(5).await.expect("granted");
            assert_eq!(client.check().await.expect("it serves").tail, to);
            let read = async |client: &Client| {
                let entries = client.read_range(from, to).await.expect("readable");
                let part = client.read_stream(stream, from..to, 1 << 20).await.expect("readable");
                let last = client.last_before(stream, to).await.expect("readable");
                (entries, part.upto, last)
            };
            // Who waits for a hole when the epoch ends has been told of it in good faith.
            let early = client.clone();
            let reading = waits.then(|| env.spawn(async move { early.read_range(from, to).await }));
            env.sleep(Duration::from_secs(1)).await;
            cluster.stop().await;
            cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
            assert_eq!(client.layout().await.expect("it serves").tail(), from);
            if let Some(reading) = reading {
                assert_eq!(reading.join().await, Some(Ok(Vec::new())));
            }
            assert_eq!(read(&client).await, (Vec::new(), from, None), "it waits: {waits}");
        }
        assert_eq!(append(&client, 3, 1).await, [from]);
    });
}

#[test]
fn a_trim_that_outlives_its_epoch_trims_nothing_that_the_next_one_grants() {
    let sim = Sim::new(1);
    let process = sim.process("node", [127, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = options(Path::new("data"), 1);
        let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
        options.listen = cluster.addrs()[0];
        let early = connect(&env, &cluster).await;
        append(&early, 0, 3).await;
        early.tokens(5).await.expect("granted");
        assert_eq!(early.check().await.expect("it serves").tail, LogPos(8));
        cluster.stop().await;
        let cluster = LocalCluster::start(&env, options).await.expect("it starts");
        let late = connect(&env, &cluster).await;
        append(&late, 3, 10).await;
        let trimmed = early.trim_range(LogPos(0)..LogPos(8)).await;
        assert_eq!(trimmed, Err(ClientError::Unwritten { pos: LogPos(3) }));
        let kinds: Vec<_> = read_all(&late, 0).await.iter().map(|found| found.kind).collect();
        assert_eq!(kinds, [EntryKind::Data; 13]);
    });
}

/// A node in simulated time whose epoch can be ended, and a client that waits long for what was granted.
struct Alone {
    env: Env,
    options: LocalOptions,
    cluster: LocalCluster,
    client: Client,
}

const A: StreamId = StreamId(1000);

impl Alone {
    fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Self) -> F + 'static) {
        let sim = Sim::new(1);
        let process = sim.process("node", [127, 0, 0, 1].into());
        let env = sim.env(process);
        sim.block_on(process, async move {
            let mut options = options(Path::new("data"), 1);
            let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
            options.listen = cluster.addrs()[0];
            let (hole_wait, timeout) = (Duration::from_secs(60), Duration::from_secs(600));
            let endpoints = vec![options.listen];
            let client = ClientOptions { endpoints, hole_wait, timeout, ..ClientOptions::default() };
            let client = Client::connect(&env, client).await.expect("it serves");
            test(Self { env, options, cluster, client }).await;
        });
    }

    /// Takes a position in `stream` behind so many others, and writes nothing at any of them.
    async fn granted(&self, stream: StreamId, behind: u32) -> LogPos {
        self.client.tokens(behind).await.expect("granted");
        let deadline = self.env.now() + Duration::from_secs(60);
        let who = Identity { client: ClientId(7), node: NodeId(0), cluster: ClusterId::UNKNOWN };
        let node = Connection::open(&self.env, self.options.listen, who, deadline).await.expect("it serves");
        let token =
            Token { groups: vec![TokenGroup { count: 1, streams: [stream].into(), condition: None }] };
        let grant = node.call::<_, Grant>(&self.env, self.cluster.layout().epoch, &token, deadline);
        grant.await.expect("granted").0.first
    }

    /// Ends the epoch, once everybody who is about to wait does so. Where the next one begins.
    async fn next_epoch(self) -> (Self, LogPos) {
        self.env.sleep(Duration::from_secs(1)).await;
        self.cluster.stop().await;
        let cluster = LocalCluster::start(&self.env, self.options.clone()).await.expect("it starts");
        let tail = self.client.layout().await.expect("it serves").tail();
        (Self { cluster, ..self }, tail)
    }

    /// What `reader` gives, in much less time than `hole_wait`.
    async fn drain(&self, reader: &mut StreamReader) -> Vec<LogPos> {
        let mut positions = Vec::new();
        let reading = async {
            while let Some(entry) = reader.read_next().await.expect("readable") {
                positions.push(entry.pos);
            }
        };
        self.env.timeout(Duration::from_secs(10), reading).await.expect("it comes to an end");
        positions
    }

    /// Appends an entry to [`A`], which gets this position: the reader gives it, and no other.
    async fn gives_what_comes(&self, reader: &mut StreamReader, number: u64, pos: LogPos) {
        let placed = self.client.append_to(&[A], entry(number)).await.expect("appended");
        assert_eq!(placed.pos, pos);
        reader.sync().await.expect("it serves");
        assert_eq!(self.drain(reader).await, [pos]);
    }
}

#[test]
fn a_reader_of_a_stream_gives_up_an_end_that_the_next_epoch_takes_back() {
    // Else it asks again and again for what is not there, or passes what the next sequencer grants below that end.
    Alone::run(|mut world| async move {
        let client = world.client.clone();
        let mut reader = client.stream_reader(A, LogPos(0));
        for number in 0..3 {
            client.append_to(&[A], entry(number)).await.expect("appended");
        }
        let end = world.granted(A, 4).await;
        assert_eq!(reader.sync().await.expect("it serves").last, Some(end));
        let tail;
        (world, tail) = world.next_epoch().await;
        assert_eq!((tail, end), (LogPos(3), LogPos(7)));
        assert_eq!(world.drain(&mut reader).await, [0, 1, 2].map(LogPos));
        assert_eq!(reader.position(), tail);
        world.gives_what_comes(&mut reader, 3, tail).await;
    });
}

#[test]
fn a_reader_of_a_rare_stream_gives_up_an_end_that_the_next_epoch_takes_back() {
    Alone::run(|mut world| async move {
        let client = world.client.clone();
        append(&client, 0, 1500).await;
        client.append_to(&[A], entry(0)).await.expect("appended");
        let mut reader = client.stream_reader(A, LogPos(0));
        reader.sync().await.expect("it serves");
        assert_eq!(world.drain(&mut reader).await, [LogPos(1500)]);
        let end = world.granted(A, 1100).await;
        let syncing = world.env.spawn(async move {
            let last = reader.sync().await.expect("it serves").last;
            (reader, last)
        });
        let tail;
        (world, tail) = world.next_epoch().await;
        let (mut reader, last) = syncing.join().await.expect("it ends");
        assert_eq!((tail, last), (LogPos(1501), Some(end)));
        world.gives_what_comes(&mut reader, 1, tail).await;
    });
}

#[test]
fn the_names_of_streams_end_where_the_next_epoch_begins() {
    Alone::run(|mut world| async move {
        let client = world.client.clone();
        client.stream("one").await.expect("named");
        world.granted(StreamId::NAMES, 4).await;
        let names = world.env.spawn(async move { client.stream_names().await });
        (world, _) = world.next_epoch().await;
        let names = world.env.timeout(Duration::from_secs(65), names.join()).await.expect("it ends");
        assert_eq!(names, Some(Ok(vec!["one".to_owned()])));
    });
}

#[test]
fn a_new_stream_is_named_though_the_sequencer_has_found_trimmed_what_it_does_not_know() {
    Alone::run(|mut world| async move {
        let client = world.client.clone();
        append(&client, 0, 5).await;
        client.trim_prefix(LogPos(3)).await.expect("trimmed");
        (world, _) = world.next_epoch().await;
        let stream = client.stream("new").await.expect("named");
        let tails = client.stream_tails(&[StreamId::of_name("other")]).await.expect("it serves");
        assert_ne!(tails.streams[0].bound(), None, "of any stream something may be trimmed");
        assert_eq!(client.stream_names().await, Ok(vec!["new".to_owned()]));
        client.append_to(&[stream], entry(0)).await.expect("appended");
        assert_eq!(client.stream("new").await, Ok(stream));
        let tail = client.check().await.expect("it serves").tail;
        assert_eq!(tail, LogPos(7), "it is named once");
        drop(world);
    });
}
