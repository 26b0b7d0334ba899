//! Sides that do not answer for a while: what they may have is not taken for lost, and they are not given up for what others find.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Chain, SideState};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveFuture, Wrapper};
use ithaca_env::sync::Notify;

use crate::mirrors::{A, B, check_keys, closed_pair, place_of, read_small, states};
use crate::repairs::uncached;
use crate::world::open_drives;

/// What happens when a byte is read, and how long the answer then takes.
struct Event {
    byte: u64,
    act: Box<dyn FnOnce()>,
    rest: Duration,
}

/// A drive that answers no read while a test keeps it silent.
#[derive(Clone)]
struct Mute {
    env: Env,
    drive: Drive,
    is_silent: Rc<Cell<bool>>,
    changed: Rc<Notify>,
    /// One after the other.
    events: Rc<RefCell<VecDeque<Event>>>,
}

impl Mute {
    fn new(env: &Env, drive: &Drive) -> Self {
        let (is_silent, changed, events) = Default::default();
        Self { env: env.clone(), drive: drive.clone(), is_silent, changed, events }
    }

    fn be_silent(&self, is_silent: bool) {
        self.is_silent.set(is_silent);
        self.changed.ring();
    }

    /// When this byte is read, after what was to come before, `act` comes, and the answer so much later.
    fn when_read(&self, byte: u64, rest: Duration, act: impl FnOnce() + 'static) {
        self.events.borrow_mut().push_back(Event { byte, act: Box::new(act), rest });
    }
}

impl Wrapper for Mute {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let it = self.clone();
        let is_next = |event: &Event| (offset..offset + len as u64).contains(&event.byte);
        let is_due = self.events.borrow().front().is_some_and(is_next);
        let event = if is_due { self.events.borrow_mut().pop_front() } else { None };
        Box::pin(async move {
            if let Some(event) = event {
                (event.act)();
                it.env.sleep(event.rest).await;
            }
            it.changed.until(|| (!it.is_silent.get()).then_some(())).await;
            it.drive.read(offset, len).await
        })
    }
}

/// Opens what `closed_pair` left.
async fn open_mute(env: &Env) -> (Chain, Mute, Mute) {
    let sides: Vec<Mute> = open_drives(env, &[A, B]).await.iter().map(|it| Mute::new(env, it)).collect();
    let drives: Vec<Drive> = sides.iter().map(|side| Drive::new(Rc::new(side.clone()))).collect();
    let (chain, _) = Chain::open(env, drives, None, uncached()).await.expect("it opens");
    env.sleep(Duration::from_secs(1)).await;
    (chain, sides[0].clone(), sides[1].clone())
}

/// Does this while others read for so many tenths of a second, so that a side that does not answer is not waited for.
async fn while_others_read(env: &Env, chain: &Chain, tenths: u32, work: impl Future<Output = ()> + 'static) {
    let work = env.spawn(work);
    for _ in 0..tenths {
        let chain = chain.clone();
        env.spawn(async move { check_keys(&chain, 60..61).await });
        env.sleep(Duration::from_millis(100)).await;
    }
    work.join().await.expect("it ends");
}

fn are_live(chain: &Chain) -> bool {
    states(chain).iter().all(|(_, state)| *state == SideState::Live)
}

#[test]
fn a_side_that_does_not_answer_itself_is_no_reason_not_to_wait_for_another() {
    let world = closed_pair(74);
    let place = place_of(&world, B, 12);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        second.when_read(place, Duration::from_secs(30), || ());
        let reader = chain.clone();
        let read = env.spawn(async move { read_small(&reader).await });
        // The other side has answered since the second one was asked.
        env.sleep(Duration::from_millis(100)).await;
        check_keys(&chain, 60..62).await;
        first.be_silent(true);
        while_others_read(&env, &chain, 350, async {}).await;
        first.be_silent(false);
        assert_eq!(read.join().await.expect("it ends"), Ok(true));
        assert!(are_live(&chain));
        chain.close().await.expect("no fault");
    });
}
