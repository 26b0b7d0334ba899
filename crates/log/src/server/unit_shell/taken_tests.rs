//! What is said of addresses that were taken, where the record that is there cannot be read.

use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{ChainId, ChainOptions, Identity, Label, Table};
use ithaca_env::drive::{Drive, Durability, OpenDrive};
use ithaca_env::net::Conn;
use ithaca_env::sim::Sim;
use ithaca_env::task::{Ended, race};

use super::*;
use crate::pos::{ClientId, RequestId, RequestNo};
use crate::server::answers::Answers;
use crate::server::tasks::Tasks;
use crate::wire::{Head, Reply, next_frame};

/// An entry at each of these addresses.
fn entries(epoch: Epoch, addrs: Range<u64>) -> Run {
    let (addr, request) = (Addr(addrs.start), RequestNo(addrs.start));
    let payloads: Vec<String> = addrs.map(|addr| format!("the entry of {addr}")).collect();
    Run {
        first_key: addr.0,
        version: epoch.0,
        kind: RunKind::Data,
        meta: EntryMeta::new(ClientId(1), addr, request).to_bytes(),
        table: Table::of_payloads(&payloads),
        data: payloads.concat().into(),
    }
}

fn chain_options() -> ChainOptions {
    ChainOptions { capacity_bytes: 64 << 20, segment_bytes: 1 << 20, ..ChainOptions::default() }
}

fn start(env: &Env, chain: Chain, recovered: ithaca_chain::Recovered) -> Rc<UnitShell> {
    let leases = Leases::not_needed(env);
    UnitShell::start(env, chain, recovered, UnitOptions::default(), leases).expect("it starts").0
}

/// A unit that was started anew, and whose only entry, at address 2, is on its drive; or is lost. It knows that epoch 2 has come.
async fn restarted(env: &Env, is_harmed: bool) -> Rc<UnitShell> {
    let open = OpenDrive { path: "chain".into(), create_bytes: Some(64 << 10), read_only: false };
    let drive = env.open_drive(open).await.expect("a drive");
    let identity = Identity { id: ChainId([7; 16]), label: Label::new("unit 1").expect("short") };
    let chain =
        Chain::create(env, drive.clone(), identity.clone(), chain_options()).await.expect("it is made");
    let unit = start(env, chain, ithaca_chain::Recovered::default());
    let copied = Copied { runs: vec![entries(Epoch(1), 2..3)], ..Copied::default() };
    unit.restore(Epoch(1), copied).await.expect("stored");
    unit.chain().clone().close().await.expect("closed");
    if is_harmed {
        flip(&drive, b"the entry of 2").await;
    }
    let opened = Chain::open(env, drive, Some(&identity), chain_options()).await;
    let (chain, recovered) = opened.expect("it was closed in order");
    let unit = start(env, chain, recovered);
    unit.step(Input::Listed { epoch: Epoch(2), stripes: Vec::new() });
    unit
}

/// Flips a bit of what is on the drive.
async fn flip(drive: &Drive, what: &[u8]) {
    let bytes = drive.read(0, drive.size_bytes() as usize).await.expect("readable");
    let at = bytes.windows(what.len()).position(|window| window == what).expect("it is there");
    let block = at / 4096 * 4096;
    let mut harmed = bytes[block..block + 4096].to_vec();
    harmed[at - block] ^= 1;
    drive.write(block as u64, Bytes::from(harmed), Durability::Durable).await.expect("writable");
}

/// What somebody on a connection is told who asks in an epoch.
async fn told(env: &Env, epoch: Epoch, ask: impl FnOnce(ReplyRoute)) -> Reply {
    let listener = env.listen(([10, 0, 0, 1], 0).into()).expect("a free port");
    let Conn { mut reader, writer: _writer } = env.connect(listener.local_addr()).await.expect("it is there");
    let there = listener.accept().await.expect("it came");
    let tasks = Rc::new(Tasks::default());
    ask(ReplyRoute::new(&Answers::new(there.writer, &tasks), Head::new(RequestId(1), epoch)));
    let mut bytes = BytesMut::new();
    loop {
        reader.read(&mut bytes).await.expect("an answer");
        if let Some(frame) = next_frame(&mut bytes).expect("a frame") {
            return Reply::decode(&frame).expect("a reply");
        }
    }
}

/// Runs `test` in a simulated process.
fn run(test: impl AsyncFnOnce(Env) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("unit", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move { test(env).await });
}

#[test]
fn a_write_that_stored_its_free_part_does_not_say_that_it_stored_nothing() {
    run(async |env| {
        let unit = restarted(&env, true).await;
        let write = |addrs: Range<u64>| {
            let unit = Rc::clone(&unit);
            move |route| unit.write(Route::Reply(route), entries(Epoch(2), addrs))
        };
        let damaged = Reply::Refusal(Refusal::Damaged { addr: Addr(2) });
        assert_eq!(told(&env, Epoch(2), write(2..3)).await, damaged, "it stored nothing");
        let answer = told(&env, Epoch(2), write(0..4)).await;
        assert_eq!(answer, Reply::Refusal(Refusal::Failed), "it stored three entries");
        assert_eq!(unit.stored_parts((0..9).into()), [(0..4).into()]);
        // A fill says what is the matter: nobody takes it for one that did nothing.
        let fill = |route| unit.fill(route, vec![(2..6).into()]);
        assert_eq!(told(&env, Epoch(2), fill).await, damaged);
    });
}

#[test]
fn what_is_read_of_taken_addresses_is_one_of_the_cold_reads() {
    // Else many fills of what is stored hold a megabyte each, however much that is together.
    run(async |env| {
        let unit = restarted(&env, false).await;
        let (shell, most) = (Rc::clone(&unit), Cell::new(0));
        let fill = told(&env, Epoch(2), move |route| shell.fill(route, vec![(2..3).into()]));
        let watch = async {
            loop {
                most.set(unit.cold_reads.held_bytes().max(most.get()));
                env.sleep(Duration::from_micros(1)).await;
            }
        };
        let Ended::First(answer) = race(fill, watch).await;
        assert!(most.get() > 0, "it has room while the drive is read");
        let Reply::Filled(Filled { taken }) = answer else { panic!("{answer:?}") };
        let whose = Taken::Data { client: ClientId(1), request: RequestNo(2), stride: 1 };
        assert_eq!(taken, [Outcome { addr: Addr(2), count: 1, taken: whose }]);
        assert_eq!(unit.cold_reads.held_bytes(), 0);
    });
}
