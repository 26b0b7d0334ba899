//! Programs of two versions with one object, of which the older one does not know all fields that the newer one writes.

use serde::{Deserialize, Serialize};

use super::{World, run};
use crate::checkpoint::Policy;
use crate::collections::Map;
use crate::composed::{HashedMap, TreeMap};
use crate::error::ObjectError;

/// What the older version has for values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct User {
    name: String,
}

/// What the newer one has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Aged {
    name: String,
    #[serde(default)]
    age: Option<u8>,
}

fn user(key: u64) -> User {
    User { name: key.to_string() }
}

fn aged(key: u64) -> Aged {
    Aged { name: key.to_string(), age: Some(7) }
}

fn is_refused<T: std::fmt::Debug>(made: &Result<T, ObjectError>) -> bool {
    matches!(made, Err(ObjectError::Call(_)))
}

#[test]
fn a_program_that_drops_fields_of_others_leaves_checkpoints_to_them() {
    // One of its state would be all that is left of them once the calls are forgotten.
    run(async |world| {
        let old = Map::<u64, User>::open(&world.program, "m").expect("opened");
        let new = Map::<u64, Aged>::open(&world.program().await, "m").expect("opened");
        new.put(1, aged(1)).await.expect("put");
        assert_eq!(old.put(2, user(2)).await, Ok(None));
        assert_eq!(old.get(&1).await, Ok(Some(user(1))), "it goes on");
        let made = old.handle().checkpoint().await;
        assert!(is_refused(&made), "{made:?}");
        // Nor is it the one that was told to go on, so that nobody else is.
        let policy = Some((Policy { calls: 1, ..Policy::NEVER }, true));
        let made = old.handle().slot.make(policy).await;
        assert!(is_refused(&made), "{made:?}");
        assert_eq!(new.len().await, Ok(2));
        let upto = new.handle().slot.make(policy).await.expect("made");
        assert_eq!(old.handle().checkpoints().await, Ok(vec![upto]));
        assert_eq!(old.handle().checkpoint().await, Ok(upto), "that serves, as nothing was called since");
        new.handle().forget(upto).await.expect("forgotten");
        // Who begins there has dropped as much.
        let begun = Map::<u64, User>::open(&world.program().await, "m").expect("opened");
        assert_eq!(begun.put(3, user(3)).await, Ok(None));
        let made = begun.handle().checkpoint().await;
        assert!(is_refused(&made), "{made:?}");
        let last = Map::<u64, Aged>::open(&world.program().await, "m").expect("opened");
        assert_eq!(last.get(&1).await, Ok(Some(aged(1))));
        assert!(last.handle().checkpoint().await.is_ok(), "one that only adds a field drops nothing");
    });
}

/// Fills a map of one bucket by the newer version, and has the older one put into it: what that leaves is whole, and the newer one splits it.
async fn check_hashed(world: &World, name: &str, old: HashedMap<u64, User>) {
    let new = HashedMap::<u64, Aged>::open_with(&world.program().await, name, 1).expect("opened");
    let idle = new.clone().splitting_at(usize::MAX);
    for key in 0..20 {
        idle.put(key, aged(key)).await.expect("put");
    }
    let old = old.splitting_at(4);
    for key in 100..170 {
        old.put(key, user(key)).await.expect("put");
        old.fast_put(key, user(key)).await.expect("put");
    }
    assert_eq!(new.bucket_count().await, Ok(1), "{name}");
    for key in 200..202 {
        new.clone().splitting_at(4).put(key, aged(key)).await.expect("put");
    }
    assert!(new.bucket_count().await.expect("read") > 1, "{name} is split by who drops nothing");
    for key in (0..20).chain(200..202) {
        assert_eq!(new.get(&key).await, Ok(Some(aged(key))), "{name}");
    }
    assert_eq!(old.get(&7).await, Ok(Some(user(7))), "{name}");
}

/// The same for a tree that is a leaf.
async fn check_tree(world: &World, name: &str, old: TreeMap<u64, User>) {
    let new = TreeMap::<u64, Aged>::open(&world.program().await, name).expect("opened");
    for key in 0..100 {
        new.put(key, aged(key)).await.expect("put");
    }
    for key in 200..300 {
        old.put(key, user(key)).await.expect("put");
    }
    assert_eq!(new.height_at(&0).await, Ok(1), "{name}");
    new.put(300, aged(300)).await.expect("put");
    assert_eq!(new.height_at(&0).await, Ok(2), "{name} is split by who drops nothing");
    for key in (0..100).chain([300]) {
        assert_eq!(new.get(&key).await, Ok(Some(aged(key))), "{name}");
    }
    assert_eq!(old.get(&7).await, Ok(Some(user(7))), "{name}");
}

#[test]
fn a_program_that_drops_fields_of_others_splits_no_bucket_and_no_leaf() {
    // Whoever moves a value writes it anew.
    run(async |world| {
        world.host();
        let program = &world.program;
        let map = HashedMap::open_with(program, "buckets here", 1).expect("opened");
        check_hashed(&world, "buckets here", map).await;
        let map = HashedMap::open_remote(program, "buckets at a node").expect("opened");
        check_hashed(&world, "buckets at a node", map).await;
        check_tree(&world, "a leaf here", TreeMap::open(program, "a leaf here").expect("opened")).await;
        let tree = TreeMap::open_remote(program, "a leaf at a node").expect("opened");
        check_tree(&world, "a leaf at a node", tree).await;
    });
}
