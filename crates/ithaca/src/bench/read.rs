//! Reads: random positions, or the whole log in order.

use std::ops::Range;
use std::rc::Rc;

use ithaca_env::task::TaskHandle;
use ithaca_log::client::{Append, Client};
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
    span: &Range<u64>,
    cold: bool,
) -> Vec<TaskHandle<()>> {
    let calls = if cold { CALLS_COLD } else { CALLS_RECENT }.min(window);
    let batch = |nth| window / calls + usize::from(nth < window % calls);
    (0..calls).map(|nth| read_random(meter, client.clone(), batch(nth), span.clone())).collect()
}

fn read_random(meter: &Rc<Meter>, client: Client, batch: usize, span: Range<u64>) -> TaskHandle<()> {
    let worker = Rc::clone(meter);
    meter.env().spawn(async move {
        let meter = worker;
        let mut random = Random::new(meter.env().random_u64());
        let mut positions = Vec::with_capacity(batch);
        while !meter.is_stopped() {
            positions.clear();
            positions.extend((0..batch).map(|_| LogPos(random.within(&span))));
            let started = meter.now();
            match client.read_many(&positions).await {
                Ok(entries) => meter.completed(started, meter.now(), entries.len() as u64),
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
