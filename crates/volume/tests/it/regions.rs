//! Regions: every way into a volume shows one by its name, and keeps who uses it within it.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::Sim;
use ithaca_volume::socket::{self, ClientError, Status};
use ithaca_volume::{Durability, Planted, Region, TxOptions, Volume, VolumeError, VolumeOptions, nbd};

use crate::file::{BEGIN, END, ENOSPC, Programs};
use crate::nbd::client::Client;
use crate::world::{
    BLOCKS, MACHINE, begin, block, create, numbers, open_drive, small_options, small_settings, within,
};

const PATH: &str = "volume.sock";
const STABLE: Durability = Durability::Stable;

/// A volume in which each block holds its number, and regions `one`, of blocks 0 to 9, and `two`, of blocks 10 to 29.
async fn divided(env: &Env, planted: Planted) -> Volume {
    divided_on(env, open_drive(env).await, planted).await
}

async fn divided_on(env: &Env, drive: Drive, planted: Planted) -> Volume {
    let mut options = small_options(1000);
    options.settings.planted = planted;
    let volume = Volume::create(env, drive, options).await.expect("created");
    let data: Vec<u8> = (0..BLOCKS).flat_map(|nth| block(nth).to_vec()).collect();
    volume.write(0, data.into(), STABLE).await.expect("room");
    volume.create_region("one", 10).await.expect("it is made");
    volume.create_region("two", 20).await.expect("it is made");
    volume
}

async fn connect(env: &Env) -> socket::Client {
    socket::Client::connect(env, Path::new(PATH)).await.expect("it listens")
}

fn serve(env: &Env, volume: &Volume, planted: Planted) -> socket::Server {
    let listener = env.listen_local(Path::new(PATH)).expect("a free name");
    socket::Server::start(env, listener, volume.clone(), socket::ServerOptions { planted })
}

/// Whether every request of a client in a region that names a block behind it is refused.
pub fn a_client_stays_in_its_region(planted: Planted) -> bool {
    let sim = Sim::new(71);
    let process = sim.process("server", MACHINE);
    let env = sim.env(process);
    sim.block_on(process, async move {
        let volume = divided(&env, planted).await;
        let _server = serve(&env, &volume, planted);
        let client = connect(&env).await;
        let region = client.open_region("one").await.expect("it is there");
        assert_eq!(region, Region { name: "one".into(), blocks: 0..10 });
        let tx = client.begin(TxOptions::default()).await.expect("few are open").0;
        let answers = [
            client.read(9, 2).await.map(drop),
            client.write(10, block(0), STABLE).await.map(drop),
            client.discard(0..11, STABLE).await.map(drop),
            client.please_cache(10).await,
            tx.read(10, 1).await.map(drop),
            tx.read_part(10, 0..16).await.map(drop),
            tx.write(10, block(0)).await,
            tx.write_part(10, 0, Bytes::from_static(&[1])).await,
            tx.mark_accessed(u64::MAX, 0..16).await,
        ];
        let is_refused = |answer: &Result<(), ClientError>| match answer {
            Err(ClientError::Refused(refusal)) => refusal.status == Status::OutOfRange,
            _ => false,
        };
        let has_stayed = answers.iter().all(is_refused);
        has_stayed && numbers(&volume.read(10, 2).await.expect("no damage")) == [10, 11]
    })
}

#[test]
fn a_client_of_the_socket_reaches_no_block_behind_its_region() {
    assert!(a_client_stays_in_its_region(Planted::default()));
}

#[test]
fn transactions_in_a_region_name_its_blocks_and_conflict_with_whoever_writes_them() {
    within(72, async |env| {
        let volume = divided(&env, Planted::default()).await;
        let _server = serve(&env, &volume, Planted::default());
        let (client, whole) = (connect(&env).await, connect(&env).await);
        client.open_region("two").await.expect("it is there");
        let tx = client.begin(TxOptions::default()).await.expect("few are open").0;
        assert_eq!(numbers(&tx.read(3, 2).await.expect("no damage")), [13, 14]);
        tx.write(0, block(100)).await.expect("room");
        whole.write(14, block(200), STABLE).await.expect("room");
        match tx.commit().await {
            Err(ClientError::Refused(refusal)) => {
                assert_eq!(refusal.conflict.expect("where").0, 4, "its own number of the block");
                assert!(refusal.words.starts_with("block 4,"), "{}", refusal.words);
            }
            other => panic!("{other:?}"),
        }
        // A transaction that is handed on spans both: each names blocks by its own region.
        let tx = client.begin(TxOptions::default()).await.expect("few are open").0;
        tx.write(0, block(101)).await.expect("room");
        let handle = tx.release(ithaca_volume::Heir::Anyone).await.expect("it is let go");
        whole.open_region("one").await.expect("it is there");
        let tx = whole.take_over(handle).await.expect("it is there").0;
        tx.write(0, block(102)).await.expect("room");
        tx.commit().await.expect("nobody else writes");
        assert_eq!(numbers(&volume.read(0, 1).await.expect("no damage")), [102]);
        assert_eq!(numbers(&volume.read(10, 1).await.expect("no damage")), [101]);
    });
}

#[test]
fn an_export_of_a_region_has_its_bytes_and_no_others() {
    within(73, async |env| {
        let volume = divided(&env, Planted::default()).await;
        let addr = std::net::SocketAddr::new(MACHINE, 10809);
        let listener = env.listen(addr).expect("a free port");
        let _server = nbd::Server::start(&env, listener, volume.clone(), nbd::ServerOptions::new("disk"));
        let mut region = Client::open(&env, addr, "disk/two").await;
        let mut past = Client::open(&env, addr, "/two@now").await;
        assert_eq!((region.size_bytes, past.size_bytes), (20 * 4096, 20 * 4096));
        assert_eq!(region.read(4096, 4096).await, Ok(block(11).to_vec()));
        region.write(100, &[7; 8192], 0).await.expect("room");
        region.zero(19 * 4096, 4096, 0).await.expect("room");
        region.trim(18 * 4096, 4096).await.expect("room");
        assert!(region.write(20 * 4096 - 1, &[1; 2], 0).await.is_err(), "past its end");
        assert_eq!(past.read(0, 4096).await, Ok(block(10).to_vec()));
        let data = volume.read(0, BLOCKS).await.expect("no damage");
        let bytes = 10 * 4096 + 100..12 * 4096 + 100;
        assert!(data[bytes.clone()].iter().all(|byte| *byte == 7));
        assert_eq!(data[..10 * 4096], (0..10).flat_map(|nth| block(nth).to_vec()).collect::<Vec<u8>>());
        assert_eq!(numbers(&data[27 * 4096..31 * 4096]), [27, 0, 0, 30]);
        for export in ["disk/three", "other/two", "disk/", "two"] {
            assert!(Client::try_open(&env, addr, export).await.is_none(), "{export}");
        }
    });
}

#[test]
fn a_region_that_somebody_works_in_is_not_removed() {
    within(76, async |env| {
        let volume = divided(&env, Planted::default()).await;
        let _server = serve(&env, &volume, Planted::default());
        let addr = std::net::SocketAddr::new(MACHINE, 10809);
        let listener = env.listen(addr).expect("a free port");
        let _nbd = nbd::Server::start(&env, listener, volume.clone(), nbd::ServerOptions::new("disk"));
        let export = Client::open(&env, addr, "disk/one").await;
        let client = connect(&env).await;
        client.open_region("one").await.expect("it is there");
        let region = volume.region("one").expect("it is there");
        let (_programs, file) = Programs::start_with(&env, &volume, false, Some(region), Planted::default());
        let in_use = |users: usize| Err(format!("region \"one\" is in use, by {users}"));
        let delete = async || volume.delete_region("one").await.map_err(|error| error.to_string());
        assert_eq!(delete().await, in_use(3));
        export.disconnect().await;
        assert_eq!(delete().await, in_use(2));
        file.stop().await;
        assert_eq!(delete().await, in_use(1));
        assert_eq!(numbers(&volume.read(1, 1).await.expect("no damage")), [1], "nothing was given up");
        client.open_region("two").await.expect("it is there");
        assert_eq!(delete().await, Ok(()));
    });
}

/// Hands over writes until the next one has to wait for room.
async fn fill_queue(volume: &Volume) {
    let mut is_done = true;
    while is_done {
        let mut write = Box::pin(volume.write(30, block(30), Durability::Acknowledged));
        is_done = poll_fn(|context| Poll::Ready(write.as_mut().poll(context).is_ready())).await;
    }
}

fn refusal<T>(answer: Result<T, ClientError>) -> Option<Status> {
    match answer {
        Ok(_) => None,
        Err(ClientError::Refused(refusal)) => Some(refusal.status),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn nobody_opens_a_region_while_it_is_removed() {
    within(77, async |env| {
        // So many that they are not looked at in one go.
        let blocks = (1 << 20) + 1;
        let options = VolumeOptions { blocks, ..small_options(1000) };
        let volume = create(&env, options).await;
        volume.create_region("one", blocks).await.expect("it is made");
        volume.write(blocks - 1, block(7), STABLE).await.expect("room");
        let _server = serve(&env, &volume, Planted::default());
        let client = connect(&env).await;
        let removal = begin(volume.delete_region("one")).await;
        assert_eq!(refusal(client.open_region("one").await), Some(Status::NoSuchSnapshot));
        let again = volume.delete_region("one").await;
        assert_eq!(again, Err(VolumeError::NoSuchRegion { name: "one".into() }));
        // Whoever removes it has gone.
        drop(removal);
        client.open_region("one").await.expect("it is there");
        assert_eq!(numbers(&client.read(blocks - 1, 1).await.expect("no damage")), [7]);
        drop(client);
        env.sleep(Duration::from_secs(2)).await;
        volume.delete_region("one").await.expect("nobody shows it");
        assert_eq!(numbers(&volume.read(blocks - 1, 1).await.expect("no damage")), [0]);
    });
}

#[test]
fn the_name_of_a_region_is_free_once_its_removal_is_on_its_way() {
    within(79, async |env| {
        let volume = divided(&env, Planted::default()).await;
        // It waits for the drive.
        let removal = begin(volume.delete_region("one")).await;
        assert_eq!(volume.create_region("one", 5).await.expect("the gap").blocks, 0..5);
        removal.await.expect("it was there");
        assert_eq!(volume.region("one").expect("the new one").blocks, 0..5);
    });
}

#[test]
fn a_region_stays_while_a_write_to_it_is_under_way_or_a_transaction_has_written_to_it() {
    within(78, async |env| {
        let volume = divided(&env, Planted::default()).await;
        let _server = serve(&env, &volume, Planted::default());
        let client = connect(&env).await;
        client.open_region("one").await.expect("it is there");
        let in_use = Err(VolumeError::RegionInUse { name: "one".into(), users: 1 });
        fill_queue(&volume).await;
        let writing = begin(client.write(2, block(102), STABLE)).await;
        client.open_region("two").await.expect("it is there");
        assert_eq!(volume.delete_region("one").await, in_use, "a write is under way");
        writing.await.expect("room");
        client.open_region("one").await.expect("it is there");
        let handed_on = client.begin(TxOptions::default()).await.expect("few are open").0;
        handed_on.write(1, block(101)).await.expect("room");
        client.open_region("two").await.expect("it is there");
        assert_eq!(volume.delete_region("one").await, in_use, "a transaction of who works elsewhere by now");
        let handle = handed_on.release(ithaca_volume::Heir::Anyone).await.expect("it is let go");
        assert_eq!(volume.delete_region("one").await, in_use, "a transaction that nobody has");
        volume.take_over(handle).expect("it is there").commit().await.expect("no conflict");
        assert_eq!(numbers(&volume.read(0, 3).await.expect("no damage")), [0, 101, 102]);
        assert_eq!(volume.delete_region("one").await, Ok(()));
        assert_eq!(numbers(&volume.read(0, 3).await.expect("no damage")), [0, 0, 0]);
    });
}

#[test]
fn a_file_of_a_region_has_its_bytes_also_in_a_transaction() {
    within(74, async |env| {
        let volume = divided(&env, Planted::default()).await;
        let region = volume.region("two").expect("it is there");
        let (programs, _server) =
            Programs::start_with(&env, &volume, false, Some(region), Planted::default());
        assert_eq!(programs.read(1, 0, 4096).await, Ok(block(10)));
        assert_eq!(programs.read(1, 20 * 4096, 4096).await, Ok(Bytes::new()), "past its end");
        assert_eq!(programs.write(1, 20 * 4096, &[1; 10]).await, Err(ENOSPC));
        programs.write(1, 4096, &block(100)).await.expect("room");
        // A transaction reads what is durable.
        volume.flush().await.expect("no fault");
        programs.control(1, BEGIN, &[0; 8]).await.expect("it is in none");
        programs.write(1, 2 * 4096, &block(101)).await.expect("room");
        assert_eq!(programs.read(1, 4096, 8192).await.map(|data| numbers(&data)), Ok(vec![100, 101]));
        programs.control(1, END, &[]).await.expect("nobody else writes");
        assert_eq!(numbers(&volume.read(9, 5).await.expect("no damage")), [9, 10, 100, 101, 13]);
    });
}

#[test]
fn regions_are_durable_and_what_was_in_a_removed_one_is_gone_but_for_old_versions() {
    within(75, async |env| {
        let drive = open_drive(&env).await;
        let volume = divided_on(&env, drive.clone(), Planted::default()).await;
        let before = volume.snapshot().version();
        let taken = volume.create_region("one", 1).await;
        assert_eq!(taken, Err(VolumeError::RegionTaken { name: "one".into() }));
        let too_long = volume.create_region("three", 31).await;
        assert_eq!(too_long, Err(VolumeError::NoGap { blocks: 31, longest: 30 }));
        volume.delete_region("one").await.expect("it is there");
        assert_eq!(volume.delete_region("one").await, Err(VolumeError::NoSuchRegion { name: "one".into() }));
        volume.close().await.expect("no fault was planted");
        let volume = Volume::open(&env, drive, small_settings()).await.expect("it opens");
        assert_eq!(volume.regions(), [Region { name: "two".into(), blocks: 10..30 }]);
        let now = numbers(&volume.read(0, 11).await.expect("no damage"));
        assert_eq!(now, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10]);
        let then = volume.at(before).expect("it is kept").read(0, 11).await.expect("no damage");
        assert_eq!(numbers(&then), (0..11).collect::<Vec<_>>());
        assert_eq!(volume.create_region("three", 10).await.expect("the gap").blocks, 0..10);
    });
}
