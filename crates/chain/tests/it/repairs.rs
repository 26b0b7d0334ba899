//! What one side of a link lacks is written to it again, and what if that fails.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Chain, ChainOptions, SideState};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, Wrapper};

use crate::mirrors::{A, B, check_keys, closed_pair, place_of, states};
use crate::world::{open_drives, small_options};

/// A drive of which a test says which writes fail.
#[derive(Clone)]
struct Held {
    drive: Drive,
    /// So many writes to come fail.
    failing: Rc<Cell<u32>>,
}

impl Held {
    fn new(drive: &Drive) -> Self {
        Self { drive: drive.clone(), failing: Rc::default() }
    }

    /// The drive to give to a chain.
    fn as_drive(&self) -> Drive {
        Drive::new(Rc::new(self.clone()))
    }
}

impl Wrapper for Held {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn write(&self, offset: u64, data: Bytes, durability: Durability) -> DriveFuture<()> {
        if self.failing.get() > 0 {
            self.failing.set(self.failing.get() - 1);
            let (path, message) = (self.drive.name(), "not now".to_owned());
            return Box::pin(
                async move { Err(DriveError::Io { path, operation: "write", offset, message }) },
            );
        }
        self.drive.write(offset, data, durability)
    }
}

fn uncached() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// Opens what `closed_pair` left over drives that the test holds.
async fn open_held(env: &Env) -> (Chain, Vec<Held>) {
    let sides: Vec<Held> = open_drives(env, &[A, B]).await.iter().map(Held::new).collect();
    let drives: Vec<Drive> = sides.iter().map(Held::as_drive).collect();
    let (chain, _) = Chain::open(env, drives, None, uncached()).await.expect("it opens");
    env.sleep(Duration::from_secs(1)).await;
    (chain, sides)
}

#[test]
fn a_side_that_fails_what_a_scrub_writes_to_it_is_given_up() {
    // A record that only the other one has, and a header.
    for is_header in [false, true] {
        let world = closed_pair(46);
        let place = if is_header { 64 << 10 } else { place_of(&world, A, 12) / 4096 * 4096 };
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, sides) = open_held(&env).await;
            let harmed = Bytes::from(vec![7; 4096]);
            sides[0].drive.write(place, harmed, Durability::Durable).await.expect("no fault");
            sides[0].failing.set(1);
            chain.scrub().await.expect("it runs");
            assert_eq!(sides[0].failing.get(), 0, "something was written");
            let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
            assert_eq!(found, [SideState::Stale, SideState::Live]);
            check_keys(&chain, 40..80).await;
            chain.close().await.expect("a side is left");
        });
    }
}
