//! Connections within one machine.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::net::{Conn, NetError};

use crate::everywhere;

async fn pair(env: &Env) -> (Conn, Conn) {
    let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let client = env.connect(listener.local_addr()).await.expect("it listens");
    (client, listener.accept().await.expect("one came"))
}

#[test]
fn bytes_arrive_whole_and_in_order_whatever_their_size() {
    everywhere(|env, _| async move {
        let (client, mut server) = pair(&env).await;
        let large = Bytes::from(vec![7; 5 << 20]);
        client.writer.push(|buf| buf.put_slice(b"small"));
        client.writer.push_shared(large.clone());
        client.writer.push(|buf| buf.put_slice(b"last"));
        let mut got = BytesMut::new();
        while got.len() < large.len() + 9 {
            assert!(server.reader.read(&mut got).await.expect("open") > 0);
        }
        assert_eq!(
            (&got[..5], got[5..got.len() - 4] == large[..], &got[got.len() - 4..]),
            (&b"small"[..], true, &b"last"[..])
        );
        client.writer.below(1).await.expect("open");
    });
}

#[test]
fn a_reader_sees_the_last_bytes_and_then_the_end() {
    everywhere(|env, _| async move {
        let (client, mut server) = pair(&env).await;
        client.writer.push(|buf| buf.put_slice(b"bye"));
        drop(client);
        let mut got = BytesMut::new();
        while got.len() < 3 {
            assert!(server.reader.read(&mut got).await.expect("open") > 0);
        }
        assert_eq!(server.reader.read(&mut got).await, Ok(0));
    });
}

#[test]
fn a_port_in_use_and_a_port_where_nobody_listens_are_told_apart() {
    everywhere(|env, _| async move {
        let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let addr = listener.local_addr();
        assert_eq!(env.listen(addr).err(), Some(NetError::AddressInUse { addr }));
        assert_eq!(env.listen_soon(addr).await.err(), Some(NetError::AddressInUse { addr }));
        // Whoever has it ends a little later.
        let ends = env.spawn({
            let env = env.clone();
            async move {
                env.sleep(Duration::from_millis(20)).await;
                drop(listener);
            }
        });
        drop(env.listen_soon(addr).await.expect("it was given up"));
        ends.join().await;
        assert_eq!(env.connect(addr).await.err(), Some(NetError::Refused { addr }));
    });
}

#[test]
fn a_writer_to_a_peer_that_is_gone_learns_it() {
    everywhere(|env, _| async move {
        let (mut client, server) = pair(&env).await;
        drop(server);
        assert_eq!(client.reader.read(&mut BytesMut::new()).await, Ok(0));
        client.writer.close();
        assert!(client.writer.below(1).await.is_err());
    });
}
