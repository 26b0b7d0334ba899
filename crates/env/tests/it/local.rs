//! Sockets by their paths.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what the door leaves in the file system is looked at without it"
)]

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use ithaca_env::memory::MemoryError;
use ithaca_env::net::{Conn, LocalError};
use ithaca_env::real;
use ithaca_env::sim::{Death, Sim};

use crate::everywhere;

#[test]
fn bytes_go_both_ways_and_each_end_knows_who_the_other_is() {
    everywhere(|env, dir| async move {
        let path = dir.join("socket");
        let listener = env.listen_local(&path).expect("a free name");
        let mut client = env.connect_local(&path).await.expect("it listens");
        let mut server = listener.accept().await.expect("one came");
        let seen = server.credentials().expect("a local connection");
        assert_eq!(Some(seen), client.credentials(), "both are this process");
        assert_eq!(seen.user, env.user());
        let mut got = BytesMut::new();
        client.writer.push(|out| out.put_slice(b"there"));
        while got.len() < 5 {
            assert!(server.reader.read(&mut got).await.expect("open") > 0);
        }
        server.writer.push(|out| out.put_slice(b"back"));
        drop(server);
        while client.reader.read(&mut got).await.expect("open") > 0 {}
        assert_eq!(&got[..], b"thereback");
    });
}

/// Sends a byte from one end to the other.
async fn send_byte(from: &Conn, to: &mut Conn) {
    from.writer.push(|out| out.put_u8(1));
    let mut got = BytesMut::new();
    assert_eq!(to.reader.read(&mut got).await, Ok(1));
}

#[test]
fn memory_is_passed_with_the_first_bytes_and_stays_when_its_maker_has_gone() {
    everywhere(|env, dir| async move {
        let path = dir.join("socket");
        let listener = env.listen_local(&path).expect("a free name");
        let mut client = env.connect_local(&path).await.expect("it listens");
        let mut server = listener.accept().await.expect("one came");
        let (memory, handle) = env.share_memory(8192).expect("there is some");
        client.writer.pass(handle);
        send_byte(&client, &mut server).await;
        let passed = server.reader.passed().expect("it came along").open(8192).expect("sealed");
        assert!(server.reader.passed().is_none(), "one comes, once");
        memory.copy_in(8190, b"xy");
        assert_eq!((passed.len_bytes(), &passed.copy_out(8189, 3)[..]), (8192, &b"\0xy"[..]));
        send_byte(&server, &mut client).await;
        assert!(client.reader.passed().is_none(), "nothing came along");
        drop((client, memory));
        passed.copy_in(0, b"z");
        assert_eq!(&passed.copy_out(0, 1)[..], b"z");
    });
}

#[test]
fn what_is_sent_after_the_memory_is_read_too() {
    // The system gives no more at once than the bytes that the memory came with: what stands behind them would never be announced again.
    everywhere(|env, dir| async move {
        let listener = env.listen_local(&dir.join("socket")).expect("a free name");
        let client = env.connect_local(&dir.join("socket")).await.expect("it listens");
        let mut server = listener.accept().await.expect("one came");
        client.writer.pass(env.share_memory(4096).expect("there is some").1);
        for byte in *b"abc" {
            client.writer.push(|out| out.put_u8(byte));
            env.sleep(Duration::from_millis(1)).await;
        }
        let mut got = BytesMut::new();
        while got.len() < 3 {
            let read = env.timeout(Duration::from_secs(5), server.reader.read(&mut got)).await;
            assert!(matches!(read, Ok(Ok(1..))), "{got:?} of abc: {read:?}");
        }
        assert!(server.reader.passed().is_some());
    });
}

#[test]
fn memory_of_a_size_that_nobody_wants_is_refused() {
    everywhere(|env, dir| async move {
        let listener = env.listen_local(&dir.join("socket")).expect("a free name");
        let client = env.connect_local(&dir.join("socket")).await.expect("it listens");
        let mut server = listener.accept().await.expect("one came");
        client.writer.pass(env.share_memory(8192).expect("there is some").1);
        send_byte(&client, &mut server).await;
        let refused = server.reader.passed().expect("it came along").open(4096).err();
        assert_eq!(refused, Some(MemoryError::Size { found: 8192, page: 4096, max: 4096 }));
        // One that nobody asks for goes with its connection.
        let client = env.connect_local(&dir.join("socket")).await.expect("it listens");
        let mut server = listener.accept().await.expect("one came");
        client.writer.pass(env.share_memory(4096).expect("there is some").1);
        send_byte(&client, &mut server).await;
    });
}

#[test]
fn a_listener_that_lives_is_left_alone_and_one_that_is_gone_is_not_there() {
    everywhere(|env, dir| async move {
        let path = dir.join("socket");
        assert!(matches!(env.connect_local(&path).await.err(), Some(LocalError::Refused { .. })));
        let listener = env.listen_local(&path).expect("a free name");
        assert!(matches!(env.listen_local(&path).err(), Some(LocalError::InUse { .. })));
        drop(listener);
        assert!(matches!(env.connect_local(&path).await.err(), Some(LocalError::Refused { .. })));
        env.listen_local(&path).expect("free again");
    });
}

#[test]
fn a_connection_by_address_does_not_say_who_is_there() {
    everywhere(|env, _| async move {
        let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let client = env.connect(listener.local_addr()).await.expect("it listens");
        assert_eq!(client.credentials(), None);
    });
}

#[test]
fn a_process_that_has_died_leaves_its_name_to_the_next() {
    let sim = Sim::new(1);
    let machine = [10, 0, 0, 1].into();
    let (server, client) = (sim.process("server", machine), sim.process("client", machine));
    sim.set_user(client, 7);
    let path = std::path::Path::new("socket");
    let listener = sim.env(server).listen_local(path).expect("a free name");
    sim.end(server, Death::Kill);
    drop(listener);
    let env = sim.env(client);
    sim.block_on(client, async move {
        assert!(env.connect_local(path).await.is_err(), "nobody listens");
        let listener = env.listen_local(path).expect("the name is free");
        let conn = env.connect_local(path).await.expect("it listens");
        assert_eq!(conn.credentials().map(|seen| seen.user), Some(7));
        drop(listener);
    });
}

#[test]
fn only_the_user_gets_in_and_what_a_dead_listener_left_is_replaced() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let path = dir.path().join("socket");
    // What a process that was killed leaves: a socket that nobody listens at.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a free name"));
    real::run(|env| async move {
        let _listener = env.listen_local(&path).expect("nobody listens");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = path.with_file_name("other");
        let foreign = std::os::unix::net::UnixListener::bind(&other).expect("a free name");
        assert!(matches!(env.listen_local(&other).err(), Some(LocalError::InUse { .. })), "it lives");
        drop(foreign);
        let file = path.with_file_name("file");
        std::fs::write(&file, b"precious").expect("writable");
        assert!(matches!(env.listen_local(&file).err(), Some(LocalError::NotASocket { .. })));
        assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
        let long = path.with_file_name("x".repeat(120));
        assert!(matches!(env.listen_local(&long).err(), Some(LocalError::TooLong { max: 107, .. })));
    });
}
