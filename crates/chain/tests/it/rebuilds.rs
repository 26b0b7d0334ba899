//! Sides that are being rebuilt while something else happens to their link.

use std::time::Duration;

use ithaca_chain::{Batch, Chain, ChainOptions};
use ithaca_env::Env;
use ithaca_env::drive::Drive;

use crate::drives::append;
use crate::mirrors::{A, B, check_keys};
use crate::world::{World, identity, open_named, small_options};

const C: &str = "chain-c";

fn options() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// A chain of a mirrored link and a plain one with keys 0 to 59, whose side `B` missed the last of them and is about to be rebuilt.
async fn with_stale_side(env: &Env) -> (Chain, [Drive; 3]) {
    let drives = [open_named(env, A).await, open_named(env, B).await, open_named(env, C).await];
    let [a, b, c] = drives.clone();
    let links = vec![vec![a.clone(), b.clone()], vec![c.clone()]];
    let chain = Chain::create(env, links, identity(), options()).await.expect("created");
    append(env, &chain, 0..25).await;
    chain.close().await.expect("no fault");
    let open =
        async |drives: Vec<Drive>| Chain::open(env, drives, None, options()).await.expect("it opens").0;
    let chain = open(vec![a, c]).await;
    append(env, &chain, 25..60).await;
    chain.close().await.expect("no fault");
    (open(drives.to_vec()).await, drives)
}

#[test]
fn a_link_is_removed_whose_side_is_being_rebuilt() {
    // Whatever the rebuild was at, it ends, and nothing is written any more to drives that are somebody else's by then.
    for step in 0..40 {
        let world = World::over(step, &[A, B, C]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, [_, b, c]) = with_stale_side(&env).await;
            if step % 2 == 0 {
                let release = Batch { release: std::iter::once(0..60).collect(), ..Batch::default() };
                chain.wait(chain.append(release).expect("room")).await.expect("no fault");
            }
            env.sleep(Duration::from_micros(100 * step)).await;
            let leaving = chain.drive_ids()[0];
            chain.remove_drive(leaving).await.expect("there is room for what is on it");
            let ours = chain.drive_ids();
            assert_eq!(ours.len(), 1, "both sides are gone");
            append(&env, &chain, 60..80).await;
            check_keys(&chain, if step % 2 == 0 { 60..80 } else { 0..80 }).await;
            chain.add_drive(b.clone()).await.expect("it is blank");
            append(&env, &chain, 80..100).await;
            check_keys(&chain, 60..100).await;
            chain.close().await.expect("no fault");
            let (chain, recovered) = Chain::open(&env, vec![b, c], None, options()).await.expect("it opens");
            assert_eq!(recovered.damage, []);
            check_keys(&chain, 60..100).await;
        });
    }
}
