//! Reading streams: what is shown of one is what the log holds of it, in order, whatever lies between.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::Env;
use ithaca_log::client::{
    Client, ClientError, ClientOptions, Connection, Entry, EntryKind, Identity, StreamReader, StreamsError,
};
use ithaca_log::entry::{EntryMeta, StreamGroup, StreamPlace};
use ithaca_log::limits::{ENTRY_MAX_BYTES, RELEASE_RECORDS_MAX_COUNT};
use ithaca_log::planted::Planted;
use ithaca_log::pos::{ClientId, ClusterId, LogPos, NodeId, RequestNo, StreamId, StreamPos};
use ithaca_log::release::{Release, Releases};
use ithaca_log::server::LocalCluster;
use ithaca_log::wire::{Head, Write, Written, encode_head};

use crate::worlds::{append, connect, entry, options, replicated, restart, run};

const A: StreamId = StreamId(1000);
const B: StreamId = StreamId(1 << 100);

/// Writes entries to streams as a client does, and remembers what every stream holds.
struct Writer {
    env: Env,
    client: Client,
    units: BTreeMap<NodeId, Connection>,
    request: u64,
    streams: BTreeMap<StreamId, Vec<Entry>>,
    next: BTreeMap<StreamId, (u64, Option<LogPos>)>,
}

impl Writer {
    async fn new(env: &Env, cluster: &LocalCluster) -> Self {
        let client = connect(env, cluster).await;
        let mut units = BTreeMap::new();
        for (at, &addr) in cluster.addrs().iter().enumerate() {
            let node = NodeId(at as u64 + 1);
            let who = Identity { client: ClientId(7), node, cluster: ClusterId::UNKNOWN };
            let deadline = env.now() + Duration::from_secs(20);
            units.insert(node, Connection::open(env, addr, who, deadline).await.expect("it serves"));
        }
        let (streams, next) = (BTreeMap::new(), BTreeMap::new());
        Self { env: env.clone(), client, units, request: 0, streams, next }
    }

    /// Appends one batch: groups of so many entries to these streams. Those of `lost` are granted and never written.
    async fn append(
        &mut self,
        cluster: &LocalCluster,
        groups: &[(u32, &[StreamId])],
        lost: &[u32],
    ) -> LogPos {
        let count = groups.iter().map(|(count, _)| count).sum();
        let first = self.client.tokens(count).await.expect("granted").start;
        let (from, mut pos, epoch) = (self.request, first, cluster.layout().epoch);
        self.request += u64::from(count);
        let mut metas = Vec::new();
        for &(count, streams) in groups {
            let mut places = Vec::new();
            for &stream in streams {
                let next = self.next.entry(stream).or_default();
                places.push(StreamPlace { stream, position: StreamPos(next.0), previous: next.1 });
                *next = (next.0 + u64::from(count), Some(LogPos(pos.0 + u64::from(count) - 1)));
            }
            let group = StreamGroup { count, places: places.into() };
            for nth in 0..count {
                let (pos, number) = (LogPos(pos.0 + u64::from(nth)), pos.0 - first.0 + u64::from(nth));
                if lost.contains(&(number as u32)) {
                    continue;
                }
                for &stream in streams {
                    let streams = group.places_of(nth, pos);
                    let data = entry(from + number);
                    let entry = Entry { pos, kind: EntryKind::Data, epoch, streams, data };
                    self.streams.entry(stream).or_default().push(entry);
                }
            }
            pos.0 += u64::from(count);
            metas.push(group);
        }
        for nth in (0..count).filter(|nth| !lost.contains(nth)) {
            self.write(cluster, LogPos(first.0 + u64::from(nth)), from + u64::from(nth), (from, &metas))
                .await;
        }
        first
    }

    /// Writes one entry at every replica of its position, in order.
    async fn write(
        &self,
        cluster: &LocalCluster,
        pos: LogPos,
        request: u64,
        (groups_from, groups): (u64, &[StreamGroup]),
    ) {
        let location = cluster.layout().locate(pos).expect("it has a place");
        let stripes = cluster.layout().ranges.last().expect("a range").stripes.len() as u16;
        let data = entry(request);
        let meta = EntryMeta {
            stride: stripes,
            groups_from: RequestNo(groups_from),
            groups: groups.to_vec(),
            ..EntryMeta::new(ClientId(7), location.addr, RequestNo(request))
        };
        let write = Write { addr: location.addr, meta: meta.to_bytes(), table: Table::of_payloads([&data]) };
        for node in location.replicas {
            let (deadline, epoch) = (self.env.now() + Duration::from_secs(20), cluster.layout().epoch);
            let encode = |id, out: &mut _| encode_head(out, Head::new(id, epoch), &write, data.len());
            let data: std::iter::Once<Bytes> = std::iter::once(data.clone());
            let answer = self.units[node].call_with::<Written>(&self.env, encode, data, deadline);
            assert_eq!(answer.await.expect("it serves").0, Written::default());
        }
    }

    /// Every stream as it is read in pieces of about so many bytes, from every place on.
    async fn check(&self, limit_bytes: usize) {
        let tail = self.client.check().await.expect("it serves").tail;
        for (&stream, expected) in &self.streams {
            let read = read(&self.client, stream, LogPos(0), limit_bytes).await;
            assert_eq!(&read, expected, "{stream} in pieces of {limit_bytes}");
            for from in [tail.0 / 3, tail.0 / 2, tail.0.saturating_sub(1)] {
                let read = crate::streams::read(&self.client, stream, LogPos(from), limit_bytes).await;
                let expected: Vec<Entry> =
                    expected.iter().filter(|entry| entry.pos.0 >= from).cloned().collect();
                assert_eq!(read, expected, "{stream} from {from}");
            }
        }
        for (&stream, expected) in &self.streams {
            for from in [LogPos(0), LogPos(tail.0 / 3), tail] {
                let part = self.client.peek_stream(stream, from, limit_bytes).await.expect("readable");
                let Some(part) = part else { continue };
                assert!(part.upto > from || from == tail, "it gets somewhere");
                assert!(part.upto == tail || limit_bytes < 1 << 20, "nothing else ends it");
                let is_in = |entry: &&Entry| from <= entry.pos && entry.pos < part.upto;
                let expected: Vec<Entry> = expected.iter().filter(is_in).cloned().collect();
                assert_eq!(part.entries, expected, "a peek at {stream} from {from}");
            }
        }
        for (&stream, expected) in &self.streams {
            for below in [0, 1, tail.0 / 3, tail.0 / 2, tail.0 - 1, tail.0, tail.0 + 9] {
                let last = self.client.last_before(stream, LogPos(below)).await.expect("readable");
                let expected = expected.iter().rfind(|entry| entry.pos.0 < below);
                assert_eq!(last.as_ref(), expected, "the last of {stream} below {below}");
            }
        }
        let mut all: BTreeMap<LogPos, Entry> = BTreeMap::new();
        for entry in self.streams.values().flatten() {
            all.insert(entry.pos, Entry { data: Bytes::new(), ..entry.clone() });
        }
        let (mut heads, mut next) = (Vec::new(), LogPos(0));
        while next < tail {
            let part = self.client.stream_heads(next..tail, limit_bytes).await.expect("readable");
            assert!(part.upto > next, "it goes on");
            heads.extend(part.entries);
            next = part.upto;
        }
        assert_eq!(heads, all.into_values().collect::<Vec<_>>(), "heads in pieces of {limit_bytes}");
    }
}

/// The stream from a log position on, in pieces.
async fn read(client: &Client, stream: StreamId, from: LogPos, limit_bytes: usize) -> Vec<Entry> {
    let tail = client.check().await.expect("it serves").tail;
    let (mut entries, mut next) = (Vec::new(), from);
    while next < tail {
        let part = client.read_stream(stream, next..tail, limit_bytes).await.expect("readable");
        assert!(part.upto > next, "it goes on");
        entries.extend(part.entries);
        next = part.upto;
    }
    entries
}

/// Entries of two streams, of both, of none, and of many; alone and in batches.
async fn some_entries(writer: &mut Writer, cluster: &LocalCluster) {
    writer.append(cluster, &[(3, &[A]), (1, &[B]), (2, &[]), (4, &[A, B])], &[]).await;
    append(&writer.client, 5000, 10).await;
    for number in 0..30 {
        let own = [StreamId(2000 + number)];
        writer.append(cluster, &[(1, &own), (1, if number % 3 == 0 { &[A] } else { &[B] })], &[]).await;
    }
    append(&writer.client, 6000, 20).await;
    writer.append(cluster, &[(20, &[B])], &[]).await;
}

#[test]
fn a_stream_is_what_the_log_holds_of_it_in_order() {
    for (units, replicas) in [(1, 1), (3, 1), (2, 2), (4, 2)] {
        run(|env, dir| async move {
            let options = replicated(dir.path(), units, replicas);
            let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
            let mut writer = Writer::new(&env, &cluster).await;
            some_entries(&mut writer, &cluster).await;
            writer.check(1 << 20).await;
            // What came since is found too, in blocks that were looked at before.
            some_entries(&mut writer, &cluster).await;
            writer.check(1 << 20).await;
            writer.check(1).await;
            let streams = std::mem::take(&mut writer.streams);
            drop(writer);
            cluster.stop().await;
            let cluster = restart(&env, options).await;
            let writer = Writer { streams, ..Writer::new(&env, &cluster).await };
            writer.check(1 << 16).await;
        });
    }
}

#[test]
fn a_reader_of_a_stream_fills_holes_and_never_looks_past_one() {
    // A reader that passed a hole would miss what is written into it.
    for units in [1, 2] {
        run(|env, dir| async move {
            let cluster = LocalCluster::start(&env, options(dir.path(), units)).await.expect("it starts");
            let mut writer = Writer::new(&env, &cluster).await;
            writer.append(&cluster, &[(2, &[A]), (5, &[A, B]), (2, &[B])], &[3, 4, 8]).await;
            let first = writer.append(&cluster, &[(1, &[A]), (1, &[B])], &[]).await;
            let peek = async |from: LogPos| {
                let part = writer.client.peek_stream(A, from, 1 << 20).await.expect("readable");
                assert_eq!(part.is_some(), units == 1, "it is one question");
                part.map_or((3, 3 - from.0), |part| (part.upto.0, part.entries.len() as u64))
            };
            let unlearned = if units == 1 { (0, 0) } else { (3, 3) };
            assert_eq!(peek(LogPos(0)).await, unlearned, "no unit looks at its records for it");
            let part = writer.client.read_stream(A, LogPos(0)..LogPos(first.0 + 2), 1 << 20).await;
            let part = part.expect("readable");
            assert_eq!(part.upto, LogPos(3), "it ends at the first hole");
            assert_eq!((peek(LogPos(0)).await, peek(LogPos(3)).await), ((3, 3), (3, 0)), "so does a peek");
            assert_eq!(part.entries.len(), 3);
            let last = writer.client.last_before(B, first).await.expect("readable").map(|entry| entry.pos);
            assert_eq!(last, Some(LogPos(7)), "a hole above it had to be decided");
            writer.check(1 << 20).await;
            let filled = writer.client.read(LogPos(3)).await.expect("decided");
            assert_eq!(filled.kind, EntryKind::Junk, "a reader that needed it has filled it");
        });
    }
}

#[test]
fn what_is_trimmed_is_left_out_of_a_stream() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let mut writer = Writer::new(&env, &cluster).await;
        some_entries(&mut writer, &cluster).await;
        writer.check(1 << 20).await;
        writer.client.trim_prefix(LogPos(5)).await.expect("trimmed");
        writer.client.trim(LogPos(30)).await.expect("trimmed");
        for entries in writer.streams.values_mut() {
            entries.retain(|entry| entry.pos >= LogPos(5) && entry.pos != LogPos(30));
        }
        writer.check(1 << 20).await;
    });
}

#[test]
fn a_stream_is_listed_by_its_name_when_what_is_below_was_trimmed() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        for name in ["orders", "users"] {
            let stream = client.stream(name).await.expect("named");
            client.append_to(&[stream], Bytes::from_static(b"first")).await.expect("appended");
        }
        let tail = client.check().await.expect("it serves").tail;
        let past = client.trim_prefix(LogPos(tail.0 + 1)).await;
        assert_eq!(past, Err(ClientError::Unwritten { pos: tail }));
        assert_eq!(client.check().await.expect("it serves").tail, tail, "nothing is done");
        for _ in 0..2 {
            let tail = client.check().await.expect("it serves").tail;
            client.trim_prefix(tail).await.expect("trimmed");
            let bounds = client.check().await.expect("it serves");
            assert_eq!((bounds.first, bounds.tail), (tail, LogPos(tail.0 + 3)), "names and releases alone");
            assert_eq!(client.stream_names().await.expect("told"), ["orders", "users"]);
        }
        client.stream("orders").await.expect("named");
        let after = client.check().await.expect("it serves").tail;
        client.trim_prefix(tail).await.expect("nothing to do");
        assert_eq!(client.check().await.expect("it serves").tail, after, "no name stood there");
    });
}

/// All that a reader gives before it says that this is all.
async fn drain(reader: &mut StreamReader) -> Vec<Entry> {
    let mut entries = Vec::new();
    while let Some(entry) = reader.read_next().await.expect("readable") {
        entries.push(entry);
    }
    entries
}

#[test]
fn a_reader_gives_each_entry_once_in_order_from_one_sync_to_the_next() {
    for units in [1, 3] {
        run(|env, dir| async move {
            let cluster = LocalCluster::start(&env, options(dir.path(), units)).await.expect("it starts");
            let client = connect(&env, &cluster).await;
            let rare = StreamId::of_name("rare");
            let mut readers = [client.stream_reader(rare, LogPos(0)), client.stream_reader(A, LogPos(0))];
            let mut expected = [Vec::new(), Vec::new()];
            for round in 0..4 {
                // One in much log, which is found from its end back; the other in every second position.
                for number in 0..3_u64 {
                    append(&client, 0, 2000).await;
                    let lost = client.tokens(1).await.expect("granted").start;
                    let placed = client.append_to(&[rare], entry(number)).await.expect("appended");
                    assert!(placed.pos > lost);
                    expected[0].push(placed.pos);
                }
                let appends: Vec<_> = (0..50).map(|number| client.append_to(&[A], entry(number))).collect();
                for append in appends {
                    expected[1].push(append.await.expect("appended").pos);
                }
                for (reader, expected) in readers.iter_mut().zip(&expected) {
                    assert_eq!(drain(reader).await, [], "nothing before a sync");
                    let tail = reader.sync().await.expect("it serves");
                    assert_eq!(tail.last, expected.last().copied());
                    assert_eq!(tail.next, StreamPos(expected.len() as u64));
                    let read: Vec<LogPos> = drain(reader).await.iter().map(|entry| entry.pos).collect();
                    assert_eq!(read, expected[expected.len() * round / (round + 1)..], "in round {round}");
                }
            }
            for (at, stream) in [rare, A].into_iter().enumerate() {
                for (nth, &pos) in expected[at].iter().enumerate().step_by(5) {
                    let read = client.read_stream_at(stream, StreamPos(nth as u64)).await.expect("readable");
                    assert_eq!(read.map(|entry| entry.pos), Some(pos), "{nth} of {stream}");
                }
                let past = StreamPos(expected[at].len() as u64);
                assert_eq!(client.read_stream_at(stream, past).await, Ok(None));
            }
        });
    }
}

#[test]
fn a_rare_stream_is_found_where_junk_stands_between_its_entries() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let mut writer = Writer::new(&env, &cluster).await;
        for round in 0..3 {
            append(&writer.client, 0, 3000).await;
            writer.append(&cluster, &[(3, &[A])], if round == 1 { &[0, 1, 2] } else { &[1] }).await;
        }
        append(&writer.client, 0, 3000).await;
        let expected: Vec<LogPos> = writer.streams[&A].iter().map(|entry| entry.pos).collect();
        assert_eq!(expected.len(), 4);
        let tail = writer.client.check().await.expect("it serves").tail;
        // From the tail back, past what was granted and never written.
        let (mut found, mut below) = (Vec::new(), tail);
        while let Some(entry) = writer.client.last_before(A, below).await.expect("readable") {
            found.insert(0, entry.pos);
            below = entry.pos;
        }
        assert_eq!(found, expected);
    });
}

#[test]
fn a_follower_of_a_stream_is_given_what_comes() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let mut follower = connect(&env, &cluster).await.stream_reader(A, LogPos(0));
        let following = env.spawn(async move {
            let mut positions = Vec::new();
            while positions.len() < 20 {
                positions.push(follower.next().await.expect("readable").pos);
            }
            positions
        });
        let mut appended = Vec::new();
        for number in 0..20 {
            client.append(entry(number)).await.expect("appended");
            appended.push(client.append_to(&[B, A], entry(number)).await.expect("appended").pos);
        }
        assert_eq!(following.join().await, Some(appended));
    });
}

/// Appends one entry to these streams.
async fn put(client: &Client, streams: &[StreamId], number: u64) -> LogPos {
    client.append_to(streams, entry(number)).await.expect("appended").pos
}

/// The log positions of a stream's entries.
async fn positions(client: &Client, stream: StreamId) -> Vec<LogPos> {
    read(client, stream, LogPos(0), 1 << 20).await.iter().map(|entry| entry.pos).collect()
}

/// An entry of two streams, and one of each on both sides of it; what happens as one stream releases it, and then the other.
pub fn release_by_one_and_by_the_other(planted: Planted) {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let endpoints = vec![cluster.addrs()[0]];
        let options = ClientOptions { endpoints, planted, ..ClientOptions::default() };
        let client = Client::connect(&env, options).await.expect("it serves");
        let a0 = put(&client, &[A], 0).await;
        let b0 = put(&client, &[B], 1).await;
        let both = put(&client, &[A, B], 2).await;
        let (a2, b2) = (put(&client, &[A], 3).await, put(&client, &[B], 4).await);
        client.trim_stream(A, StreamPos(2)).await.expect("trimmed");
        assert_eq!(client.released(A).await.expect("known").below, StreamPos(2));
        assert_eq!(client.read(a0).await.expect("there").kind, EntryKind::Trimmed);
        let kept = client.read(both).await.expect("there").kind;
        assert_eq!(kept, EntryKind::Data, "the other stream needs it");
        assert_eq!(positions(&client, B).await, [b0, both, b2]);
        client.trim_stream(B, StreamPos(3)).await.expect("trimmed");
        assert_eq!(client.read(both).await.expect("there").kind, EntryKind::Trimmed);
        assert_eq!(positions(&client, A).await, [a2]);
        assert_eq!(positions(&client, B).await, []);
        // Again, and less than before: nothing changes.
        client.trim_stream(B, StreamPos(1)).await.expect("nothing to do");
        assert_eq!(client.released(B).await.expect("known").below, StreamPos(3));
        let past = client.trim_stream(B, StreamPos(4)).await.expect_err("past its end");
        assert_eq!(past.to_string(), format!("stream {B} ends at 3, below 4"));
        let system = client.trim_stream(StreamId::NAMES, StreamPos(0)).await;
        assert!(matches!(system, Err(ClientError::Streams(StreamsError::System { .. }))), "{system:?}");
    });
}

#[test]
fn an_entry_of_two_streams_goes_when_both_have_released_it() {
    release_by_one_and_by_the_other(Planted::NONE);
}

#[test]
fn what_a_crash_left_between_release_and_trim_is_trimmed_by_the_next() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 1)).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let mut entries = Vec::new();
        for number in 0..4 {
            entries.push(put(&client, &[A, B], number).await);
        }
        // The release of a client that went no further.
        let release = Release { below: StreamPos(3), log_below: LogPos(entries[2].0 + 1) };
        for record in Releases::of(A, release).encode() {
            client.append_to(&[StreamId::RELEASES], record).await.expect("appended");
        }
        assert_eq!(client.released(A).await, Ok(release));
        client.trim_stream(B, StreamPos(2)).await.expect("trimmed");
        assert_eq!(positions(&client, A).await, entries[2..]);
        client.trim_stream(B, StreamPos(3)).await.expect("trimmed");
        assert_eq!(positions(&client, B).await, entries[3..]);
    });
}

#[test]
fn a_trim_by_position_forgets_no_release_and_releases_what_it_leaves_nothing_of() {
    run(|env, dir| async move {
        let options = options(dir.path(), 2);
        let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let stream = async |name: &str| client.stream(name).await.expect("named");
        let (gone, cut, left) = (stream("gone").await, stream("cut").await, stream("left").await);
        let never = stream("never appended to").await;
        for number in 0..3 {
            put(&client, &[gone, cut, left], number).await;
        }
        let last = put(&client, &[gone], 3).await;
        client.trim_stream(cut, StreamPos(2)).await.expect("trimmed");
        let of_cut = client.released(cut).await.expect("known");
        let end = client.check().await.expect("it serves").tail;
        put(&client, &[cut, left], 4).await;
        for _ in 0..2 {
            client.trim_prefix(end).await.expect("trimmed");
            let tail = client.check().await.expect("it serves").tail;
            let of_gone = Release { below: StreamPos(4), log_below: LogPos(last.0 + 1) };
            let known = async |stream| client.released(stream).await;
            assert_eq!((known(gone).await, known(cut).await), (Ok(of_gone), Ok(of_cut)));
            assert_eq!(
                (known(left).await, known(never).await),
                (Ok(Release::default()), Ok(Release::default()))
            );
            let records = positions(&client, StreamId::RELEASES).await;
            assert!(records.len() <= 2 && records.iter().all(|pos| (end..tail).contains(pos)), "{records:?}");
        }
        assert_eq!(positions(&client, gone).await, []);
        let more = put(&client, &[gone], 5).await;
        assert_eq!(positions(&client, gone).await, [more], "it goes on");
    });
}

#[test]
fn many_releases_become_one_record() {
    run(|env, dir| async move {
        let cluster = LocalCluster::start(&env, options(dir.path(), 2)).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let stream = |number: u64| StreamId(5000 + u128::from(number));
        let release = |number: u64| Release { below: StreamPos(number), log_below: LogPos(number) };
        let count = RELEASE_RECORDS_MAX_COUNT as u64;
        let records: Vec<_> = (0..count)
            .flat_map(|number| Releases::of(stream(number % 50), release(number)).encode())
            .map(|record| client.append_to(&[StreamId::RELEASES], record))
            .collect();
        for record in records {
            record.await.expect("appended");
        }
        put(&client, &[A], 0).await;
        client.trim_stream(A, StreamPos(1)).await.expect("trimmed");
        let left = positions(&client, StreamId::RELEASES).await;
        assert_eq!(left.len(), 2, "that of the stream, and one of all");
        let last = (0..count).rfind(|number| number % 50 == 7).expect("one of them");
        assert_eq!(client.released(stream(7)).await, Ok(release(last)));
        assert_eq!(client.released(A).await.map(|release| release.below), Ok(StreamPos(1)));
    });
}

#[test]
fn the_last_entry_of_a_stream_is_found_however_large_it_is_and_however_many_stripes_there_are() {
    // What follows it on its stripe has a place in the answer beside it.
    run(|env, dir| async move {
        let mut wide = options(dir.path(), 4);
        wide.chain.segment_bytes = 16 << 20;
        let cluster = LocalCluster::start(&env, wide).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let largest = Bytes::from(vec![5; ENTRY_MAX_BYTES]);
        let pos = client.append_to(&[A], largest.clone()).await.expect("appended").pos;
        put(&client, &[A], 1).await;
        append(&client, 0, 20).await;
        let last = client.last_before(A, LogPos(pos.0 + 1)).await.expect("readable").expect("there");
        assert_eq!((last.pos, &last.data), (pos, &largest));
        let large = client.append_to(&[B], largest.clone()).await.expect("appended").pos;
        append(&client, 0, 20).await;
        let last = client.last_before(B, LogPos(large.0 + 20)).await.expect("readable").expect("there");
        assert_eq!((last.pos, last.data), (large, largest));
        client.trim_stream(B, StreamPos(1)).await.expect("trimmed");
    });
}
