//! Appends entries of one size, a window of them in flight, to no stream or to several in turn.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::task::TaskHandle;
use ithaca_log::client::{AppendTo, Client, ClientError};
use ithaca_log::pos::{LogPos, StreamId};

use super::meter::Meter;

/// Appends that were begun together.
struct Begun {
    at: Time,
    append: AppendTo,
}

/// `count` streams of one client of a bench: an entry in each of them, then again.
pub fn streams(client: &Client, count: u32) -> Vec<StreamId> {
    (0..count).map(|nth| StreamId::of_name(&format!("bench {} {nth}", client.id()))).collect()
}

/// Starts a worker that keeps `window` appends of `size` bytes in flight, each to the next one of `streams`, if there are any. `done` is told
/// where they stand, in the order in which they began: when it is told of one, all before it are done.
pub fn start(
    meter: &Rc<Meter>,
    client: Client,
    window: usize,
    size: usize,
    streams: Vec<StreamId>,
    done: impl Fn(LogPos) + 'static,
) -> TaskHandle<()> {
    let worker = Rc::clone(meter);
    meter.env().spawn(async move {
        let meter = worker;
        let entry = payload(size, client.id().0);
        let mut in_flight: VecDeque<Begun> = VecDeque::with_capacity(window);
        let mut next = 0;
        loop {
            let at = meter.now();
            while in_flight.len() < window && !meter.is_stopped() {
                let stream = streams.get(next % streams.len().max(1)).map_or(&[][..], std::slice::from_ref);
                in_flight.push_back(Begun { at, append: client.append_to(stream, entry.clone()) });
                next += 1;
            }
            if in_flight.is_empty() {
                return;
            }
            if let Err(error) = poll_fn(|cx| take_finished(cx, &meter, &mut in_flight, &done)).await {
                return meter.fail(error);
            }
        }
    })
}

/// Takes what has finished from the front: a batch finishes together, so one look at the clock serves it.
fn take_finished(
    cx: &mut Context<'_>,
    meter: &Meter,
    in_flight: &mut VecDeque<Begun>,
    done: &impl Fn(LogPos),
) -> Poll<Result<(), ClientError>> {
    let (mut now, mut since, mut count) = (None, Time::ZERO, 0);
    while let Some(front) = in_flight.front_mut() {
        let Poll::Ready(result) = Pin::new(&mut front.append).poll(cx) else { break };
        let at = front.at;
        in_flight.pop_front();
        match result {
            Ok(placed) => done(placed.pos),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let now = *now.get_or_insert_with(|| meter.now());
        if at != since && count > 0 {
            meter.completed(since, now, count);
            count = 0;
        }
        since = at;
        count += 1;
    }
    match now {
        Some(now) => {
            meter.completed(since, now, count);
            Poll::Ready(Ok(()))
        }
        None => Poll::Pending,
    }
}

/// Bytes that no drive or file system can make smaller, different for each `seed`.
pub fn payload(size: usize, seed: u64) -> Bytes {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes()).flatten();
    words.take(size).collect()
}

/// A stream of numbers that look random (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Begins with `seed`.
    pub fn new(seed: u64) -> Self {
        // Zero would stay zero for ever.
        Self(seed | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// The next number in `[start, end)`, which is not empty.
    pub fn within(&mut self, range: &std::ops::Range<u64>) -> u64 {
        let span = u128::from(range.end - range.start);
        range.start + ((u128::from(self.next()) * span) >> 64) as u64
    }
}
