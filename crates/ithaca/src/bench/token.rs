//! Takes positions from the sequencer. Those that are in flight together are asked for in one message, as an appending
//! client does for what it has queued.

use std::rc::Rc;

use ithaca_env::task::TaskHandle;
use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;

use super::meter::Meter;
use crate::failure::Failure;

/// Starts a worker that takes `window` positions at a time.
pub fn start(meter: &Rc<Meter>, client: Client, window: usize) -> TaskHandle<()> {
    let worker = Rc::clone(meter);
    meter.env().spawn(async move {
        let meter = worker;
        let count = u32::try_from(window).unwrap_or(u32::MAX);
        while !meter.is_stopped() {
            let started = meter.now();
            match client.tokens(count).await {
                Ok(taken) => {
                    meter.completed(started, meter.now(), u64::from(count));
                    meter.unwritten.borrow_mut().insert(taken.start.0..taken.end.0);
                }
                Err(error) => return meter.fail(error),
            }
        }
    })
}

/// Trims every position that was taken, so that no reader of the log waits for them. What an epoch's end has taken back is no position any more.
pub async fn give_back(meter: &Meter, control: &Client) -> Result<(), Failure> {
    let taken: Vec<_> = meter.unwritten.borrow().ranges().collect();
    let tail = control.check().await?.tail.0;
    for range in taken.into_iter().filter(|range| range.start < tail) {
        control.trim_range(LogPos(range.start)..LogPos(range.end.min(tail))).await?;
    }
    Ok(())
}
