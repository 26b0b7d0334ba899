//! What a client does with a layout and with connections that a whole cluster brings about only at certain moments.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{ChainOptions, Table};
use ithaca_env::Env;
use ithaca_env::sim::Sim;

use super::connection::Identity;
use super::view::View;
use super::{Client, ClientError, ClientOptions, Connection, Lookup, Observer, Phase, StreamReader};
use crate::layout::Layout;
use crate::pos::{Addr, BatchNo, ClientId, ClusterId, Epoch, LogPos, NodeId, RequestNo, StreamId, StreamPos};
use crate::server::{ClusterNode, LocalCluster, LocalOptions, NodeOptions};
use crate::wire::{Appended, BatchHead, Head, Tail, WatchStream, encode_append_head};

const A: StreamId = StreamId(1000);

/// Of a cluster of one node that listens there.
fn options(listen: SocketAddr) -> LocalOptions {
    let defaults = LocalOptions::new(Path::new("data"), listen);
    let chain = ChainOptions { segment_bytes: 4 << 20, grow_bytes: 64 << 20, ..defaults.chain };
    LocalOptions { create_bytes: 64 << 20, chain, ..defaults }
}

/// Runs `test` with a simulated cluster of one node, and a client of it.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Env, LocalCluster, Client) -> F + 'static) {
    run_with(|_| {}, test);
}

/// The same with a cluster that is set up otherwise.
fn run_with<F: Future<Output = ()> + 'static>(
    change: impl FnOnce(&mut LocalOptions) + 'static,
    test: impl FnOnce(Env, LocalCluster, Client) -> F + 'static,
) {
    let sim = Sim::new(1);
    let process = sim.process("node", [127, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = options(([127, 0, 0, 1], 0).into());
        change(&mut options);
        let cluster = LocalCluster::start(&env, options).await.expect("it starts");
        let options = ClientOptions { endpoints: vec![cluster.addrs()[0]], ..ClientOptions::default() };
        let client = Client::connect(&env, options).await.expect("it serves");
        test(env, cluster, client).await;
    });
}

/// The layout with everything below `start` left out.
fn beginning_at(layout: &Layout, start: LogPos) -> Layout {
    let mut layout = layout.clone();
    let range = &mut layout.ranges[0];
    assert_eq!((range.start, range.stripes.len()), (LogPos(0), 1));
    range.start = start;
    range.stripes[0].base = Addr(range.stripes[0].base.0 + start.0);
    layout
}

#[test]
fn a_client_that_begins_to_append_while_others_do_is_not_refused_for_ever() {
    const REMEMBERED: u64 = 128;
    run_with(
        |options| options.grants.remembered_max = REMEMBERED as usize,
        |env, cluster, client| async move {
            let at = cluster.addrs()[0];
            let timeout = Duration::from_millis(50);
            let options = ClientOptions { endpoints: vec![at], timeout, ..ClientOptions::default() };
            let late = Client::connect(&env, options).await.expect("it serves");
            let deadline = env.now() + Duration::from_secs(20);
            let who = Identity { client: ClientId(7), node: NodeId(0), cluster: ClusterId::UNKNOWN };
            let others = Connection::open(&env, at, who, deadline).await.expect("it serves");
            let is_over = Rc::new(Cell::new(false));
            let (clock, until) = (env.clone(), Rc::clone(&is_over));
            let appending = env.spawn(async move {
                let mut answers = Vec::new();
                while !until.get() {
                    let number = answers.len() as u64;
                    let after = LogPos(number.saturating_sub(REMEMBERED / 2));
                    let (client, request) = (who.client, RequestNo(number));
                    let batch = BatchHead { client, number: BatchNo(number), request, after };
                    let entry = [Bytes::from_static(b"others'")];
                    let table: Vec<_> = Table::of_payloads(&entry).entries().collect();
                    let encode = |id, out: &mut _| {
                        encode_append_head(out, Head::new(id, Epoch(1)), &batch, table.into_iter(), &[]);
                    };
                    answers.push(others.call_with::<Appended>(&clock, encode, entry.into_iter(), deadline));
                    // Several are granted while an answer and the next question are on their way, which takes 50 us at least.
                    clock.sleep(Duration::from_micros(5)).await;
                }
            });
            while client.check().await.expect("it serves").tail < LogPos(3 * REMEMBERED) {}
            // It knows the log as it was at the beginning.
            let pos = late.append(Bytes::from_static(b"late")).await.expect("appended");
            is_over.set(true);
            appending.join().await.expect("it ends");
            assert_eq!(client.read(pos).await.expect("it is there").data, "late");
        },
    );
}

#[test]
fn an_endpoint_whose_address_is_not_found_holds_up_no_other() {
    // Names are looked up by a server that may not answer.
    run(|env, cluster, _| async move {
        let at = cluster.addrs()[0];
        let never = || -> Lookup { Box::pin(std::future::pending()) };
        let nowhere = || -> Lookup { Box::pin(async { Vec::new() }) };
        let late = || -> Lookup {
            let env = env.clone();
            Box::pin(async move {
                env.sleep(Duration::from_millis(50)).await;
                vec![at]
            })
        };
        let options = |endpoints| ClientOptions { endpoints, ..ClientOptions::default() };
        let at_once = Duration::from_millis(200);
        let known = || (vec![at], vec![never()]);
        let found = || (vec![], vec![never(), nowhere(), late()]);
        for way in [&known as &dyn Fn() -> (Vec<SocketAddr>, Vec<Lookup>), &found] {
            let (endpoints, lookups) = way();
            let client = Client::connect_by(&env, options(endpoints), lookups);
            let client = env.timeout(at_once, client).await.expect("nothing holds it up").expect("it serves");
            assert_eq!(client.endpoints(), [at]);
            let (endpoints, lookups) = way();
            let observer = Observer::connect_by(&env, options(endpoints), lookups);
            let observer = env.timeout(at_once, observer).await.expect("nothing holds it up");
            assert!(observer.is_ok());
        }
        cluster.stop().await;
    });
}

#[test]
fn a_client_of_which_no_endpoint_has_an_address_says_so_by_its_time() {
    run(|env, cluster, _| async move {
        let options = ClientOptions { endpoints: Vec::new(), ..ClientOptions::default() };
        let nowhere = || -> Vec<Lookup> { vec![Box::pin(async { Vec::new() })] };
        let never = || -> Vec<Lookup> { vec![Box::pin(std::future::pending())] };
        let client = Client::connect_by(&env, options.clone(), nowhere()).await;
        assert!(matches!(client.err(), Some(ClientError::NoEndpoint)));
        let client = Client::connect_by(&env, options.clone(), never()).await;
        assert!(matches!(client.err(), Some(ClientError::Slow { phase: Phase::Layout, .. })));
        for lookups in [nowhere(), never()] {
            let observer = Observer::connect_by(&env, options.clone(), lookups).await;
            assert!(matches!(observer.err(), Some(ClientError::NoEndpoint)));
        }
        cluster.stop().await;
    });
}

#[test]
fn what_lies_below_the_layout_is_trimmed_of_every_stream() {
    // Whoever reads on from below would take a stream with a gap for whole.
    run(|_, cluster, client| async move {
        for number in 0..6 {
            client.append_to(&[A], Bytes::from(vec![number; 10])).await.expect("appended");
        }
        client.trim_prefix(LogPos(4)).await.expect("trimmed");
        let layout = client.layout().await.expect("known");
        client.inner.view.replace(View::new(beginning_at(&layout, LogPos(4))));
        for (from, to, trimmed) in
            [(0, 6, Some(3)), (3, 5, Some(3)), (0, 2, Some(1)), (1, 4, Some(3)), (4, 6, None)]
        {
            let part = client.read_stream(A, LogPos(from)..LogPos(to), 1 << 20).await.expect("readable");
            let read: Vec<u64> = part.entries.iter().map(|entry| entry.pos.0).collect();
            let expected: Vec<u64> = (from.max(4)..to).collect();
            let found = (read, part.upto, part.trimmed);
            assert_eq!(found, (expected, LogPos(to), trimmed.map(LogPos)), "{from}..{to}");
        }
        let peek = client.peek_stream(A, LogPos(2), 1 << 20).await.expect("readable").expect("one stripe");
        assert_eq!((peek.entries.len(), peek.trimmed), (2, Some(LogPos(3))));
        cluster.stop().await;
    });
}

#[test]
fn a_part_of_a_stream_is_read_while_the_one_before_it_is_given_out() {
    // Reader and unit took turns.
    run(|env, cluster, client| async move {
        for number in 0..4 {
            client.append_to(&[A], Bytes::from(vec![number; 10])).await.expect("appended");
        }
        let mut reader = client.stream_reader(A, LogPos(0)).with_read_bytes(1);
        reader.sync().await.expect("it serves");
        let given = async |reader: &mut StreamReader| {
            reader.read_next().await.map(|entry| entry.map(|entry| entry.pos.0))
        };
        assert_eq!(given(&mut reader).await, Ok(Some(0)));
        env.sleep(Duration::from_secs(1)).await;
        let addr = cluster.addrs()[0];
        cluster.stop().await;
        assert_eq!(given(&mut reader).await, Ok(Some(1)), "it was here before the node ended");
        // That for which nobody answers is asked for again when somebody wants it.
        env.sleep(Duration::from_secs(60)).await;
        let cluster = LocalCluster::start(&env, options(addr)).await.expect("it starts");
        assert_eq!(given(&mut reader).await, Ok(Some(2)));
        assert_eq!(given(&mut reader).await, Ok(Some(3)));
        assert_eq!(given(&mut reader).await, Ok(None));
        cluster.stop().await;
    });
}

#[test]
fn a_connection_that_comes_late_takes_no_answers_away() {
    // A layout that was learned meanwhile brought another one, which is in use by then.
    run(|env, cluster, client| async move {
        let (inner, node) = (client.inner.clone(), cluster.layout().sequencer);
        let deadline = env.now() + Duration::from_secs(60);
        let who = Identity { client: ClientId(7), node: NodeId(0), cluster: ClusterId::UNKNOWN };
        let learned = Connection::open(&env, cluster.addrs()[0], who, deadline).await.expect("it serves");
        let view = inner.view().expect("known");
        inner.connections.borrow_mut().clear();
        let connecting = env.spawn({
            let inner = inner.clone();
            async move { inner.connection(&view, node, deadline).await.map(drop) }
        });
        env.yield_now().await;
        let watch = WatchStream { stream: A, next: StreamPos(0), wait_ms: 1000 };
        let answer = learned.call::<_, Tail>(&env, cluster.layout().epoch, &watch, deadline);
        assert!(inner.connections.borrow_mut().insert(node, learned).is_none(), "not connected yet");
        connecting.join().await.expect("it ends").expect("it serves");
        let (tail, _, _) = answer.await.expect("it is answered");
        assert_eq!(tail.tail, Some(LogPos(0)));
    });
}

#[test]
fn a_server_that_has_lost_everything_is_said_to_belong_to_no_cluster() {
    run(|env, cluster, client| async move {
        let at = ([127, 0, 0, 1], 0).into();
        let empty =
            NodeOptions { create_bytes: 64 << 20, ..NodeOptions::new(NodeId(2), Path::new("empty"), at) };
        let node = ClusterNode::start(&env, empty).await.expect("it starts");
        let learned = client.inner.learn_from(node.addr(), env.now() + Duration::from_secs(60)).await;
        assert_eq!(learned.err(), Some(ClientError::NoCluster { addr: node.addr() }));
        cluster.stop().await;
    });
}
