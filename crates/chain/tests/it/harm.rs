//! Reads that fail are no harm, and what is not harmed any more, or not needed, is not named.

use ithaca_chain::{Batch, Damage, DamageKind, ReadError};
use ithaca_env::sim::DriveFault;

use crate::drives::{THREE, append, put};
use crate::mirrors::fault;
use crate::unread::three_closed;
use crate::world::World;


#[test]
fn a_segment_that_is_used_again_has_nothing_of_the_harm_that_was_in_it() {
    // It would never be cleaned, and its drive not be removed: whoever wants that would be told to release what is there.
    let world = World::new(14);
    let chain = three_closed(&world, true);
    fault(&world.sim, THREE[0], DriveFault::BitRot { offset: (64 << 10) + (12 << 10), bit: 1 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        assert!(matches!(chain.read(0).await, Err(ReadError::Damaged { key: 0, .. })));
        let damage = chain.stats().damage;
        assert!(
            matches!(damage[..], [Damage { segment: 0, kind: DamageKind::Data { .. }, .. }]),
            "{damage:?}"
        );
        let release = || Batch { release: std::iter::once(0..30).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        // As much as two drives hold.
        append(&env, &chain, 30..90).await;
        assert!(chain.stats().links[0].segments_live > 1, "{:?}", chain.stats().links);
        assert_eq!(chain.stats().damage, [], "nothing of it is there");
        let release = || Batch { release: std::iter::once(30..60).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        chain.remove_drive(chain.drive_ids()[0]).await.expect("nothing on it is harmed");
        for key in 60..90 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

/// Has so many reads fail of a chain's first drive, of whose footers nothing is in memory, while all of its keys are read; then none fails.
fn read_while_reads_fail(count: u32) {
    let world = World::new(14);
    let chain = three_closed(&world, false);
    fault(&world.sim, THREE[0], DriveFault::FailReads { count });
    world.sim.block_on(world.process, async move {
        let mut failed = 0;
        for key in 0..30 {
            match chain.read(key).await {
                Ok(record) => assert!(record.is_some(), "{count} reads: key {key}"),
                Err(ReadError::Drive(_)) => failed += 1,
                Err(other) => panic!("{count} reads: {other}"),
            }
        }
        assert!(failed < 30, "{count} reads: the last key is read");
        for key in 0..30 {
            assert!(
                chain.read(key).await.expect("the drive reads again").is_some(),
                "{count} reads: key {key}"
            );
        }
        let damage = chain.stats().damage;
        assert!(damage.iter().all(|it| it.kind == DamageKind::Footer), "{count} reads: {damage:?}");
    });
}

#[test]
fn reads_of_a_footer_and_its_groups_that_fail_for_a_while_lose_nothing_of_the_segment() {
    // A group that was not read in time was taken for lost until the next start, and its keys for damaged.
    for count in (1..=40).chain((41..300).step_by(7)) {
        read_while_reads_fail(count);
    }
}
