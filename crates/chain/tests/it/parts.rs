//! Groups that the sides of a link have not alike, while some of it cannot be read: nothing that a side has is written over with
//! what matches no checksum.

use std::ops::Range;

use ithaca_chain::{Chain, DamageKind, OpenError, ReadError, Recovered};
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::DriveFault;

use crate::drives::append;
use crate::mirrors::{A, B, check_keys, closed_pair, fault, place_of, read_small, rebuilt};
use crate::repairs::{
    Held, is_whole_alone, one_group, one_last_group, open_and_close, open_held, rot, uncached,
};
use crate::world::{MACHINE, World, open_drives};

/// The block in which the small record with this key begins.
fn block_of(world: &World, name: &str, key: u64) -> Range<u64> {
    let start = place_of(world, name, key) / 4096 * 4096;
    start..start + 4096
}

#[test]
fn what_a_side_cannot_read_for_now_is_not_written_over_by_a_scrub() {
    // The other side has not all that is in that block.
    let world = closed_pair(60);
    let block = block_of(&world, A, 9);
    rot(&world, &[(B, 9)]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        sides[0].unreadable.replace((block, 0));
        chain.scrub().await.expect("it runs");
        sides[0].unreadable.take();
        assert_eq!(read_small(&chain).await, Ok(true), "the first side has it again");
        chain.close().await.expect("no fault");
    });
    is_whole_alone(&world, A, 40);
    is_whole_alone(&world, B, 40);
}

#[test]
fn what_a_side_cannot_read_for_now_is_not_written_over_by_who_reads_what_lies_beside_it() {
    let world = closed_pair(66);
    let block = block_of(&world, A, 9);
    assert_eq!(block, block_of(&world, A, 8));
    rot(&world, &[(B, 9)]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        sides[0].unreadable.replace((block, 0));
        // Of each side first.
        for _ in 0..4 {
            let record = chain.read(8).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![9; 900]);
        }
        sides[0].unreadable.take();
        assert_eq!(read_small(&chain).await, Ok(true), "the first side has it again");
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
    is_whole_alone(&world, A, 40);
    is_whole_alone(&world, B, 40);
}

/// Opens both sides, of which the second reads this block once and then no more.
async fn open_and_read_once(
    env: &Env,
    block: Range<u64>,
) -> (Result<(Chain, Recovered), OpenError>, Vec<Held>) {
    let drives = open_drives(env, &[A, B]).await;
    let sides: Vec<Held> = drives.iter().map(|it| Held::new(env, it)).collect();
    sides[1].unreadable.replace((block, 1));
    let drives: Vec<Drive> = sides.iter().map(Held::as_drive).collect();
    (Chain::open(env, drives, None, uncached()).await, sides)
}

#[test]
fn what_a_side_cannot_read_for_now_is_not_written_over_by_an_open() {
    // It was read when the groups were looked for, and cannot be read when they are put together.
    let world = one_last_group(61);
    let block = block_of(&world, B, 2);
    rot(&world, &[(A, 2), (B, 5)]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (opened, sides) = open_and_read_once(&env, block).await;
        let (chain, _) = opened.expect("it opens");
        assert_eq!(sides[1].unreadable.take().1, 0, "it was read once");
        for key in (0..8).chain(0..8) {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![key as u8 + 1; 900], "key {key}");
        }
        chain.close().await.expect("no fault");
    });
    is_whole_alone(&world, A, 8);
    is_whole_alone(&world, B, 8);
}

#[test]
fn an_open_fails_where_the_head_of_a_group_that_counts_cannot_be_read_any_more() {
    // Only one side has it: what was shown as there could be gone at the next open.
    let world = one_last_group(65);
    let block = block_of(&world, B, 0);
    fault(&world.sim, A, DriveFault::BitRot { offset: block_of(&world, A, 0).start + 30, bit: 1 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (opened, _) = open_and_read_once(&env, block).await;
        assert!(matches!(opened, Err(OpenError::Drive(_))), "{:?}", opened.map(|(_, recovered)| recovered));
    });
    open_and_close(&world, &[A, B], async |_, _| ());
    is_whole_alone(&world, A, 8);
    is_whole_alone(&world, B, 8);
}

#[test]
fn a_stale_side_that_alone_has_the_head_of_a_group_keeps_what_it_has_of_it() {
    let (world, head) = one_group(62, &[A, B], 40..80);
    open_and_close(&world, &[A], async |_, _| ());
    fault(&world.sim, A, DriveFault::BitRot { offset: head + 30, bit: 1 });
    rot(&world, &[(A, 7), (B, 6)]);
    open_and_close(&world, &[A, B], async |env, chain| {
        rebuilt(env, chain).await;
        for key in (0..8).chain(0..8) {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![key as u8 + 1; 900], "key {key}");
        }
    });
    is_whole_alone(&world, B, 8);
}

#[test]
fn what_was_cut_while_a_side_was_away_is_not_kept_on_it_where_the_other_one_is_harmed() {
    let world = one_last_group(64);
    // A crash left a part of the group on one side alone, and the other one goes on without it.
    let head = block_of(&world, A, 0).start;
    rot(&world, &[(B, 6)]);
    fault(&world.sim, A, DriveFault::BitRot { offset: head + 30, bit: 1 });
    open_and_close(&world, &[A], async |env, chain| append(env, chain, 40..80).await);
    fault(&world.sim, A, DriveFault::BitRot { offset: head + 30, bit: 1 });
    open_and_close(&world, &[A, B], async |env, chain| {
        rebuilt(env, chain).await;
        check_keys(chain, 40..80).await;
    });
    let groups = |name| world.sim.peek_drive(world.sim.drive(MACHINE, name), head, 100 << 10);
    assert!(groups(A) == groups(B), "it has what the other one has");
}

#[test]
fn a_side_gets_what_another_has_of_a_group_of_which_a_record_is_lost_on_all() {
    for (alone, has) in [([A], 7), ([B], 5)] {
        let (world, _) = one_group(63, &[A, B], 40..41);
        rot(&world, &[(A, 2), (B, 2), (A, has), (B, 12 - has)]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            for names in [&[A, B][..], &alone] {
                let drives = open_drives(&env, names).await;
                let (chain, recovered) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
                let kinds: Vec<_> = recovered.damage.into_iter().map(|damage| damage.kind).collect();
                assert_eq!(kinds, [DamageKind::Data { keys: 2..3 }]);
                for key in (0..8).filter(|_| names.len() == 1) {
                    match chain.read(key).await {
                        Ok(record) => assert_eq!(record.expect("it is there").data, vec![key as u8 + 1; 900]),
                        Err(ReadError::Damaged { key: lost, .. }) => assert_eq!((key, lost), (2, 2)),
                        Err(other) => panic!("{other}"),
                    }
                }
                chain.abandon().await;
            }
        });
    }
}
