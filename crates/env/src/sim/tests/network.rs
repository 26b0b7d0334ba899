//! Connections, and one test for each thing that befalls them.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::machine;
use crate::net::{Conn, Listener, NetError};
use crate::sim::{Death, LinkOptions, ProcessId, Sim, SimOptions};
use crate::{Env, Time};

const MS: Duration = Duration::from_millis(1);

struct Pair {
    sim: Sim,
    left: ProcessId,
    right: ProcessId,
}

fn pair(seed: u64, link: LinkOptions) -> Pair {
    let sim = Sim::with_options(seed, SimOptions { link, ..SimOptions::default() });
    let (left, right) = (sim.process("left", machine(1)), sim.process("right", machine(2)));
    Pair { sim, left, right }
}

fn right_addr() -> SocketAddr {
    SocketAddr::new(machine(2), 700)
}

async fn read_all(conn: &mut Conn, len: usize) -> Result<Bytes, NetError> {
    let mut buf = BytesMut::new();
    while buf.len() < len {
        if conn.reader.read(&mut buf).await? == 0 {
            break;
        }
    }
    Ok(buf.freeze())
}

impl Pair {
    fn connected(&self) -> (Conn, Conn, Listener) {
        let listener = self.sim.env(self.right).listen(right_addr()).expect("a free port");
        let env = self.sim.env(self.left);
        let left = self.sim.block_on(self.left, async move { env.connect(right_addr()).await });
        let left = left.expect("it listens");
        let (right, listener) = self.sim.block_on(self.right, async move {
            let conn = listener.accept().await;
            (conn, listener)
        });
        (left, right.expect("a caller"), listener)
    }
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|index| (index % 251) as u8).collect()
}

#[test]
fn bytes_arrive_whole_and_in_order_however_they_are_cut() {
    for seed in 0..10 {
        let link = LinkOptions {
            split_ppm: 500_000,
            short_read_ppm: 500_000,
            loss_ppm: 50_000,
            ..LinkOptions::default()
        };
        let pair = pair(seed, link);
        let (left, mut right, _listener) = pair.connected();
        let env = pair.sim.env(pair.left);
        let sent = pattern(200_000);
        let rest = sent.clone();
        env.clone().spawn(async move {
            let conn = left;
            for piece in rest.chunks(3_333) {
                conn.writer.push_shared(Bytes::copy_from_slice(piece));
                env.sleep(Duration::from_micros(10)).await;
            }
        });
        let got = pair.sim.block_on(pair.right, async move {
            let got = read_all(&mut right, 200_000).await;
            let end = right.reader.read(&mut BytesMut::new()).await;
            (got, end)
        });
        assert_eq!(got, (Ok(sent), Ok(0)), "and then the end, since the sender dropped it");
    }
}

#[test]
fn nobody_listening_is_refused_and_a_machine_that_is_not_there_times_out() {
    let pair = pair(1, LinkOptions::default());
    let env = pair.sim.env(pair.left);
    let refused = pair.sim.block_on(pair.left, {
        let env = env.clone();
        async move { env.connect(right_addr()).await.map(|_| ()) }
    });
    assert_eq!(refused, Err(NetError::Refused { addr: right_addr() }));
    let absent = SocketAddr::new(machine(9), 700);
    let timed_out = pair.sim.block_on(pair.left, async move { env.connect(absent).await.map(|_| ()) });
    assert!(matches!(timed_out, Err(NetError::Io { operation: "connect", .. })));
}

#[test]
fn a_port_is_taken_once_and_free_again_after_the_listener_or_its_process() {
    let pair = pair(1, LinkOptions::default());
    let env = pair.sim.env(pair.right);
    let listener = env.listen(right_addr()).expect("a free port");
    assert!(matches!(env.listen(right_addr()), Err(NetError::AddressInUse { .. })));
    drop(listener);
    let _listener = env.listen(right_addr()).expect("free again");
    pair.sim.restart(pair.right);
    assert!(pair.sim.env(pair.right).listen(right_addr()).is_ok());
    let chosen = env.listen(SocketAddr::new(machine(2), 0)).expect("some port");
    assert_ne!(chosen.local_addr().port(), 0);
}

#[test]
fn a_crashed_peer_is_heard_of_and_a_vanished_one_is_not() {
    for (death, heard) in [(Death::Kill, true), (Death::PowerCut, true), (Death::Vanish, false)] {
        let pair = pair(1, LinkOptions::default());
        let (mut left, _right, _listener) = pair.connected();
        pair.sim.end(pair.right, death);
        let env = pair.sim.env(pair.left);
        let end = pair.sim.block_on(pair.left, async move {
            env.timeout(10_000 * MS, left.reader.read(&mut BytesMut::new())).await
        });
        assert_eq!(end.is_ok(), heard, "{death:?}");
    }
}

#[test]
fn a_vanished_machine_that_is_back_answers_retransmissions_by_a_reset() {
    let pair = pair(1, LinkOptions::default());
    let (mut left, _right, _listener) = pair.connected();
    pair.sim.end(pair.right, Death::Vanish);
    left.writer.push(|buf| buf.extend_from_slice(b"anybody?"));
    pair.sim.run_for(100 * MS);
    pair.sim.restart(pair.right);
    let end = pair.sim.block_on(pair.left, async move { left.reader.read(&mut BytesMut::new()).await });
    assert_eq!(end, Err(NetError::Closed { addr: right_addr() }));
}

#[test]
fn a_cut_holds_up_one_direction_until_it_is_mended() {
    let pair = pair(1, LinkOptions::default());
    let (left, mut right, _listener) = pair.connected();
    pair.sim.cut(machine(1), machine(2));
    pair.sim.at(pair.sim.now() + 5000 * MS, |sim| sim.mend_all());
    left.writer.push(|buf| buf.extend_from_slice(b"late"));
    right.writer.push(|buf| buf.extend_from_slice(b"soon"));
    let (got, at) = pair.sim.block_on(pair.left, {
        let (mut left, env) = (left, pair.sim.env(pair.left));
        async move { (read_all(&mut left, 4).await.map(|_| left), env.now()) }
    });
    let _left = got.expect("the other way is open");
    assert!(at < Time::ZERO + 10 * MS);
    let late = pair.sim.block_on(pair.right, async move { read_all(&mut right, 4).await });
    assert_eq!(late, Ok(Bytes::from_static(b"late")));
    assert!(pair.sim.now() > Time::ZERO + 5000 * MS);
}

#[test]
fn a_connect_through_a_partition_hangs_until_the_caller_gives_up() {
    let pair = pair(1, LinkOptions::default());
    let _listener = pair.sim.env(pair.right).listen(right_addr()).expect("a free port");
    pair.sim.partition(machine(1), machine(2));
    let env = pair.sim.env(pair.left);
    let gave_up = pair
        .sim
        .block_on(pair.left, async move { env.timeout(500 * MS, env.connect(right_addr())).await.is_err() });
    assert!(gave_up);
}

#[test]
fn resets_cut_a_connection_in_the_middle_of_what_is_sent() {
    let mut in_the_middle = 0;
    for seed in 0..20 {
        let pair = pair(seed, LinkOptions { reset_ppm: 200_000, ..LinkOptions::default() });
        let (left, mut right, _listener) = pair.connected();
        let env = pair.sim.env(pair.left);
        env.clone().spawn(async move {
            for _ in 0..100 {
                left.writer.push_shared(pattern(1000));
                env.sleep(MS).await;
            }
        });
        let got = pair.sim.block_on(pair.right, async move {
            let mut buf = BytesMut::new();
            while right.reader.read(&mut buf).await.is_ok_and(|len| len > 0) {}
            buf.len()
        });
        assert!(got < 100_000);
        in_the_middle += u32::from(!got.is_multiple_of(1000));
    }
    assert!(in_the_middle > 10, "{in_the_middle} of 20");
}

#[test]
fn connections_can_be_reset_on_demand() {
    let pair = pair(1, LinkOptions::default());
    let (left, right, _listener) = pair.connected();
    left.writer.push_shared(pattern(100_000));
    pair.sim.settle();
    pair.sim.reset_connections(machine(2), machine(1));
    for (process, mut conn) in [(pair.left, left), (pair.right, right)] {
        let end = pair.sim.block_on(process, async move {
            let end = loop {
                match conn.reader.read(&mut BytesMut::new()).await {
                    Ok(0) => break Ok(()),
                    Ok(_) => {}
                    Err(why) => break Err(why),
                }
            };
            // Kept until the world ends, so that the other end hears of the reset and not of a close.
            std::mem::forget(conn);
            end
        });
        assert!(matches!(end, Err(NetError::Closed { .. })));
    }
}

#[test]
fn a_peer_that_does_not_read_fills_the_window_and_then_the_outbox() {
    let pair = pair(1, LinkOptions { window_bytes: 10_000, ..LinkOptions::default() });
    let (left, mut right, _listener) = pair.connected();
    left.writer.push_shared(pattern(50_000));
    pair.sim.run_for(10 * MS);
    assert_eq!(left.writer.queued_bytes(), 40_000);
    let got = pair.sim.block_on(pair.right, async move { read_all(&mut right, 50_000).await });
    assert_eq!(got, Ok(pattern(50_000)));
    assert_eq!(left.writer.queued_bytes(), 0);
}

#[test]
fn a_slow_link_takes_its_time() {
    let pair = pair(1, LinkOptions::default());
    let slow = LinkOptions { bytes_per_s: 1_000_000, ..LinkOptions::default() };
    pair.sim.set_link(machine(1), machine(2), slow);
    let (left, mut right, _listener) = pair.connected();
    left.writer.push_shared(pattern(100_000));
    pair.sim.block_on(pair.right, async move { read_all(&mut right, 100_000).await }).expect("no fault");
    assert!(pair.sim.now() > Time::ZERO + 100 * MS);
}

#[test]
fn a_flapping_link_delivers_in_the_end() {
    let pair = pair(1, LinkOptions::default());
    let (left, mut right, _listener) = pair.connected();
    pair.sim.flap(machine(1), machine(2), 50 * MS, 10);
    let env = pair.sim.env(pair.left);
    env.clone().spawn(async move {
        for _ in 0..100 {
            left.writer.push_shared(pattern(100));
            env.sleep(7 * MS).await;
        }
        std::future::pending::<()>().await;
    });
    let got = pair.sim.block_on(pair.right, async move { read_all(&mut right, 10_000).await });
    assert_eq!(got.map(|got| got.len()), Ok(10_000));
}

#[test]
fn a_process_connects_to_itself() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let echo = |env: Env| async move {
        let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let port = listener.local_addr().port();
        let mut caller = env.connect(SocketAddr::new([127, 0, 0, 1].into(), port)).await.expect("it listens");
        let mut called = listener.accept().await.expect("a caller");
        caller.writer.push(|buf| buf.extend_from_slice(b"ping"));
        let got = read_all(&mut called, 4).await;
        called.writer.push_shared(got.expect("no fault"));
        read_all(&mut caller, 4).await
    };
    let got = sim.block_on(node, echo(sim.env(node)));
    assert_eq!(got, Ok(Bytes::from_static(b"ping")));
}
