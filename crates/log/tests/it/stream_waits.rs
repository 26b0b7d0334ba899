//! Following a stream, and how much is asked to open one: in simulated time, with every request counted.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::sim::Sim;
use ithaca_log::client::{Client, ClientOptions, EntryKind};
use ithaca_log::pos::{LogPos, NodeId, StreamId, StreamPos};
use ithaca_log::release::{Release, Releases};
use ithaca_log::wire::{Grant, Kind, Token, TokenGroup};

use crate::gates::World;
use crate::worlds::{append, entry};

const A: StreamId = StreamId(1000);
/// Much longer than anything that is expected to be done at once takes, and much shorter than any wait.
const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(30);

/// Runs `test` with three nodes in a simulated process.
pub fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<World>) -> F + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        test(Rc::new(World::begin(&env, Path::new("data"), [10, 0, 0, 1]).await)).await;
    });
}

/// A client that never fills what is on its way.
async fn patient(world: &World) -> Client {
    let endpoints = vec![world.addr(NodeId(1))];
    let options = ClientOptions { endpoints, hole_wait: LONG, ..ClientOptions::default() };
    Client::connect(&world.env, options).await.expect("it serves")
}

/// Takes a position in the stream, and writes nothing there.
async fn granted(world: &World) -> LogPos {
    let token = Token { groups: vec![TokenGroup { count: 1, streams: [A].into(), condition: None }] };
    world.call::<_, Grant>(world.layout.sequencer, &token).await.expect("granted").first
}

#[test]
fn a_follower_of_a_stream_that_stands_still_asks_once_a_second_and_is_told_of_an_entry_at_once() {
    run(|world| async move {
        let (env, client) = (world.env.clone(), patient(&world).await);
        client.append_to(&[A], entry(0)).await.expect("appended");
        let mut follower = patient(&world).await.stream_reader(A, LogPos(0));
        assert_eq!(follower.next().await.expect("readable").data, entry(0));
        let following = env.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..10 {
                let found = follower.next().await.expect("readable");
                seen.push((found.pos, follower.position()));
            }
            seen
        });
        env.sleep(Duration::from_millis(10)).await;
        let before =
            (world.asked(Kind::WatchStream), world.asked(Kind::Check), world.asked(Kind::ReadStream));
        env.sleep(Duration::from_secs(60)).await;
        let asked = world.asked(Kind::WatchStream) - before.0;
        assert!((50..=61).contains(&asked), "{asked} questions in a minute");
        assert_eq!((world.asked(Kind::Check), world.asked(Kind::ReadStream)), (before.1, before.2));
        let (began, reads) = (env.now(), world.asked(Kind::ReadStream));
        let mut appended = Vec::new();
        for number in 0..10 {
            client.append(entry(number)).await.expect("appended");
            appended.push(client.append_to(&[A], entry(number)).await.expect("appended").pos);
        }
        let seen = following.join().await.expect("it follows");
        assert_eq!(seen.iter().map(|(pos, _)| *pos).collect::<Vec<_>>(), appended);
        let (took, reads) = (env.now().since(began), world.asked(Kind::ReadStream) - reads);
        assert!(took < 20 * SOON, "{took:?} for ten entries");
        // Each is looked for at the stripes that it may lie on, and waited for at its own.
        assert!(reads <= 10 * 4, "{reads} reads for ten entries");
    });
}

#[test]
fn an_entry_that_is_on_its_way_is_waited_for_at_its_unit() {
    // Whoever asks again and again instead is late, or busy.
    run(|world| async move {
        let (env, client) = (world.env.clone(), patient(&world).await);
        // A unit that has just begun sends readers away until it has heard of the others.
        env.sleep(Duration::from_secs(1)).await;
        let mut follower = client.stream_reader(A, LogPos(0));
        let following = env.spawn(async move { follower.next().await.expect("readable").pos });
        env.sleep(SOON).await;
        let lost = granted(&world).await;
        let next = client.append_to(&[A], entry(1)).await.expect("appended").pos;
        env.sleep(Duration::from_secs(5)).await;
        let reads = world.asked(Kind::ReadStream);
        assert!(reads <= 8, "{reads} reads while nothing came");
        let began = env.now();
        assert_eq!(client.fill(lost).await, Ok(EntryKind::Junk));
        assert_eq!(following.join().await, Some(next));
        assert!(env.now().since(began) < SOON, "{:?} after it was decided", env.now().since(began));
    });
}

#[test]
fn a_follower_that_goes_is_waited_for_no_more() {
    run(|world| async move {
        let env = world.env.clone();
        let watched = async || {
            let client = world.client(LONG).await;
            let status = client.status().await.expect("it serves");
            let counters = status.iter().flat_map(|(_, _, node)| &node.as_ref().expect("it serves").counters);
            counters.filter(|(name, _)| name == "streams_watched").map(|(_, count)| *count).sum::<u64>()
        };
        let client = patient(&world).await;
        let mut readers = [A, StreamId(1001)].map(|stream| client.stream_reader(stream, LogPos(0)));
        let following: Vec<_> = (0..2)
            .map(|nth| {
                let mut reader = std::mem::replace(&mut readers[nth], client.stream_reader(A, LogPos(0)));
                env.spawn(async move { reader.next().await.map(drop) })
            })
            .collect();
        env.sleep(SOON).await;
        assert_eq!(watched().await, 2);
        following.iter().for_each(ithaca_env::task::TaskHandle::abort);
        drop((readers, client));
        env.sleep(SOON).await;
        assert_eq!(watched().await, 0);
    });
}

#[test]
fn junk_in_a_rare_stream_costs_one_question_more_and_each_entry_is_read_once() {
    run(|world| async move {
        let client = world.client(LONG).await;
        let mut appended = Vec::new();
        for number in 0..6 {
            append(&client, 0, 1500).await;
            if number == 3 {
                assert_eq!(client.fill(granted(&world).await).await, Ok(EntryKind::Junk));
                append(&client, 0, 1500).await;
            }
            appended.push(client.append_to(&[A], entry(number)).await.expect("appended").pos);
        }
        let before = (world.asked(Kind::ReadStream), world.asked(Kind::Read));
        let mut reader = client.stream_reader(A, LogPos(0));
        reader.sync().await.expect("it serves");
        let mut found = Vec::new();
        while let Some(entry) = reader.read_next().await.expect("readable") {
            found.push(entry.pos);
        }
        assert_eq!(found, appended);
        let stripes = world.layout.ranges[0].stripes.len() as u64;
        // One for each entry, one for the junk, and there every stripe is asked for the entry before.
        assert_eq!(world.asked(Kind::ReadStream) - before.0, 6 + stripes);
        assert_eq!(world.asked(Kind::Read), before.1);
    });
}

#[test]
fn a_look_for_the_last_entry_survives_the_loss_of_a_message() {
    run(|world| async move {
        let client = world.client(LONG).await;
        let positions = append(&client, 0, 300).await;
        let placed = client.append_to(&[A], entry(1)).await.expect("appended").pos;
        append(&client, 0, 300).await;
        for stream in [A, StreamId(1001)] {
            for gate in &world.gates {
                gate.lose(Kind::ReadStream);
            }
            let began = world.env.now();
            let below = LogPos(placed.0 + positions.len() as u64);
            let last = client.last_before(stream, below).await.expect("it serves").map(|entry| entry.pos);
            assert_eq!(last, (stream == A).then_some(placed));
            assert!(world.env.now().since(began) < LONG / 10, "{:?}", world.env.now().since(began));
        }
    });
}

#[test]
fn releases_that_are_put_together_meanwhile_are_not_missed() {
    // The record of them all stands past the end that was asked for, and those that it is made of are trimmed.
    run(|world| async move {
        let (env, client) = (world.env.clone(), world.client(LONG).await);
        let hole = granted(&world).await;
        let release = |below: u64| Release { below: StreamPos(below), log_below: LogPos(below) };
        let record = |below| Releases::of(A, release(below)).encode().next().expect("one record");
        let first = client.append_to(&[StreamId::RELEASES], record(5)).await.expect("appended").pos;
        let asking = patient(&world).await;
        let asked = env.spawn(async move { asking.released(A).await });
        env.sleep(SOON).await;
        client.append_to(&[StreamId::RELEASES], record(5)).await.expect("appended");
        client.trim(first).await.expect("trimmed");
        assert_eq!(client.fill(hole).await, Ok(EntryKind::Junk));
        assert_eq!(asked.join().await, Some(Ok(release(5))));
    });
}
