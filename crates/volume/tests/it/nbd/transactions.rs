//! Connections within a transaction that somebody has released: `NAME@tx=HANDLE`.

use ithaca_env::Env;
use ithaca_volume::{Durability, Heir, Planted, TxHandle, TxOptions, Version, Volume};

use super::client::Client;
use super::{addr, serve, served};
use crate::world::{block, create, number, small_options, within};

fn released(volume: &Volume) -> TxHandle {
    let tx = volume.begin(TxOptions::default()).expect("few are open");
    tx.write(0, block(7)).expect("live");
    tx.release(Heir::Anyone).expect("live")
}

async fn enter(env: &Env, handle: TxHandle) -> Option<Client> {
    Client::try_open(env, addr(), &format!("disk@tx={handle}")).await
}

#[test]
fn a_client_works_in_a_transaction_and_gives_it_back_when_it_disconnects() {
    within(31, async |env| {
        let (volume, _server) = served(&env, 0).await;
        volume.write(2, block(1), Durability::Stable).await.expect("room");
        let handle = released(&volume);
        let mut client = enter(&env, handle).await.expect("it was released");
        volume.write(2, block(2), Durability::Stable).await.expect("room");
        assert_eq!(number(&client.read(0, 4096).await.expect("live")), 7, "of the transaction");
        assert_eq!(client.read(8192, 8).await.expect("live"), 1_u64.to_le_bytes(), "of its snapshot");
        client.write(5000, &[9; 3000], 0).await.expect("live");
        assert_eq!(client.read(4990, 3020).await.expect("live")[..20], [&[0; 10][..], &[9; 10]].concat());
        client.zero(5010, 10, 0).await.expect("live");
        client.trim(0, 4096).await.expect("a hint");
        client.flush().await.expect_err("nothing is durable before the commit");
        assert!(enter(&env, handle).await.is_none(), "one connection at a time");
        let mut plain = Client::open(&env, addr(), "").await;
        assert_eq!(plain.read(5000, 4).await.expect("no damage"), [0; 4], "nobody else sees it");
        client.disconnect().await;
        assert!(volume.take_over(TxHandle(handle.0 ^ 1)).is_err());
        let tx = volume.take_over(handle).expect("by the same handle");
        let conflict = tx.commit().await.expect_err("what it has read was written").to_string();
        assert!(conflict.contains("block 2, bytes 0 to 16"), "only those bytes were read: {conflict}");
    });
}

#[test]
fn what_a_client_has_written_is_committed_by_who_released_it() {
    within(32, async |env| {
        let (volume, _server) = served(&env, 0).await;
        let handle = released(&volume);
        let mut client = enter(&env, handle).await.expect("it was released");
        client.write(3 * 4096 + 100, b"within", 0).await.expect("live");
        client.disconnect().await;
        let tx = volume.take_over(handle).expect("it was given back");
        assert_eq!(tx.commit().await, Ok(Some(Version(1))));
        let mut plain = Client::open(&env, addr(), "").await;
        assert_eq!(plain.read(3 * 4096 + 98, 8).await.expect("no damage"), b"\0\0within");
        assert!(enter(&env, handle).await.is_none(), "it has ended");
    });
}

#[test]
fn a_block_that_is_to_be_in_memory_is_not_read_for_that() {
    within(36, async |env| {
        let (volume, _server) = served(&env, 0).await;
        let handle = released(&volume);
        let mut client = enter(&env, handle).await.expect("it was released");
        client.cache(2 * 4096, 4096).await.expect("a hint");
        volume.write(2, block(1), Durability::Stable).await.expect("room");
        client.disconnect().await;
        let tx = volume.take_over(handle).expect("it was given back");
        assert_eq!(tx.commit().await, Ok(Some(Version(2))), "it does not depend on it");
    });
}

#[test]
fn a_transaction_of_which_a_clients_write_was_refused_does_not_commit() {
    within(37, async |env| {
        let (volume, _server) = served(&env, 0).await;
        // More than a commit has room for; past the end, which is looked at before anybody knows of a transaction.
        for (offset, len) in [(4096, 20 * 4096), (60 * 4096 - 10, 20)] {
            let handle = released(&volume);
            let mut client = enter(&env, handle).await.expect("it was released");
            assert_eq!(client.write(offset, &vec![1; len], 0).await, Err(super::ENOSPC));
            assert_eq!(number(&client.read(0, 4096).await.expect("it goes on")), 7);
            client.disconnect().await;
            let tx = volume.take_over(handle).expect("it was given back");
            let refused = tx.commit().await.expect_err("half of it is not there").to_string();
            assert!(refused.contains("a write"), "{refused}");
        }
        assert_eq!(volume.info().version, Version(0));
    });
}

/// Whether a transaction can be taken over after the client within it has died.
pub fn outlives_its_client(planted: Planted) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    within(33, async move |env| {
        let volume = create(&env, small_options(0)).await;
        let _server = serve(&env, &volume, planted);
        let handle = released(&volume);
        let mut client = enter(&env, handle).await.expect("it was released");
        client.write(0, &[1; 4096], 0).await.expect("live");
        drop(client);
        env.sleep(std::time::Duration::from_secs(1)).await;
        let outlives = volume.take_over(handle).is_ok();
        assert_eq!(volume.info().transactions, 0);
        assert_eq!(number(&volume.read(0, 1).await.expect("no damage")), 0);
        let _ = sender.send(outlives);
    });
    receiver.recv().expect("it ran")
}

#[test]
fn a_client_that_dies_takes_its_transaction_along() {
    assert!(!outlives_its_client(Planted::default()));
}

#[test]
fn a_client_that_only_asks_leaves_the_transaction_as_it_was_and_one_that_is_not_meant_is_refused() {
    within(34, async |env| {
        let (volume, _server) = served(&env, 0).await;
        let handle = released(&volume);
        let mut asking = Client::greeted(&env, addr()).await;
        assert!(asking.knows(&format!("disk@tx={handle}")).await);
        assert!(
            !asking.knows("disk@tx=12").await && !asking.knows(&format!("disk@tx={}", "x".repeat(32))).await
        );
        drop(asking);
        drop(volume.take_over(handle).expect("it is still there"));
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        let own = tx.release(Heir::User(0)).expect("live");
        assert!(enter(&env, own).await.is_none(), "nobody knows who a client of NBD is");
    });
}

#[test]
fn a_transaction_that_is_full_has_no_room() {
    within(35, async |env| {
        let (volume, _server) = served(&env, 0).await;
        let handle = released(&volume);
        let mut client = enter(&env, handle).await.expect("it was released");
        // The segments of this volume are so small that a commit has room for fewer blocks than it has.
        let answer = client.write(0, &vec![1; 60 * 4096], 0).await;
        assert_eq!(answer, Err(super::ENOSPC));
        client.read(0, 4096).await.expect("it goes on");
        client.disconnect().await;
    });
}
