//! What a process and a machine can do at most, where that is limited: messages of a processor, bytes that a machine receives.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::machine;
use crate::Time;
use crate::net::Conn;
use crate::sim::{LinkOptions, ProcessId, Sim, SimOptions};

const US: Duration = Duration::from_micros(1);
const LATENCY: Duration = Duration::from_micros(25);

/// A world without chance in time.
fn even(options: SimOptions) -> SimOptions {
    let link = LinkOptions {
        latency: LATENCY,
        jitter: Duration::ZERO,
        split_ppm: 0,
        short_read_ppm: 0,
        ..LinkOptions::default()
    };
    SimOptions { link, clock_drift_ppm: 0, ..options }
}

/// Connections of `count` machines to one.
fn star(sim: &Sim, count: u8) -> (ProcessId, Vec<(ProcessId, Conn, Conn)>) {
    let hub = sim.process("hub", machine(1));
    let addr = SocketAddr::new(machine(1), 700);
    let listener = sim.env(hub).listen(addr).expect("a free port");
    let mut rays = Vec::new();
    let mut listener = Some(listener);
    for ray in 0..count {
        let process = sim.process("ray", machine(2 + ray));
        let env = sim.env(process);
        let calling = sim.block_on(process, async move { env.connect(addr).await });
        let accepting = listener.take().expect("it is given back");
        let (accepted, given_back) = sim.block_on(hub, async move {
            let conn = accepting.accept().await;
            (conn, accepting)
        });
        listener = Some(given_back);
        rays.push((process, calling.expect("it listens"), accepted.expect("a caller")));
    }
    (hub, rays)
}

/// When `len` bytes have come to `conn`, since `from`.
fn arrival(sim: &Sim, process: ProcessId, mut conn: Conn, len: usize, from: Time) -> Duration {
    sim.block_on(process, async move {
        let mut buf = BytesMut::new();
        while buf.len() < len {
            conn.reader.read(&mut buf).await.expect("no fault");
        }
    });
    sim.now().since(from)
}

#[test]
fn messages_leave_one_after_the_other_if_they_cost_their_process_time() {
    let sim = Sim::with_options(1, even(SimOptions::default()));
    let (hub, mut rays) = star(&sim, 2);
    sim.set_cpu_per_message(hub, 100 * US);
    let from = sim.now();
    for (_, _, accepted) in &rays {
        accepted.writer.push(|out| out.extend_from_slice(b"one"));
        accepted.writer.push(|out| out.extend_from_slice(b"two"));
        // It belongs to the message before.
        accepted.writer.push_shared(Bytes::from_static(b"data"));
    }
    let (second, conn, _kept) = rays.pop().expect("two rays");
    let (first, other, _kept_too) = rays.pop().expect("two rays");
    let at = [arrival(&sim, first, other, 10, from), arrival(&sim, second, conn, 10, from)];
    let sent = [200 * US, 400 * US].map(|sent| sent + LATENCY);
    for (at, sent) in at.into_iter().zip(sent) {
        assert!(at >= sent && at < sent + US, "{at:?}, expected {sent:?} and the time of a few bytes");
    }
}

#[test]
fn a_process_that_makes_messages_handles_nothing_else_meanwhile() {
    let sim = Sim::with_options(1, even(SimOptions::default()));
    let (hub, mut rays) = star(&sim, 1);
    sim.set_cpu_per_message(hub, 100 * US);
    let (_, _conn, accepted) = rays.pop().expect("a ray");
    let env = sim.env(hub);
    let woke = sim.block_on(hub, async move {
        let from = env.now();
        for _ in 0..10 {
            accepted.writer.push(|out| out.extend_from_slice(b"message"));
        }
        env.sleep(10 * US).await;
        env.now().since(from)
    });
    assert_eq!(woke, 1000 * US);
}

#[test]
fn a_machine_receives_as_fast_as_it_can_however_many_send() {
    const LEN: usize = 125_000;
    for (limit, expected_us) in [(None, [100, 100]), (Some(125_000_000), [1000, 2000])] {
        let options = SimOptions { receive_bytes_per_s: limit, ..SimOptions::default() };
        let sim = Sim::with_options(1, even(options));
        let (hub, rays) = star(&sim, 2);
        let from = sim.now();
        let mut arrivals = Vec::new();
        for (_, conn, _) in &rays {
            conn.writer.push_shared(Bytes::from(vec![1; LEN]));
        }
        let (mut kept, mut readers) = (Vec::new(), Vec::new());
        for (_, conn, accepted) in rays {
            kept.push(conn);
            readers.push(accepted);
        }
        for accepted in readers {
            arrivals.push(arrival(&sim, hub, accepted, LEN, from));
        }
        let expected = expected_us.map(|us| us * US + LATENCY);
        for (at, expected) in arrivals.into_iter().zip(expected) {
            // On a link of 10 Gb/s it begins to come in 100 us before its last byte.
            assert!(at >= expected && at <= expected + US, "{limit:?}: {at:?}, expected {expected:?}");
        }
    }
}

#[test]
fn a_limited_world_of_one_seed_has_one_trace() {
    let run = |seed, limits: bool| {
        let mut options = SimOptions::default();
        if limits {
            options.cpu_per_message = 5 * US;
            options.receive_bytes_per_s = Some(125_000_000);
        }
        let sim = Sim::with_options(seed, options);
        let (hub, rays) = star(&sim, 3);
        let mut kept = Vec::new();
        for (_, conn, accepted) in rays {
            for round in 0..20 {
                conn.writer.push(|out| out.extend_from_slice(&[round; 100]));
                conn.writer.push_shared(Bytes::from(vec![round; 3000]));
            }
            arrival(&sim, hub, accepted, 62_000, Time::ZERO);
            kept.push(conn);
        }
        sim.trace_hash()
    };
    assert_eq!(run(1, true), run(1, true));
    assert_ne!(run(1, true), run(2, true));
    assert_ne!(run(1, true), run(1, false));
}
