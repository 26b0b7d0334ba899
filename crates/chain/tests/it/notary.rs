//! A notary: who knows, elsewhere, that a side that could not be told so has missed something.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{Chain, ChainOptions, Drives, Notary, OpenError, SideState, check};
use ithaca_env::Env;
use ithaca_env::sim::{Death, DriveFault};
use ithaca_env::sync::Notify;

use crate::drives::{append, tiny_drives};
use crate::mirrors::{A, B, check_keys, fault, states};
use crate::world::{World, identity, open_drives};

/// A notary in the memory of the test, which no crash takes.
#[derive(Default)]
struct Memory {
    generation: Rc<Cell<u64>>,
    /// While it does, what it is told is not remembered yet.
    hesitates: Rc<Cell<bool>>,
    goes_on: Rc<Notify>,
}

impl Notary for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn generation(&self) -> u64 {
        self.generation.get()
    }

    fn tell(&self, generation: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let (known, hesitates) = (Rc::clone(&self.generation), Rc::clone(&self.hesitates));
        let goes_on = Rc::clone(&self.goes_on);
        Box::pin(async move {
            goes_on.until(|| (!hesitates.get()).then_some(())).await;
            known.set(generation.max(known.get()));
        })
    }
}

/// The sides of one mirrored link, as they are given to an open.
async fn given(env: &Env, sides: &[&str], notary: &Rc<Memory>) -> Drives {
    let notary: Rc<dyn Notary> = Rc::clone(notary) as Rc<dyn Notary>;
    Drives::from(vec![open_drives(env, sides).await]).with_notary(notary)
}

/// A chain on both sides, with keys 0 to 4, closed.
async fn make(env: &Env, notary: &Rc<Memory>) {
    let drives = given(env, &[A, B], notary).await;
    let chain = Chain::create(env, drives, identity(), tiny_drives()).await.expect("created");
    append(env, &chain, 0..5).await;
    chain.close().await.expect("no fault");
}

async fn open(env: &Env, drives: Drives, options: &ChainOptions) -> Result<Chain, OpenError> {
    Chain::open(env, drives, Some(&identity()), options.clone()).await.map(|(chain, _)| chain)
}

/// Whether `B` is refused that was away while the log went on on `A` alone, and is given when that is away.
pub fn is_returned_side_refused(options: &ChainOptions) -> bool {
    let world = World::over(1, &[A, B]);
    let (env, options) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let notary = Rc::default();
        make(&env, &notary).await;
        let chain = open(&env, given(&env, &[A], &notary).await, &options).await.expect("A has everything");
        append(&env, &chain, 5..10).await;
        chain.close().await.expect("no fault");
        assert_eq!(notary.generation(), 2, "B is stale in the second generation");
        let opened = open(&env, given(&env, &[B], &notary).await, &options).await;
        match &opened {
            Err(OpenError::StaleDrive { drive, generation: 1, named_by, latest: 2 }) => {
                assert_eq!((drive.as_str(), named_by.as_str()), (B, "memory"));
            }
            Err(error) => panic!("{error}"),
            Ok(_) => return false,
        }
        let checked = check(given(&env, &[B], &notary).await).await;
        assert!(matches!(checked, Err(OpenError::StaleDrive { .. })), "{checked:?}");
        // Nothing was written: A is as it was, and makes B what it is.
        let chain = open(&env, given(&env, &[A, B], &notary).await, &options).await.expect("both");
        assert_eq!(states(&chain)[1], (B.to_owned(), SideState::Stale));
        check_keys(&chain, 0..10).await;
        true
    })
}

#[test]
fn a_side_that_was_away_is_refused_without_the_one_that_went_on() {
    assert!(is_returned_side_refused(&tiny_drives()));
}

#[test]
fn no_append_that_a_side_lacks_is_acknowledged_before_the_notary_knows() {
    let world = World::over(2, &[A, B]);
    let env = world.sim.env(world.process);
    let notary: Rc<Memory> = Rc::default();
    let (known, acknowledged) = (Rc::clone(&notary), Rc::new(Cell::new(false)));
    let (is_acknowledged, begun) = (Rc::clone(&acknowledged), Rc::new(Cell::new(false)));
    let (is_begun, fails) = (Rc::clone(&begun), Rc::new(Notify::default()));
    let failing = Rc::clone(&fails);
    env.clone().spawn(async move {
        let drives = given(&env, &[A, B], &known).await;
        let chain = Chain::create(&env, drives, identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..5).await;
        let ticket = failing.ticket();
        is_begun.set(true);
        failing.after(ticket).await;
        append(&env, &chain, 5..6).await;
        is_acknowledged.set(true);
    });
    let deadline = world.sim.now() + Duration::from_secs(60);
    world.sim.run_while(deadline, |_| !begun.get()).expect("it gets there");
    fault(&world.sim, B, DriveFault::FailWrites { count: u32::MAX });
    notary.hesitates.set(true);
    fails.ring();
    let later = world.sim.now() + Duration::from_secs(30);
    let _ = world.sim.run_while(later, |_| !acknowledged.get());
    assert_eq!((acknowledged.get(), notary.generation()), (false, 1), "the notary does not know yet");
    notary.hesitates.set(false);
    notary.goes_on.ring();
    world.sim.run_while(deadline, |_| !acknowledged.get()).expect("it is written");
    assert_eq!(notary.generation(), 2);
}

/// The log goes on on `A` alone until it is cut off at an I/O point. Then `B` is given alone: it is refused, or it lacks nothing. Returns whether
/// it was cut off, and whether `B` was refused.
fn cut_at(point: u64) -> (bool, bool) {
    let world = World::over(3, &[A, B]);
    let env = world.sim.env(world.process);
    let notary: Rc<Memory> = Rc::default();
    let known = Rc::clone(&notary);
    world.sim.block_on(world.process, async move { make(&env, &known).await });
    let acknowledged = Rc::new(Cell::new(0));
    let (count, known) = (Rc::clone(&acknowledged), Rc::clone(&notary));
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, Death::PowerCut);
    let env = world.sim.env(world.process);
    env.clone().spawn(async move {
        let chain =
            open(&env, given(&env, &[A], &known).await, &tiny_drives()).await.expect("A has everything");
        for key in 5..10 {
            append(&env, &chain, key..key + 1).await;
            count.set(count.get() + 1);
        }
    });
    let deadline = world.sim.now() + Duration::from_secs(60);
    let _ = world.sim.run_while(deadline, |sim| sim.is_up(world.process) && acknowledged.get() < 5);
    let is_cut = !world.sim.is_up(world.process);
    world.sim.end(world.process, Death::PowerCut);
    world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
    world.sim.restart(world.process);
    let env = world.sim.env(world.process);
    let count = acknowledged.get();
    let is_refused = world.sim.block_on(world.process, async move {
        match open(&env, given(&env, &[B], &notary).await, &tiny_drives()).await {
            Ok(_) => {
                assert_eq!(count, 0, "{count} appends are lost");
                false
            }
            Err(error) => {
                assert!(matches!(error, OpenError::StaleDrive { .. }), "{error}");
                true
            }
        }
    });
    (is_cut, is_refused)
}

#[test]
fn wherever_the_power_is_cut_a_side_that_lacks_what_was_acknowledged_is_refused() {
    let (mut point, mut accepted) = (1, 0);
    loop {
        let (is_cut, is_refused) = cut_at(point);
        accepted += u32::from(!is_refused);
        if !is_cut {
            assert!(is_refused, "all of it was acknowledged");
            break;
        }
        point += 1;
    }
    assert!(point > 20, "only {point} I/O points: nothing was cut off");
    assert!(accepted > 0, "before the log has gone on on A either may");
}
