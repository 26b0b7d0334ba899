//! Reads: random positions, or the whole log in order.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::task::TaskHandle;
use ithaca_log::client::{Append, Client, ClientError};
use ithaca_log::pos::LogPos;

use super::append::{Random, payload};
use super::meter::Meter;
use crate::failure::Failure;

/// Bytes of entries that count as recent: what a unit surely still has in memory.
const RECENT_BYTES: u64 = 32 << 20;
/// Entries that a log needs before it is read; a shorter one is filled up first.
const ENTRIES_MIN: u64 = 4096;
/// Calls that a client's window of reads is spread over. An answer from memory takes all of them along; of two answers from
/// the drive one is on its way while the other is waited for. (A call for each read was tried: it costs half as much
/// processor time again, and no more reads are done.)
const CALLS_RECENT: usize = 1;
const CALLS_COLD: usize = 2;

/// What random reads are of: the last entries, which others are as soon as these are appended to, or the whole log.
pub struct Span {
    /// As it was at the beginning.
    began: Range<u64>,
    whole: bool,
    /// Up to where each of those who append has appended everything.
    ends: RefCell<Vec<u64>>,
}

impl Span {
    /// Begins with these positions, all of which can be read.
    pub fn new(began: Range<u64>, whole: bool) -> Self {
        Self { began, whole, ends: RefCell::default() }
    }

    /// What one more of those who append is to tell of its appends, in order.
    pub fn appender(self: &Rc<Self>) -> impl Fn(LogPos) + use<> {
        let (span, nth) = (Rc::clone(self), self.ends.borrow().len());
        self.ends.borrow_mut().push(self.began.end);
        move |pos| {
            let end = &mut span.ends.borrow_mut()[nth];
            *end = (*end).max(pos.0 + 1);
        }
    }

    /// What is to be read now, which is not empty: all that is appended to it is appended up to the end, as far as it is known here.
    fn now(&self) -> Range<u64> {
        let end = self.ends.borrow().iter().copied().min().unwrap_or(self.began.end);
        let start = if self.whole { self.began.start } else { self.began.start + (end - self.began.end) };
        start..end
    }

    /// Whether it is read while it is appended to: a position that somebody else has taken below the end may not be written yet.
    fn moves(&self) -> bool {
        !self.ends.borrow().is_empty()
    }
}

/// The positions to read: those of the last entries, or all with `whole`. Appends entries of `size` bytes first if the log
/// holds too few.
pub async fn prepare(control: &Client, size: usize, whole: bool) -> Result<Range<u64>, Failure> {
    let wanted = (RECENT_BYTES / size.max(1) as u64).max(ENTRIES_MIN);
    let wanted = if whole { ENTRIES_MIN } else { wanted.min(1 << 18) };
    let bounds = control.check().await?;
    let missing = wanted.saturating_sub(bounds.tail.0 - bounds.first.0);
    let entry = payload(size, control.id().0);
    let mut appends: Vec<Append> = Vec::new();
    for _ in 0..missing {
        control.room().await;
        appends.push(control.append(entry.clone()));
    }
    for append in appends {
        append.await?;
    }
    let bounds = control.check().await?;
    let first = if whole { bounds.first.0 } else { bounds.first.0.max(bounds.tail.0.saturating_sub(wanted)) };
    Ok(first..bounds.tail.0)
}

/// Starts workers that together keep `window` random reads within `span` in flight.
pub fn start(
    meter: &Rc<Meter>,
    client: &Client,
    window: usize,
    span: &Rc<Span>,
    cold: bool,
) -> Vec<TaskHandle<()>> {
    let calls = if cold { CALLS_COLD } else { CALLS_RECENT }.min(window);
    let batch = |nth| window / calls + usize::from(nth < window % calls);
    (0..calls).map(|nth| read_random(meter, client.clone(), batch(nth), Rc::clone(span))).collect()
}

fn read_random(meter: &Rc<Meter>, client: Client, batch: usize, span: Rc<Span>) -> TaskHandle<()> {
    let worker = Rc::clone(meter);
    meter.env().spawn(async move {
        let meter = worker;
        let mut random = Random::new(meter.env().random_u64());
        let mut positions = Vec::with_capacity(batch);
        while !meter.is_stopped() {
            let range = span.now();
            positions.clear();
            positions.extend((0..batch).map(|_| LogPos(random.within(&range))));
            let started = meter.now();
            match client.read_many(&positions).await {
                Ok(entries) => meter.completed(started, meter.now(), entries.len() as u64),
                Err(ClientError::Unwritten { .. }) if span.moves() => {}
                Err(error) => return meter.fail(error),
            }
        }
    })
}

/// Starts a worker that reads `span` in order, from the start of its own share on, round and round.
pub fn replay(
    meter: &Rc<Meter>,
    client: Client,
    span: Range<u64>,
    nth: usize,
    workers: usize,
) -> TaskHandle<()> {
    let worker = Rc::clone(meter);
    meter.env().spawn(async move {
        let meter = worker;
        let share = (span.end - span.start) / workers as u64;
        let mut next = span.start + share * nth as u64;
        while !meter.is_stopped() {
            let started = meter.now();
            match client.read_range(LogPos(next), LogPos(span.end)).await {
                Ok(entries) => {
                    meter.completed(started, meter.now(), entries.len() as u64);
                    next = entries.last().map_or(span.start, |last| last.pos.0 + 1);
                    if next >= span.end {
                        next = span.start;
                    }
                }
                Err(error) => return meter.fail(error),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recent_moves_with_the_slowest_of_those_who_append() {
        // It stayed where it was at the beginning, so that after a while the drive was read from.
        let span = Rc::new(Span::new(100..200, false));
        assert_eq!(span.now(), 100..200);
        let (one, other) = (span.appender(), span.appender());
        one(LogPos(1_000_000));
        assert_eq!(span.now(), 100..200, "what the other has taken before may not be written yet");
        other(LogPos(1_000_007));
        assert_eq!(span.now(), 999_901..1_000_001);
        // A try at a lower position that came to an end later.
        one(LogPos(500));
        assert_eq!(span.now(), 999_901..1_000_001);
    }

    #[test]
    fn the_whole_log_is_from_where_it_began_to_where_it_is_now() {
        let span = Rc::new(Span::new(100..200, true));
        span.appender()(LogPos(299));
        assert_eq!(span.now(), 100..300);
    }
}
