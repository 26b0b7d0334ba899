//! Volumes as block devices: several clients of one server, on simulated sockets and drives.

pub mod client;
mod room;
pub mod transactions;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use ithaca_env::Env;
use ithaca_env::sim::{Death, Random, Sim};
use ithaca_volume::nbd::{Server, ServerOptions};
use ithaca_volume::{Planted, Tx, TxOptions, Volume};

use crate::file::Programs;
use crate::world::{BLOCKS, MACHINE, create, open_drive, small_options, small_settings, within};
use client::{Client, ENOSPC, EPERM, FUA, NO_HOLE, READ, WRITE};

const PORT: u16 = 10809;
const SIZE: usize = BLOCKS as usize * 4096;

fn addr() -> SocketAddr {
    SocketAddr::new(MACHINE, PORT)
}

fn serve(env: &Env, volume: &Volume, planted: Planted) -> Server {
    let options = ServerOptions { planted, ..ServerOptions::new("disk") };
    Server::start(env, env.listen(addr()).expect("a free port"), volume.clone(), options)
}

/// A served volume that keeps so many versions.
async fn served(env: &Env, versions: u64) -> (Volume, Server) {
    let volume = create(env, small_options(versions)).await;
    let server = serve(env, &volume, Planted::default());
    (volume, server)
}

#[test]
fn bytes_are_where_they_were_written_whatever_the_alignment() {
    within(21, async |env| {
        let (_volume, _server) = served(&env, 0).await;
        let mut client = Client::open(&env, addr(), "").await;
        assert_eq!(client.size_bytes, SIZE as u64);
        let mut model = vec![0; SIZE];
        let mut rng = Random::new(21);
        for step in 1..400_u64 {
            let at = rng.below(SIZE as u64);
            let len = (1 + rng.below(20_000)).min(SIZE as u64 - at);
            let range = at as usize..(at + len) as usize;
            let flags = rng.pick(&[0, 0, 0, FUA]);
            match rng.below(5) {
                0 => {
                    client.zero(at, len as u32, flags | rng.pick(&[0, NO_HOLE])).await.expect("room");
                    model[range].fill(0);
                }
                1 => {
                    client.trim(at, len as u32).await.expect("room");
                    let whole = range.start.next_multiple_of(4096)..range.end / 4096 * 4096;
                    if whole.start < whole.end {
                        model[whole].fill(0);
                    }
                }
                2 => client.flush().await.expect("no fault"),
                _ => {
                    let data = vec![step as u8; len as usize];
                    client.write(at, &data, flags).await.expect("room");
                    model[range].copy_from_slice(&data);
                }
            }
            let at = rng.below(SIZE as u64 - 9000);
            let read = client.read(at, 9000).await.expect("no damage");
            assert!(read == model[at as usize..at as usize + 9000], "step {step}");
        }
        assert!(client.read(0, SIZE as u32).await.expect("no damage") == model);
    });
}

/// Two clients of NBD, two threads that have the volume as a file, and transactions write different bytes of the same blocks all the
/// time. Returns whether each found its own bytes again.
pub fn neighbours(planted: Planted) -> bool {
    let found = Rc::new(Cell::new(true));
    let all_found = Rc::clone(&found);
    within(22, async move |env| {
        let mut options = small_options(0);
        options.settings.planted = planted;
        let volume = create(&env, options).await;
        let _server = serve(&env, &volume, planted);
        let (programs, _file) = Programs::start(&env, &volume, false, planted);
        let mut tasks = Vec::new();
        for nth in 0..5_u64 {
            let (env, found, volume, programs) =
                (env.clone(), Rc::clone(&found), volume.clone(), programs.clone());
            tasks.push(env.clone().spawn(async move {
                let mut client = Client::open(&env, addr(), "disk").await;
                for round in 1..60_u8 {
                    let at = u64::from(round % 3) * 4096 + nth * 700;
                    let data = [round; 700];
                    match nth {
                        0 | 1 => client.write(at, &data, 0).await.expect("room"),
                        2 | 3 => programs.write(nth as u32, at, &data).await.expect("room"),
                        _ => transact(&volume, at, data).await,
                    }
                    let read = client.read(at, 700).await.expect("no damage");
                    found.set(found.get() && read == data);
                }
            }));
        }
        for task in tasks {
            task.join().await.expect("it ends");
        }
    });
    all_found.get()
}

async fn transact(volume: &Volume, at: u64, data: [u8; 700]) {
    let work = async |tx: &Tx| tx.write_part(at / 4096, (at % 4096) as usize, &data).await;
    volume.transact(TxOptions::default(), work).await.expect("it commits in the end");
}

#[test]
fn neighbours_in_one_block_do_not_lose_each_others_bytes() {
    assert!(neighbours(Planted::default()));
}

/// A life in which one client writes and another one flushes, a power cut, and what is there then. Returns whether everything
/// that was promised is.
pub fn promises_are_kept(flags: u16, flushes: bool, planted: Planted) -> bool {
    let sim = Sim::new(23);
    let process = sim.process("volume", MACHINE);
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = small_options(0);
        options.settings.planted = planted;
        let volume = create(&env, options).await;
        let server = serve(&env, &volume, planted);
        let mut client = Client::open(&env, addr(), "").await;
        let mut other = Client::open(&env, addr(), "").await;
        for round in 1..20_u8 {
            client.write(u64::from(round) * 4096, &[round; 4096], flags).await.expect("room");
        }
        if flushes {
            other.flush().await.expect("no fault");
        }
        std::mem::forget((server, volume));
    });
    sim.end(process, Death::PowerCut);
    sim.restart(process);
    let env = sim.env(process);
    sim.block_on(process, async move {
        let volume = Volume::open(&env, open_drive(&env).await, small_settings()).await.expect("it opens");
        let data = volume.read(1, 19).await.expect("no damage");
        data.chunks(4096).zip(1..20_u8).all(|(block, round)| block == [round; 4096])
    })
}

#[test]
fn what_was_flushed_on_any_connection_survives_a_power_cut() {
    assert!(promises_are_kept(0, true, Planted::default()));
}

#[test]
fn what_was_written_with_fua_survives_a_power_cut() {
    assert!(promises_are_kept(FUA, false, Planted::default()));
}

#[test]
fn a_write_that_is_neither_flushed_nor_stable_may_be_lost() {
    // Else the two tests before would hold whatever is answered when.
    assert!(!promises_are_kept(0, false, Planted::default()));
}

#[test]
fn exports_of_the_past_stay_as_they_are_and_cannot_be_written() {
    within(24, async |env| {
        let (volume, _server) = served(&env, 1000).await;
        let mut client = Client::open(&env, addr(), "").await;
        client.write(0, &[1; 4096], FUA).await.expect("room");
        let version = volume.info().version;
        volume.create_snapshot("one").await.expect("it is made");
        let mut now = Client::open(&env, addr(), "@now").await;
        client.write(0, &[2; 4096], FUA).await.expect("room");
        for export in [format!("disk@v={version}"), format!("@v={version}"), "@snapshot=one".into()] {
            let mut past = Client::open(&env, addr(), &export).await;
            assert_eq!(past.read(0, 4096).await, Ok(vec![1; 4096]), "{export}");
            assert_eq!(past.write(0, &[3; 4096], 0).await, Err(EPERM), "{export}");
            assert_eq!(past.trim(0, 4096).await, Err(EPERM), "{export}");
        }
        assert_eq!(now.read(0, 4096).await, Ok(vec![1; 4096]));
        let several = 1 << 8;
        assert!(client.flags & several != 0 && now.flags & several == 0, "two of `@now` differ");
        for export in ["else", "@v=99", "@v=-1", "@v=99999999999999999999999", "@snapshot=two", "@yesterday"]
        {
            assert!(Client::try_open(&env, addr(), export).await.is_none(), "{export}");
        }
        assert_eq!(client.read(0, 4096).await, Ok(vec![2; 4096]));
    });
}

#[test]
fn what_a_client_hears_of_the_newest_version_is_of_the_one_that_it_gets() {
    // A copy of one version that is called another one is found out when it is needed.
    within(29, async |env| {
        let (_volume, _server) = served(&env, 1000).await;
        let mut client = Client::open(&env, addr(), "").await;
        client.write(0, &[1; 4096], FUA).await.expect("room");
        let mut asking = Client::greeted(&env, addr()).await;
        assert_eq!(asking.name_of("@now").await, Some("disk@v=1".into()));
        client.write(0, &[2; 4096], FUA).await.expect("room");
        assert_eq!(asking.name_of("@now").await, Some("disk@v=1".into()));
        let mut copying = asking.choose("@now").await.expect("it is there");
        assert_eq!(copying.read(0, 4096).await, Ok(vec![1; 4096]));
        let mut asking = Client::greeted(&env, addr()).await;
        assert_eq!(asking.name_of("@v=1").await, Some("disk@v=1".into()));
        assert_eq!(asking.name_of("@now").await, Some("disk@v=2".into()), "by another name");
        assert_eq!(asking.name_of("").await, Some("disk".into()));
    });
}

#[test]
fn a_senseless_client_ends_its_own_connection_only() {
    within(25, async |env| {
        let (_volume, server) = served(&env, 0).await;
        let mut good = Client::open(&env, addr(), "").await;
        let mut bad = Client::open(&env, addr(), "").await;
        bad.send_senseless();
        assert_eq!(bad.answer().await, None);
        good.write(0, &[1; 100], 0).await.expect("room");
        assert_eq!(good.write(SIZE as u64 - 1, &[1; 2], 0).await, Err(ENOSPC));
        assert_eq!(good.read(0, 100).await, Ok(vec![1; 100]));
        assert_eq!(server.connections(), 1);
    });
}

#[test]
fn a_stop_answers_what_is_under_way_and_closes_every_connection() {
    within(26, async |env| {
        let (volume, server) = served(&env, 0).await;
        let mut client = Client::open(&env, addr(), "").await;
        let mut idle = Client::open(&env, addr(), "").await;
        for nth in 0..8 {
            client.send(WRITE, FUA, nth * 4096, 4096, &[1; 4096]);
        }
        // The first answer shows that the requests have come.
        assert_eq!(client.answer().await, Some(0));
        server.stop().await;
        let mut answers = Vec::new();
        while let Some(answer) = client.answer().await {
            answers.push(answer);
        }
        assert_eq!(answers, [0; 7]);
        assert_eq!(idle.answer().await, None);
        assert!(env.connect(addr()).await.is_err(), "nobody listens any more");
        assert_eq!(volume.read(7, 1).await.expect("no damage"), vec![1; 4096]);
    });
}

#[test]
fn a_client_that_takes_no_replies_holds_up_neither_others_nor_a_stop() {
    within(27, async |env| {
        let (_volume, server) = served(&env, 0).await;
        let mut deaf = Client::open(&env, addr(), "").await;
        for _ in 0..300 {
            deaf.send(READ, 0, 0, SIZE as u32, b"");
        }
        let mut good = Client::open(&env, addr(), "").await;
        good.write(0, &[1; 100], FUA).await.expect("room");
        assert_eq!(good.read(0, 100).await, Ok(vec![1; 100]));
        server.stop().await;
    });
}
