//! Every stream reads back what was appended to it, whatever was lost between.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Dice, Domain, Speed};
use ithaca_log::client::Client;
use ithaca_log::detector::Timing;
use ithaca_log::pos::LogPos;

use super::header::BackStream;
use super::reader::Reads;
use super::sequencer::Sequencer;
use super::{BackClient, BackError};
use crate::fig::testbed::{Setup, Testbed, emulated};

const STREAMS: u64 = 5;
const WRITERS: u64 = 3;
const STEPS: u64 = 40;

/// What each stream is to hold, by position.
type Model = Rc<RefCell<BTreeMap<BackStream, BTreeMap<LogPos, Bytes>>>>;

fn stream(number: u64) -> BackStream {
    BackStream::new(number as u32).expect("a small number")
}

fn testbed(seed: u64) -> Testbed {
    Testbed::new(&Setup {
        units: 4,
        client_machines: 1,
        clients: WRITERS as usize,
        drive: emulated,
        registers: Speed::Ram,
        own_sequencer: true,
        segment_bytes: 1 << 20,
        timing: Timing::default(),
        seed,
    })
}

/// Has the first client of a small cluster do `work`.
fn run<F: Future<Output = ()> + 'static>(seed: u64, work: impl FnOnce(ithaca_env::Env, Client) -> F) {
    let testbed = testbed(seed);
    let (process, client) = testbed.client(0);
    testbed.sim.block_on(process, work(testbed.sim.env(process), client));
}

/// Appends, loses positions and writes what is no entry, and notes what is to be read.
async fn write(writer: BackClient, model: Model, (seed, number): (u64, u64)) {
    let draw = |step: u64, what: u64, bound: u64| {
        Dice::new(seed).below(Domain::User(number as u32), step, what, bound)
    };
    for step in 0..STEPS {
        let first = draw(step, 0, STREAMS);
        let streams: Vec<BackStream> =
            (first..=first + draw(step, 1, 3)).map(|it| stream(it % STREAMS)).collect();
        match draw(step, 2, 6) {
            0 => {
                writer.lose(&streams).await.expect("granted");
            }
            1 => {
                let (pos, _) =
                    writer.sequencer.grant(&writer.env, &writer.client, &streams).await.expect("granted");
                writer.write(pos, Bytes::from_static(b"\x01no header")).await.expect("written");
            }
            _ => {
                let payload = Bytes::from(format!("{number}.{step}"));
                let pos = writer.append(&streams, &payload).await.expect("appended");
                for stream in streams {
                    model.borrow_mut().entry(stream).or_default().insert(pos, payload.clone());
                }
            }
        }
    }
}

async fn check(client: &BackClient, model: &Model, together: usize) {
    let model = model.borrow().clone();
    for number in 0..STREAMS {
        let mut reader = client.reader(stream(number), together);
        reader.sync().await.expect("readable");
        let mut read = BTreeMap::new();
        while let Some((pos, payload)) = reader.read_next().await.expect("readable") {
            assert!(read.last_key_value().is_none_or(|(last, _)| *last < pos), "in the order of the log");
            read.insert(pos, payload);
        }
        assert_eq!(read, model.get(&stream(number)).cloned().unwrap_or_default(), "stream {number}");
    }
}

#[test]
fn every_stream_reads_back_what_was_appended_whatever_was_lost() {
    // Junk and entries without a header break the chain; what lies behind them must not be lost with them.
    for seed in 0..8 {
        let testbed = testbed(seed);
        let (process, client) = testbed.client(0);
        let env = testbed.sim.env(process);
        testbed.sim.block_on(process, async move {
            let kept = if seed % 2 == 0 { 4 } else { 1 };
            let (sequencer, model) = (Sequencer::new(kept), Model::default());
            let mut writers = Vec::new();
            for number in 0..WRITERS {
                let writer = BackClient::new(&env, client.clone(), Rc::clone(&sequencer)).await;
                writers.push(write(writer.expect("a layout"), Rc::clone(&model), (seed, number)));
            }
            ithaca_env::task::gather(writers, |()| false).await;
            let reader = BackClient::new(&env, client.clone(), sequencer).await.expect("a layout");
            check(&reader, &model, 1).await;
            check(&reader, &model, 64).await;
            // The next sequencer knows what the log holds, and the streams go on.
            let next = Sequencer::recovered(&client, kept).await.expect("readable");
            let writer = BackClient::new(&env, client.clone(), Rc::clone(&next)).await.expect("a layout");
            write(writer, Rc::clone(&model), (seed, WRITERS)).await;
            let reader = BackClient::new(&env, client, next).await.expect("a layout");
            check(&reader, &model, 1).await;
        });
    }
}

#[test]
fn a_reader_that_syncs_again_is_given_what_is_new_and_nothing_twice() {
    run(1, async |env, client| {
        let sequencer = Sequencer::new(4);
        let writer = BackClient::new(&env, client, sequencer).await.expect("a layout");
        let mut reader = writer.reader(stream(0), 1);
        for round in 0..5u64 {
            for number in 0..3 * round {
                writer.append(&[stream(number % 2)], &number.to_le_bytes()).await.expect("appended");
            }
            reader.sync().await.expect("readable");
            let mut read = Vec::new();
            while let Some((_, payload)) = reader.read_next().await.expect("readable") {
                read.push(u64::from_le_bytes(payload[..].try_into().expect("8 bytes")));
            }
            let expected: Vec<u64> = (0..3 * round).step_by(2).collect();
            assert_eq!(read, expected, "round {round}");
        }
    });
}

#[test]
fn an_entry_that_is_far_back_is_found_by_its_absolute_position() {
    // A delta that does not fit must not be cut, and must not cost a scan of 65,536 positions.
    run(2, async |env, client| {
        let writer = BackClient::new(&env, client.clone(), Sequencer::new(4)).await.expect("a layout");
        for number in 0..6u8 {
            writer.append(&[stream(0)], &[number]).await.expect("appended");
            if number % 2 == 0 {
                client.tokens(65_536).await.expect("granted");
            }
        }
        let mut reader = writer.reader(stream(0), 1);
        reader.sync().await.expect("readable");
        let mut read = Vec::new();
        while let Some((_, payload)) = reader.read_next().await.expect("readable") {
            read.push(payload[0]);
        }
        assert_eq!(read, [0, 1, 2, 3, 4, 5]);
        assert_eq!(reader.reads().scanned, 0);
    });
}

/// What a reader asks for in a stream of 20 entries among those of others, of which the one before the last is a hole.
async fn reads_with_hole(env: ithaca_env::Env, client: Client, kept: usize) -> Reads {
    let writer = BackClient::new(&env, client, Sequencer::new(kept)).await.expect("a layout");
    for number in 0..20 {
        for other in 1..10 {
            writer.append(&[stream(other)], b"other").await.expect("appended");
        }
        match number {
            18 => writer.lose(&[stream(0)]).await.expect("granted"),
            _ => writer.append(&[stream(0)], b"own").await.expect("appended"),
        };
    }
    let mut reader = writer.reader(stream(0), 1);
    reader.sync().await.expect("readable");
    let mut count = 0;
    while reader.read_next().await.expect("readable").is_some() {
        count += 1;
    }
    assert_eq!(count, 19);
    reader.reads()
}

#[test]
fn one_pointer_that_leads_to_a_hole_costs_a_scan_and_four_do_not() {
    run(3, async |env, client| {
        assert_eq!(reads_with_hole(env, client, 1).await.scanned, 10, "back to the entry before the hole");
    });
    run(3, async |env, client| {
        assert_eq!(reads_with_hole(env, client, 4).await.scanned, 0);
    });
}

#[test]
fn a_position_that_was_filled_is_not_written_and_an_entry_needs_a_stream() {
    run(4, async |env, client| {
        let writer = BackClient::new(&env, client.clone(), Sequencer::new(4)).await.expect("a layout");
        let (pos, _) = writer.sequencer.grant(&env, &client, &[stream(0)]).await.expect("granted");
        env.sleep(Duration::from_millis(1)).await;
        client.fill(pos).await.expect("filled");
        let late = writer.write(pos, Bytes::from_static(b"late")).await;
        assert!(matches!(late, Err(BackError::Taken { pos: at }) if at == pos), "{late:?}");
        let none = writer.append(&[], b"none").await.expect_err("refused");
        assert_eq!(none.to_string(), "an entry of 0 streams, expected 1 to 16");
    });
}
