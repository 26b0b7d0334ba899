//! Clients that each have one request under way, until so many are made: how long their reads take.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::Time;
use ithaca_env::sim::{Dice, Domain};

use super::load::Bench;

/// Of all that is drawn.
pub const SEED: u64 = 1;
/// The threads of the papers' loads.
pub const CLIENTS: u64 = 8;
/// Of their requests so many in a hundred are reads, "9 to 1".
pub const READS_PERCENT: u64 = 90;

/// What the `number`th draw of a kind gives, below `bound`.
pub fn draw(what: u32, number: u64, bound: u64) -> u64 {
    Dice::new(SEED).below(Domain::User(what), 0, number, bound)
}

/// Mean time of the reads among these requests, in microseconds of virtual time. `request` makes the one of a number, and says whether it
/// was a read. Panics if there was none.
pub fn read_latency_us<Made: Future<Output = bool> + 'static>(
    bench: &Bench,
    numbers: Range<u64>,
    request: impl Fn(u64) -> Made + 'static,
) -> f64 {
    let next = Rc::new(Cell::new(numbers.start));
    let reads: Rc<RefCell<Vec<u64>>> = Rc::default();
    let left = Rc::new(Cell::new(CLIENTS));
    let request = Rc::new(request);
    for _ in 0..CLIENTS {
        let (next, reads, left) = (Rc::clone(&next), Rc::clone(&reads), Rc::clone(&left));
        let (env, request) = (bench.env(), Rc::clone(&request));
        bench.env().spawn(async move {
            while next.get() < numbers.end {
                let number = next.replace(next.get() + 1);
                let began = env.now();
                let is_read = request(number).await;
                if is_read {
                    reads.borrow_mut().push(env.now().since(began).as_nanos() as u64);
                }
                if env.now() == began {
                    // What takes no time at all must not keep the others from their turn.
                    env.yield_now().await;
                }
            }
            left.set(left.get() - 1);
        });
    }
    bench.run_while(Time::MAX, move || left.get() > 0);
    let reads = reads.take();
    assert!(!reads.is_empty(), "some requests are reads");
    reads.iter().sum::<u64>() as f64 / reads.len() as f64 / 1e3
}
