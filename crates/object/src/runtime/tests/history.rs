//! Forgetting by age.

use super::*;
use crate::checkpoint::Policy;

type Numbers = Map<u64, u64>;

const MINUTE: Duration = Duration::from_secs(60);

/// A program that has a checkpoint made after 50 calls, and keeps so much history by itself.
async fn forgetful(world: &World, history: Option<Duration>) -> Numbers {
    let checkpoints = Policy { calls: 50, bytes: 1 << 40, history, ..Policy::NEVER };
    let options = RuntimeOptions { checkpoints, ..RuntimeOptions::default() };
    let client = world.program().await.inner.client.clone();
    Map::open(&Runtime::new(&world.env, client, options), "m").expect("opened")
}

/// Puts 60 values, which is a reason for a checkpoint, and gives what checkpoints there are when they are as expected.
async fn fill(world: &World, map: &Numbers, are_there: impl Fn(&[LogPos]) -> bool) -> Vec<LogPos> {
    for key in 0..60 {
        map.put(key, key).await.expect("put");
    }
    world
        .ended(async {
            loop {
                let made = map.handle().checkpoints().await.expect("readable");
                if are_there(&made) {
                    return made;
                }
                world.env.sleep(Duration::from_millis(10)).await;
            }
        })
        .await
}

#[test]
fn what_is_older_than_a_program_keeps_is_forgotten_when_it_has_a_checkpoint_made() {
    run(async |world| {
        let map = forgetful(&world, Some(MINUTE)).await;
        let first = fill(&world, &map, |made| made.len() == 1).await;
        let early = fill(&world, &map, |made| made.len() == 2).await;
        assert_eq!(first[0], early[0], "a minute has not passed");
        assert!(map.at(first[0]).len().await.is_ok_and(|len| len >= 50), "nor is its state gone");
        world.env.sleep(MINUTE + Duration::from_secs(6)).await;
        // The newest of those that were there a minute ago stays, with the one that is new.
        fill(&world, &map, |made| made.len() == 2 && made[0] == early[1]).await;
        // As one who has nothing in memory.
        let fresh = Numbers::open(&world.program().await, "m").expect("opened");
        let gone = fresh.at(first[0]).len().await;
        assert!(
            matches!(gone, Err(ObjectError::Forgotten { earliest, .. }) if earliest == early[1]),
            "{gone:?}"
        );
        assert_eq!(fresh.at(early[1]).len().await, Ok(60), "the state of a minute ago");
        assert_eq!(fresh.len().await, Ok(60));
    });
}

#[test]
fn what_an_object_says_of_its_history_comes_before_what_a_program_keeps() {
    run(async |world| {
        let (keeps_all, keeps_none) =
            (forgetful(&world, None).await, forgetful(&world, Some(Duration::ZERO)).await);
        let handle = keeps_all.handle();
        assert_eq!(handle.history().await, Ok(None));
        // By another program, before there is any checkpoint.
        Numbers::open(&world.program, "m")
            .expect("opened")
            .handle()
            .keep_history(Some(MINUTE))
            .await
            .expect("kept");
        assert_eq!(handle.history().await, Ok(Some(MINUTE)));
        let first = fill(&world, &keeps_all, |made| made.len() == 1).await;
        for made_there in [2, 3] {
            world.env.sleep(MINUTE / 6).await;
            fill(&world, &keeps_none, |made| made.len() == made_there).await;
            world.env.sleep(Duration::from_secs(1)).await;
        }
        let third = handle.checkpoints().await.expect("readable");
        assert_eq!((third.len(), third[0]), (3, first[0]), "its own span would have had it forgotten");
        world.env.sleep(MINUTE + Duration::from_secs(6)).await;
        fill(&world, &keeps_all, |made| made.len() == 2 && made[0] == third[2]).await;
        assert!(matches!(keeps_all.at(first[0]).len().await, Err(ObjectError::Forgotten { .. })));
        // So does one that is asked for.
        world.env.sleep(2 * MINUTE).await;
        let asked = handle.checkpoint().await.expect("made");
        let made = handle.checkpoints().await.expect("readable");
        assert!(made.len() == 2 && made[0] > third[2] && made[1] == asked, "{made:?}");
        handle.keep_history(None).await.expect("left to each");
        world.env.sleep(2 * MINUTE).await;
        fill(&world, &keeps_all, |made| made.len() == 3).await;
        assert_eq!(handle.history().await, Ok(None));
    });
}

#[test]
fn what_is_older_than_a_span_is_forgotten_but_for_what_is_held() {
    run(async |world| {
        let map = Numbers::open(&world.program, "m").expect("opened");
        let handle = map.handle();
        let mut made = Vec::new();
        for key in 0..3 {
            map.put(key, key).await.expect("put");
            made.push(handle.checkpoint().await.expect("made"));
            world.env.sleep(MINUTE).await;
        }
        assert_eq!(
            handle.forget_older(4 * MINUTE).await.expect("asked").earliest,
            LogPos(0),
            "none is so old"
        );
        let oldest = handle.forget_older(MINUTE * 5 / 2).await.expect("asked");
        assert_eq!((oldest.earliest, oldest.held_by), (made[0], None));
        handle.pin("audit", made[1]).await.expect("pinned");
        let held = handle.forget_older(Duration::from_secs(30)).await.expect("asked");
        assert_eq!((held.earliest, held.held_by.as_deref()), (made[1], Some("audit")));
        handle.let_go("audit").await.expect("let go");
        let all = handle.forget_older(Duration::from_secs(30)).await.expect("asked");
        assert_eq!(all.earliest, made[2]);
        let again = handle.forget_older(Duration::from_secs(30)).await.expect("asked");
        assert_eq!(again, all, "nothing is left to forget");
        assert_eq!(map.len().await, Ok(3));
    });
}
