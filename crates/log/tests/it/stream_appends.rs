//! Appending to streams: places follow each other, conditions hold, and a new sequencer goes on where the old one was.

use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_log::client::{AppendTo, Client, ClientError, Placed, StreamsError};
use ithaca_log::entry::StreamPlace;
use ithaca_log::pos::{LogPos, StreamId, StreamPos};
use ithaca_log::sequencer::StreamTable;
use ithaca_log::sequencer::checkpoint::Chunk;
use ithaca_log::server::{GrantOptions, LocalCluster, LocalOptions};
use ithaca_log::stream::{Condition, ConflictKey, ConflictKeys, KeyHash, StreamTail};

use crate::worlds::{append, connect, entry, options, replicated, restart, run};

const A: StreamId = StreamId(1000);
const B: StreamId = StreamId(1 << 100);

fn checkpoints(checkpoint_every: u64) -> GrantOptions {
    GrantOptions { checkpoint_every, ..GrantOptions::default() }
}

fn key(stream: StreamId, key: u64) -> ConflictKey {
    ConflictKey { stream, key: KeyHash(key) }
}

/// An append that changes a part of A, and depends on what it was at `snapshot`.
fn change(client: &Client, part: u64, snapshot: LogPos) -> AppendTo {
    let parts = ConflictKeys::from_slice(&[key(A, part)]);
    client.append_if(
        &[A],
        Condition { snapshot, reads: parts.clone(), writes: parts },
        Bytes::from_static(b"change"),
    )
}

/// The positions in the stream of everything that it holds, and where those entries stand in the log.
async fn held(client: &Client, stream: StreamId) -> Vec<(u64, u64)> {
    let tail = client.check().await.expect("it serves").tail;
    let (mut held, mut next) = (Vec::new(), LogPos(0));
    while next < tail {
        let part = client.read_stream(stream, next..tail, 1 << 20).await.expect("readable");
        for entry in part.entries {
            let place = entry.streams.iter().find(|place| place.stream == stream).expect("of the stream");
            held.push((place.position.0, entry.pos.0));
        }
        next = part.upto;
    }
    held
}

fn placed(places: &[Placed], nth: usize) -> Vec<(u64, u64)> {
    places.iter().map(|placed| (placed.places[nth].position.0, placed.pos.0)).collect()
}

async fn start(env: &Env, options: &LocalOptions) -> (LocalCluster, Client) {
    let cluster = restart(env, options.clone()).await;
    let client = connect(env, &cluster).await;
    (cluster, client)
}

async fn all(appends: Vec<AppendTo>) -> Vec<Placed> {
    let mut placed = Vec::new();
    for append in appends {
        placed.push(append.await.expect("appended"));
    }
    placed
}

#[test]
fn entries_stand_in_each_of_their_streams_one_after_the_other() {
    // Plain appends, appends to one stream and to two, all in a few batches, on several stripes.
    run(async |env, dir| {
        let (_cluster, client) = start(&env, &replicated(dir.path(), 3, 2)).await;
        let (mut one, mut two, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..200 {
            match number % 7 {
                0 | 1 => plain.push(client.append(entry(number))),
                2 => two.push(client.append_to(&[B, A], entry(number))),
                _ => one.push(client.append_to(&[A], entry(number))),
            }
        }
        let (one, two) = (all(one).await, all(two).await);
        for append in plain {
            append.await.expect("appended");
        }
        let mut in_a = placed(&one, 0);
        in_a.extend(placed(&two, 1));
        in_a.sort_unstable();
        assert!(in_a.iter().map(|(position, _)| *position).eq(0..in_a.len() as u64), "{in_a:?}");
        assert_eq!(held(&client, A).await, in_a);
        assert_eq!(held(&client, B).await, placed(&two, 0));
        let tails = client.stream_tails(&[A, B, StreamId(7777)]).await.expect("it serves");
        assert_eq!(tails.tail, LogPos(200));
        let ends: Vec<_> = tails.streams.iter().map(|tail| (tail.next.0, tail.last)).collect();
        let last = |held: &[(u64, u64)]| held.last().map(|&(_, pos)| LogPos(pos));
        let two = placed(&two, 0);
        assert_eq!(ends, [(in_a.len() as u64, last(&in_a)), (two.len() as u64, last(&two)), (0, None)]);
    });
}

#[test]
fn an_append_whose_read_was_written_since_is_refused_alone() {
    run(async |env, dir| {
        let (_cluster, client) = start(&env, &options(dir.path(), 2)).await;
        let before = append(&client, 0, 5).await;
        // All in one batch: parts 1 and 2 are changed twice from the same snapshot.
        let snapshot = LogPos(before.len() as u64);
        let changes: Vec<AppendTo> =
            [1, 2, 1, 3, 2].iter().map(|&part| change(&client, part, snapshot)).collect();
        let behind = client.append_to(&[A, B], entry(1));
        let mut results = Vec::new();
        for change in changes {
            results.push(change.await.map(|placed| (placed.pos.0, placed.places[0].position.0)));
        }
        let (one, two) = (Err(conflict_of(key(A, 1), 5)), Err(conflict_of(key(A, 2), 6)));
        assert_eq!(results, [Ok((5, 0)), Ok((6, 1)), one, Ok((7, 2)), two]);
        let behind = behind.await.expect("appended");
        let place = |stream, position, previous: Option<u64>| StreamPlace {
            stream,
            position: StreamPos(position),
            previous: previous.map(LogPos),
        };
        let places = vec![place(A, 3, Some(7)), place(B, 0, None)];
        assert_eq!(behind, Placed { pos: LogPos(8), places: places.into() });
        assert_eq!(held(&client, A).await, [(0, 5), (1, 6), (2, 7), (3, 8)]);
        // It names no part: all of the stream is changed.
        assert_eq!(change(&client, 9, LogPos(8)).await, Err(conflict_of(key(A, 9), 8)));
        assert!(change(&client, 9, LogPos(9)).await.is_ok());
    });
}

fn conflict_of(key: ConflictKey, pos: u64) -> ClientError {
    ClientError::Conflict { key, pos: LogPos(pos) }
}

#[test]
fn a_restarted_cluster_grants_no_stream_position_twice_with_and_without_checkpoints() {
    // A new sequencer that takes a stream for shorter than it is gives its positions away again.
    for checkpoint_every in [3, 65_536] {
        run(async |env, dir| {
            let options =
                LocalOptions { grants: checkpoints(checkpoint_every), ..replicated(dir.path(), 3, 2) };
            let (mut cluster, mut client) = start(&env, &options).await;
            let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
            for round in 0..4 {
                append(&client, 0, 10).await;
                in_b.extend(placed(&all(vec![client.append_to(&[B], entry(round))]).await, 0));
                let appends = (0..6).map(|number| client.append_to(&[A], entry(number))).collect();
                in_a.extend(placed(&all(appends).await, 0));
                let snapshot = client.check().await.expect("it serves").tail;
                drop((cluster, client));
                (cluster, client) = start(&env, &options).await;
                let tails = client.stream_tails(&[A, B]).await.expect("it serves");
                let next: Vec<u64> = tails.streams.iter().map(|tail| tail.next.0).collect();
                assert_eq!(next, [in_a.len() as u64, in_b.len() as u64], "after {round}");
                // What was written before the sequencer began it knows by stream, not by part.
                assert!(matches!(change(&client, 5, LogPos(0)).await, Err(ClientError::TooOld { .. })));
                let change = change(&client, 5, snapshot).await.expect("nothing was written since");
                in_a.extend(placed(&[change], 0));
            }
            assert_eq!(held(&client, A).await, in_a);
            assert_eq!(held(&client, B).await, in_b);
            if checkpoint_every == 3 {
                let deadline = env.now() + Duration::from_secs(20);
                while held(&client, StreamId::SEQUENCER).await.is_empty() {
                    assert!(env.now() < deadline, "no checkpoint");
                    env.yield_now().await;
                }
            }
            drop(cluster);
        });
    }
}

/// Waits until nothing of the stream of checkpoints stands at or below `left`, and something above.
async fn until_trimmed(env: &Env, client: &Client, left: LogPos) {
    let deadline = env.now() + Duration::from_secs(20);
    loop {
        let held = held(client, StreamId::SEQUENCER).await;
        if held.first().is_some_and(|&(_, pos)| pos > left.0) {
            return;
        }
        assert!(env.now() < deadline, "chunks are left: {held:?}, up to {left}");
        env.yield_now().await;
    }
}

#[test]
fn chunks_that_a_crash_left_go_when_the_next_checkpoint_is_whole() {
    // Each would stay for ever, and with it its segment of the drive.
    for is_restarted in [false, true] {
        run(async |env, dir| {
            let options = LocalOptions { grants: checkpoints(40), ..replicated(dir.path(), 3, 2) };
            let (mut cluster, mut client) = start(&env, &options).await;
            let fill = async |client: &Client| {
                let appends = (0..60).map(|number| client.append_to(&[A], entry(number))).collect();
                all(appends).await;
            };
            fill(&client).await;
            until_trimmed(&env, &client, LogPos(0)).await;
            // Two checkpoints that were begun and never ended, with a whole one below them and junk between them.
            let mut left = LogPos(0);
            for number in [0, 1, 0] {
                let chunk = Chunk {
                    from: client.check().await.expect("it serves").tail,
                    unseen: LogPos(0),
                    number,
                    is_last: false,
                    streams: StreamTable::default(),
                };
                left = client.append_to(&[StreamId::SEQUENCER], chunk.encode()).await.expect("appended").pos;
                let lost = client.tokens(1).await.expect("granted").start;
                client.fill(lost).await.expect("filled");
            }
            if is_restarted {
                drop((cluster, client));
                (cluster, client) = start(&env, &options).await;
            }
            fill(&client).await;
            until_trimmed(&env, &client, left).await;
            drop(cluster);
        });
    }
}

#[test]
fn streams_whose_entries_are_trimmed_go_on_above_what_they_were() {
    // Nobody can say which streams the trimmed entries were in: no position of them may come again.
    run(async |env, dir| {
        let options = options(dir.path(), 1);
        let (cluster, client) = start(&env, &options).await;
        let appends = (0..6).map(|number| client.append_to(&[A], entry(number))).collect();
        let before = placed(&all(appends).await, 0);
        client.trim_range(LogPos(4)..LogPos(6)).await.expect("trimmed");
        drop((cluster, client));
        let (_cluster, client) = start(&env, &options).await;
        let after = client.append_to(&[A], entry(7)).await.expect("appended");
        assert!(after.places[0].position.0 > before[5].0, "{after:?}");
        let old = Condition {
            snapshot: LogPos(4),
            reads: vec![key(A, KeyHash::ALL.0)].into(),
            ..Condition::default()
        };
        let other = Condition { snapshot: LogPos(4), reads: vec![key(B, 1)].into(), ..Condition::default() };
        assert!(matches!(client.append_if(&[A], old, entry(8)).await, Err(ClientError::Conflict { .. })));
        assert!(matches!(client.append_if(&[B], other, entry(8)).await, Err(ClientError::TooOld { .. })));
    });
}

#[test]
fn streams_whose_entries_are_trimmed_go_on_above_what_they_were_after_a_checkpoint_too() {
    // The checkpoint has no such stream, and the next sequencer does not look below it.
    run(async |env, dir| {
        let options = LocalOptions { grants: checkpoints(3), ..options(dir.path(), 1) };
        let (cluster, client) =
            start(&env, &LocalOptions { grants: checkpoints(100), ..options.clone() }).await;
        let appends = (0..6).map(|number| client.append_to(&[A], entry(number))).collect();
        let before = placed(&all(appends).await, 0);
        client.trim_range(LogPos(0)..LogPos(6)).await.expect("trimmed");
        drop((cluster, client));
        let (cluster, client) = start(&env, &options).await;
        let appends = (0..6).map(|number| client.append_to(&[B], entry(number))).collect();
        all(appends).await;
        until_trimmed(&env, &client, LogPos(0)).await;
        drop((cluster, client));
        let (_cluster, client) = start(&env, &options).await;
        let after = client.append_to(&[A], entry(7)).await.expect("appended");
        assert!(after.places[0].position.0 > before[5].0, "{after:?}");
    });
}

/// A chunk of a checkpoint by hand, with these streams as they end by now.
async fn chunk(client: &Client, streams: &[StreamId], chunk: Chunk) -> Chunk {
    let ends = client.stream_tails(streams).await.expect("it serves").streams;
    let streams: Vec<_> = streams.iter().copied().zip(ends).collect();
    Chunk { streams: StreamTable::of(&streams), ..chunk }
}

/// Two chunks of one checkpoint, between which streams of both go on, one begins, and all of one is trimmed; or, if the first
/// `is_overtaken`, the second one stands before it, and nothing is trimmed. What is known of the streams before and after a crash.
async fn between_chunks(env: &Env, options: &LocalOptions, is_overtaken: bool) -> [Vec<StreamTail>; 2] {
    const STREAMS: [StreamId; 5] = [StreamId(900), A, StreamId(1001), StreamId(1002), B];
    let [late, _, early, gone, _] = STREAMS;
    let (cluster, client) = start(env, options).await;
    let go_on = async |streams: &[StreamId]| {
        client.append_to(streams, entry(1)).await.expect("appended");
    };
    for stream in [A, early, gone, B, A, B] {
        go_on(&[stream]).await;
    }
    let from = client.check().await.expect("it serves").tail;
    let first = Chunk { from, unseen: LogPos(0), number: 0, is_last: false, streams: StreamTable::default() };
    let second = Chunk { number: 1, is_last: true, ..first.clone() };
    let first = chunk(&client, &[A, early], first).await;
    if !is_overtaken {
        client.append_to(&[StreamId::SEQUENCER], first.encode()).await.expect("appended");
    }
    // One that is in the first chunk, one that is to come in the second, and one that is in neither.
    for stream in [A, B, late, A] {
        go_on(&[stream]).await;
    }
    if !is_overtaken {
        client.trim_stream(gone, StreamPos(1)).await.expect("trimmed");
        assert_eq!(held(&client, gone).await, []);
    }
    let second = chunk(&client, &[gone, B], second).await;
    client.append_to(&[StreamId::SEQUENCER], second.encode()).await.expect("appended");
    if is_overtaken {
        client.append_to(&[StreamId::SEQUENCER], first.encode()).await.expect("appended");
    }
    go_on(&[A, B]).await;
    let before = client.stream_tails(&STREAMS).await.expect("it serves").streams;
    drop((cluster, client));
    let (_cluster, client) = start(env, options).await;
    let after = client.stream_tails(&STREAMS).await.expect("it serves").streams;
    for (stream, end) in STREAMS.into_iter().zip(&after) {
        let next = client.append_to(&[stream], entry(2)).await.expect("appended").places[0];
        assert_eq!((next.position, next.previous), (end.next, end.last));
    }
    [before, after]
}

#[test]
fn streams_that_go_on_and_are_trimmed_between_the_chunks_of_a_checkpoint_end_where_they_did() {
    // Of a stream that has gone on behind its chunk, or has begun behind it, positions would be granted a second time.
    run(async |env, dir| {
        let options = LocalOptions { grants: checkpoints(65_536), ..replicated(dir.path(), 3, 2) };
        let [before, after] = between_chunks(&env, &options, false).await;
        assert_eq!(after, before);
    });
}

#[test]
fn a_checkpoint_of_which_a_chunk_was_overtaken_by_a_later_one_does_not_count() {
    // A stream of the first chunk that has not gone on since would begin anew.
    run(async |env, dir| {
        let options = LocalOptions { grants: checkpoints(65_536), ..replicated(dir.path(), 3, 2) };
        let [before, after] = between_chunks(&env, &options, true).await;
        assert_eq!(after, before);
    });
}

#[test]
fn a_checkpoint_whose_chunks_come_in_one_batch_is_whole() {
    // Of a group of appends the head of a run says where the last one stands: were the other chunks not seen, no stream that has not gone on
    // since would be known.
    run(async |env, dir| {
        let options = LocalOptions { grants: checkpoints(65_536), ..replicated(dir.path(), 3, 2) };
        let streams: Vec<StreamId> = (0..12).map(|number| StreamId(1000 + number)).collect();
        let (cluster, client) = start(&env, &options).await;
        for stream in streams.iter().chain(&streams[3..]) {
            client.append_to(&[*stream], entry(1)).await.expect("appended");
        }
        let from = client.check().await.expect("it serves").tail;
        let mut chunks = Vec::new();
        for (number, stream) in (0..).zip(&streams) {
            let (unseen, is_last, none) = (LogPos(0), number == 11, StreamTable::default());
            let empty = Chunk { from, unseen, number, is_last, streams: none };
            chunks.push(chunk(&client, &[*stream], empty).await.encode());
        }
        let appends = chunks.into_iter().map(|chunk| client.append_to(&[StreamId::SEQUENCER], chunk));
        let placed = all(appends.collect()).await;
        assert!(placed.windows(2).all(|two| two[0].pos.0 + 1 == two[1].pos.0), "one batch: {placed:?}");
        client.trim_range(LogPos(0)..from).await.expect("trimmed");
        let before = client.stream_tails(&streams).await.expect("it serves").streams;
        drop((cluster, client));
        let (_cluster, client) = start(&env, &options).await;
        let after = client.stream_tails(&streams).await.expect("it serves").streams;
        assert_eq!(after, before);
    });
}

#[test]
fn names_are_listed_once_and_streams_that_cannot_be_are_refused() {
    run(async |env, dir| {
        let (_cluster, client) = start(&env, &options(dir.path(), 1)).await;
        for name in ["orders", "users", "orders"] {
            let stream = client.stream(name).await.expect("named");
            client.append_to(&[stream], entry(1)).await.expect("appended");
        }
        assert_eq!(client.stream_names().await.expect("it serves"), ["orders", "users"]);
        let long = "x".repeat(256);
        let refused = client.stream(&long).await;
        assert_eq!(refused, Err(StreamsError::Name { len: 256, limit: 255 }.into()));
        let twice = client.append_to(&[A, B, A], entry(1)).await;
        assert_eq!(twice, Err(StreamsError::Twice { stream: A }.into()));
        let many: Vec<StreamId> = (0..17).map(|stream| StreamId(1000 + stream)).collect();
        let refused = client.append_to(&many, entry(1)).await;
        assert_eq!(refused, Err(StreamsError::TooMany { found: 17, limit: 16 }.into()));
        let foreign = Condition { writes: vec![key(B, 1)].into(), ..Condition::default() };
        let refused = client.append_if(&[A], foreign, entry(1)).await;
        assert_eq!(refused, Err(StreamsError::NotItsStream { key: key(B, 1) }.into()));
    });
}
