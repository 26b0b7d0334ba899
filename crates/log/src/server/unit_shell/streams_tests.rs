//! What a unit shows of a stream as addresses become something else: stored, restored late, voided, trimmed.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{Chain, ChainId, ChainOptions, Identity, Label, Recovered, Table};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::sim::Sim;

use super::*;
use crate::entry::{StreamGroup, StreamPlace};
use crate::planted::Planted;
use crate::pos::{ClientId, Epoch, RequestId, RequestNo, StreamPos};
use crate::server::answers::Answers;
use crate::server::leases::Leases;
use crate::server::unit_shell::Copied;
use crate::unit::UnitOptions;
use crate::wire::{Head, Reply, RunState, next_frame};

const STREAM: StreamId = StreamId(1000);
const OTHER: StreamId = StreamId(1001);

/// An entry of `STREAM` at each of these addresses.
fn entries(addrs: Range<u64>) -> Run {
    entries_of(STREAM, addrs)
}

/// An entry of the stream at each of these addresses.
fn entries_of(stream: StreamId, addrs: Range<u64>) -> Run {
    let count = (addrs.end - addrs.start) as u32;
    let places = vec![StreamPlace { stream, position: StreamPos(addrs.start), previous: None }];
    let request = RequestNo(addrs.start);
    let groups = vec![StreamGroup { count, places: places.into() }];
    let meta =
        EntryMeta { groups_from: request, groups, ..EntryMeta::new(ClientId(1), Addr(addrs.start), request) };
    let payloads: Vec<String> = addrs.clone().map(|addr| format!("entry {addr}")).collect();
    Run {
        first_key: addrs.start,
        version: 1,
        kind: RunKind::Data,
        meta: meta.to_bytes(),
        table: Table::of_payloads(&payloads),
        data: payloads.concat().into(),
    }
}

fn identity() -> Identity {
    Identity { id: ChainId([7; 16]), label: Label::new("unit 1").expect("short") }
}

fn chain_options() -> ChainOptions {
    ChainOptions {
        capacity_bytes: 64 << 20,
        segment_bytes: 4 << 20,
        tail_cache_bytes: 512 << 10,
        index_cache_bytes: 0,
        read_cache_bytes: 0,
        ..ChainOptions::default()
    }
}

async fn drive(env: &Env) -> Drive {
    let open = OpenDrive { path: "chain".into(), create_bytes: Some(64 << 10), read_only: false };
    env.open_drive(open).await.expect("a drive")
}

async fn unit(env: &Env, planted: Planted) -> Rc<UnitShell> {
    let chain =
        Chain::create(env, drive(env).await, identity(), chain_options()).await.expect("it is created");
    start(env, chain, Recovered::default(), planted)
}

/// The same unit when its process has begun anew: what it has stored is on its drive, and nothing of it in memory.
async fn again(unit: Rc<UnitShell>) -> Rc<UnitShell> {
    let env = unit.env().clone();
    unit.chain().clone().close().await.expect("closed");
    drop(unit);
    let opened = Chain::open(&env, drive(&env).await, Some(&identity()), chain_options()).await;
    let (chain, recovered) = opened.expect("it was closed in order");
    start(&env, chain, recovered, Planted::NONE)
}

fn start(env: &Env, chain: Chain, recovered: Recovered, planted: Planted) -> Rc<UnitShell> {
    let options = UnitOptions { planted, ..UnitOptions::default() };
    UnitShell::start(env, chain, recovered, options, Leases::not_needed(env)).expect("it starts").0
}

/// The addresses of the entries of `STREAM` below 10, and how far the unit says that it has looked without a hole.
async fn shown(unit: &UnitShell) -> (Vec<u64>, u64) {
    shown_of(unit, STREAM).await
}

/// The same of any stream.
async fn shown_of(unit: &UnitShell, stream: StreamId) -> (Vec<u64>, u64) {
    let mut found = found(unit, &read_of(stream)).await;
    let until = if found.says_unwritten() { unit.watermark(Addr(0)).0 } else { 10 };
    (addrs_of(&mut found), until)
}

/// What is shown of `STREAM` without a look at records, and where that ends.
async fn known(unit: &UnitShell) -> (Vec<u64>, Option<u64>) {
    let read = ReadStream { known_only: true, ..read_of(STREAM) };
    let mut found = found(unit, &read).await;
    (addrs_of(&mut found), found.end().map(|end| end.0))
}

/// What is found for somebody on a connection.
async fn found(unit: &UnitShell, read: &ReadStream) -> Found {
    let listener = unit.env().listen(([10, 0, 0, 1], 0).into()).expect("a free port");
    let conn = unit.env().connect(listener.local_addr()).await.expect("it is there");
    let answers = Answers::new(conn.writer, &Rc::default());
    let mut cold = unit.cold_reads().begin(&answers);
    unit.find(read, &mut cold).await.expect("no damage")
}

fn read_of(stream: StreamId) -> ReadStream {
    ReadStream {
        limit_bytes: 1 << 20,
        committed: false,
        heads_only: false,
        last_only: false,
        known_only: false,
        wait_ms: 0,
        wanted: Wanted::Stream(stream),
        ranges: vec![(0..10).into()],
    }
}

/// The addresses of the entries that are in an answer.
fn addrs_of(found: &mut Found) -> Vec<u64> {
    let data: Vec<Bytes> = found.take_data().collect();
    let text = String::from_utf8(data.concat()).expect("text");
    text.split("entry ").skip(1).map(|addr| addr.parse().expect("a number")).collect()
}

/// Which addresses an answer tells of, and those of the entries in it.
fn parts_of(mut found: Found) -> (AddrRange, Vec<u64>) {
    let mut sent = BytesMut::new();
    found.encode_head(&mut sent, Head::new(RequestId(1), Epoch(1)));
    found.take_data().for_each(|data| sent.extend_from_slice(&data));
    let frame = next_frame(&mut sent).expect("a frame").expect("whole");
    let Ok(Reply::Runs(answer)) = Reply::decode(&frame) else { panic!("it keeps to the limits of the wire") };
    let runs = answer.runs;
    let (first, last) = (runs.first().expect("a part"), runs.last().expect("a part"));
    let entries = runs.iter().filter(|run| matches!(run.state, RunState::Data { .. }));
    let entries = entries.map(|run| run.addr.0).collect();
    (AddrRange::new(first.addr, Addr(last.addr.0 + last.count)), entries)
}

/// Runs the test on a simulated unit.
fn on_unit(planted: Planted, test: impl AsyncFnOnce(Rc<UnitShell>) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("unit", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move { test(unit(&env, planted).await).await });
}

/// What is shown as addresses are stored out of order, one is voided, and some are trimmed.
fn run(planted: Planted) {
    on_unit(planted, async |unit| {
        let store = async |runs: Vec<Run>, voided: Vec<AddrRange>, trimmed: Vec<AddrRange>| {
            let copied = Copied { runs, voided, trimmed, ..Copied::default() };
            unit.restore(Epoch(1), copied).await.expect("stored");
        };
        store(vec![entries(0..3), entries(5..8)], Vec::new(), Vec::new()).await;
        assert_eq!(shown(&unit).await, (vec![0, 1, 2, 5, 6, 7], 3));
        // What was missing comes late, into a block that was looked through.
        store(vec![entries(3..5)], Vec::new(), Vec::new()).await;
        assert_eq!(shown(&unit).await, ((0..8).collect(), 8));
        store(Vec::new(), vec![(6..7).into()], Vec::new()).await;
        assert_eq!(shown(&unit).await, (vec![0, 1, 2, 3, 4, 5, 7], 8));
        store(vec![entries(8..10)], Vec::new(), vec![(0..2).into()]).await;
        assert_eq!(shown(&unit).await, (vec![2, 3, 4, 5, 7, 8, 9], 10));
    });
}

/// What is shown of a stream whose first entry comes when the unit knows that it had none.
fn run_rare(planted: Planted) {
    on_unit(planted, async |unit| {
        for (run, expected) in [(entries(0..3), (vec![], 3)), (entries_of(OTHER, 3..4), (vec![3], 4))] {
            let copied = Copied { runs: vec![run], ..Copied::default() };
            unit.restore(Epoch(1), copied).await.expect("stored");
            assert_eq!(shown_of(&unit, OTHER).await, expected);
        }
    });
}

#[test]
fn what_is_known_ends_before_the_first_record_to_be_looked_at() {
    on_unit(Planted::NONE, async |unit| {
        let store = async |run: Run| {
            let copied = Copied { runs: vec![run], ..Copied::default() };
            unit.restore(Epoch(1), copied).await.expect("stored");
        };
        store(entries(0..3)).await;
        assert_eq!(known(&unit).await, (vec![], None), "nobody has asked for a stream yet");
        assert_eq!(shown(&unit).await, (vec![0, 1, 2], 3));
        assert_eq!(
            known(&unit).await,
            (vec![0, 1, 2], Some(10)),
            "of what is unwritten nothing is to be known"
        );
        store(entries_of(OTHER, 3..4)).await;
        store(entries(4..6)).await;
        assert_eq!(known(&unit).await, (vec![0, 1, 2], Some(3)));
        // Whoever looks for another stream learns of this one too.
        assert_eq!(shown_of(&unit, OTHER).await, (vec![3], 6));
        assert_eq!(known(&unit).await, (vec![0, 1, 2, 4, 5], Some(10)));
    });
}

/// Stores a run as copies are.
async fn store(unit: &Rc<UnitShell>, epoch: Epoch, run: Run) {
    unit.restore(epoch, Copied { runs: vec![run], ..Copied::default() }).await.expect("stored");
}

/// 768 KB of others.
fn bulk(first: u64) -> Run {
    let payloads = vec![vec![7; 256 << 10]; 3];
    Run {
        table: Table::of_payloads(&payloads),
        data: payloads.concat().into(),
        ..entries_of(OTHER, first..first + 3)
    }
}

#[test]
fn who_would_wait_for_room_with_entries_from_memory_answers_with_those_and_who_waits_has_none() {
    // They stay in memory for as long as a read has them, also when the cache is full of others: reads that wait would have any number of them.
    on_unit(Planted::NONE, async |unit| {
        store(&unit, Epoch(1), entries(5..8)).await;
        let unit = again(unit).await;
        store(&unit, Epoch(2), entries(0..3)).await;
        assert_eq!(shown_of(&unit, OTHER).await, (vec![], 3), "whose the records are is known from here on");
        let all = unit.cold_reads().hold_all().await;
        let env = unit.env().clone();
        let read = |from: u64| {
            let unit = Rc::clone(&unit);
            let read = ReadStream { ranges: vec![(from..10).into()], ..read_of(STREAM) };
            env.spawn(async move { parts_of(found(&unit, &read).await) })
        };
        let first: Vec<_> = (0..100).map(|_| read(0)).collect();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(unit.cold_reads().waiting(), 0);
        for read in first {
            assert_eq!(read.join().await, Some(((0..5).into(), vec![0])), "one run, and what is unwritten");
        }
        let rest: Vec<_> = (0..100).map(|_| read(5)).collect();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!((unit.cold_reads().waiting(), unit.cold_reads().held_bytes()), (100, all.count()));
        drop(all);
        for read in rest {
            assert_eq!(read.join().await, Some(((5..10).into(), vec![5])));
        }
        assert_eq!(read(0).join().await, Some(((0..10).into(), vec![0, 5])), "there is room");
        assert_eq!((unit.cold_reads().held_bytes(), unit.cold_reads().waiting()), (0, 0));
    });
}

#[test]
fn who_would_wait_for_room_with_heads_from_memory_answers_with_those() {
    on_unit(Planted::NONE, async |unit| {
        store(&unit, Epoch(1), entries(100..103)).await;
        for first in (200..400).step_by(10) {
            store(&unit, Epoch(1), bulk(first)).await;
        }
        // In another segment, which is open.
        store(&unit, Epoch(1), entries(0..3)).await;
        for wanted in [Wanted::EveryStream, Wanted::Stream(STREAM)] {
            let ranges = vec![(0..3).into(), (100..103).into()];
            let read = Rc::new(ReadStream { heads_only: true, wanted, ranges, ..read_of(STREAM) });
            // Whose the records are is known from here on.
            assert_eq!(found(&unit, &read).await.end(), Some(Addr(103)), "{wanted:?}");
            let all = unit.cold_reads().hold_all().await;
            let (asked, of) = (Rc::clone(&unit), Rc::clone(&read));
            let answer = unit.env().spawn(async move { found(&asked, &of).await.end() });
            unit.env().sleep(Duration::from_secs(1)).await;
            assert_eq!(unit.cold_reads().waiting(), 0, "{wanted:?}");
            assert_eq!(answer.join().await, Some(Some(Addr(3))), "{wanted:?}");
            drop(all);
        }
    });
}

#[test]
fn a_look_down_tells_what_comes_last_however_many_gaps_trims_have_left() {
    // An answer has so many parts at the most. Those that have no place are the lowest, of which the asker asks again.
    on_unit(Planted::NONE, async |unit| {
        // Half of it, nearly as many gaps as a unit may have.
        let end = 2 * limits::RUNS_MAX_COUNT as u64 - 100;
        let store = async |runs: Vec<Run>, trimmed: Vec<AddrRange>| {
            let copied = Copied { runs, trimmed, ..Copied::default() };
            unit.restore(Epoch(1), copied).await.expect("stored");
        };
        store(vec![entries(0..1)], Vec::new()).await;
        for first in (1..end).step_by(128) {
            store(vec![entries_of(OTHER, first..end.min(first + 128))], Vec::new()).await;
        }
        // Which of it is whose is known, so that no look at records ends the answer.
        let mut next = 0;
        while next < end {
            let read = ReadStream { ranges: vec![(next..end).into()], ..read_of(OTHER) };
            next = found(&unit, &read).await.end().expect("something").0;
        }
        let gaps: Vec<AddrRange> = (1..end).step_by(2).map(|addr| (addr..addr + 1).into()).collect();
        for gaps in gaps.chunks(64) {
            store(Vec::new(), gaps.to_vec()).await;
        }
        let mut below = end;
        while below > 0 {
            let range = (0..below).into();
            let read = ReadStream { last_only: true, ranges: vec![range], ..read_of(STREAM) };
            let found = found(&unit, &read).await;
            let (told, entries) = parts_of(found);
            assert_eq!(told.end.0, below, "what comes last is told");
            assert!(told.start.0 < below && (told.start.0 == 0) == (entries == [0]), "{told}: {entries:?}");
            below = told.start.0;
        }
    });
}

#[test]
fn the_first_entry_of_a_stream_is_shown_where_there_was_none() {
    run_rare(Planted::NONE);
}

#[test]
fn a_unit_that_passes_what_it_has_not_looked_at_is_found() {
    let found = std::panic::catch_unwind(|| run_rare(Planted::bug(PlantedBug::StreamFilterPresumes)));
    assert!(found.is_err());
}

#[test]
fn what_comes_late_is_shown_and_what_is_voided_or_trimmed_is_not() {
    run(Planted::NONE);
}

#[test]
fn a_unit_that_looks_only_once_past_holes_or_at_what_is_voided_is_found() {
    for bug in
        [PlantedBug::StreamBlockNotRenewed, PlantedBug::StreamLooksPastHoles, PlantedBug::StreamShowsVoided]
    {
        let found = std::panic::catch_unwind(|| run(Planted::bug(bug)));
        assert!(found.is_err(), "{bug:?}");
    }
}
