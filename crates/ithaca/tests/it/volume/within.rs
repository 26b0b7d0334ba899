//! Programs that know nothing of transactions, within one: `NAME@tx=HANDLE`.

use std::path::Path;

use bytes::Bytes;
use ithaca_env::real;
use ithaca_volume::socket::{Client, ClientError, Status};
use ithaca_volume::{Heir, TxHandle, TxOptions};

use super::{Served, has, text, tool, volume};
use crate::harness::temp_dir;

impl Served {
    /// Begins a transaction, writes a block in it and releases it to anyone.
    fn released(&self) -> TxHandle {
        real::run(|env| async move {
            let client = Client::connect(&env, Path::new(&self.socket)).await.expect("it is served");
            let (tx, _) = client.begin(TxOptions::default()).await.expect("few are open");
            tx.write(0, Bytes::from_static(&[1; 4096])).await.expect("live");
            tx.release(Heir::Anyone).await.expect("live")
        })
    }

    /// Takes it over and commits.
    fn commit(&self, handle: TxHandle) -> Result<(), ClientError> {
        real::run(|env| async move {
            let client = Client::connect(&env, Path::new(&self.socket)).await?;
            client.take_over(handle).await?.0.commit().await.map(drop)
        })
    }
}

#[test]
fn qemu_and_libnbd_work_in_a_transaction_that_another_process_commits() {
    if !has(&["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let served = Served::start(&disk);
    let (now, handle) = (served.uri(""), served.released());
    let within = served.uri(&format!("disk@tx={handle}"));
    let write = "write -P 7 10000 300000";
    tool(&[
        "qemu-io",
        "-f",
        "raw",
        "-c",
        "read -P 1 0 4096",
        "-c",
        write,
        "-c",
        "read -P 7 10000 300000",
        &within,
    ]);
    assert!(tool(&["nbdinfo", &within]).contains("in a transaction"), "it was given back, and again");
    tool(&["qemu-io", "-f", "raw", "-c", "read -P 0 0 400000", &now]);
    std::fs::write(dir.path().join("few"), [9; 50_000]).expect("writable");
    tool(&["nbdcopy", text(&dir.path().join("few")), &within]);
    served.commit(handle).expect("nobody else was there");
    tool(&["qemu-io", "-f", "raw", "-c", "read -P 9 0 50000", "-c", "read -P 7 50000 260000", &now]);
    match served.commit(handle) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.status, Status::NoSuchHandle),
        other => panic!("{other:?}"),
    }
    // What is written beside it is in conflict with it.
    let handle = served.released();
    tool(&["qemu-io", "-f", "raw", "-c", "read 4096 4096", &served.uri(&format!("disk@tx={handle}"))]);
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 3 4096 4096", &now]);
    assert!(served.commit(handle).expect_err("a conflict").to_string().contains("block 1"));
    assert_eq!(served.stop(), Some(0));
    volume(&["check", text(&disk)]).expect(0);
}
