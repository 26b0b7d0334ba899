//! Positions that were granted and never written.

use std::time::Duration;

use ithaca_log::client::{ClientError, EntryKind};
use ithaca_log::pos::LogPos;

use crate::worlds::{append, connect, entry, read_all, run, start};

#[test]
fn a_range_reader_fills_holes_below_the_tail_and_shows_junk() {
    for units in [1, 2] {
        run(|env, dir| async move {
            let (_cluster, client) = start(&env, &dir, units).await;
            append(&client, 0, 3).await;
            client.tokens(4).await.expect("granted");
            append(&client, 7, 2).await;
            client.tokens(1).await.expect("granted");
            let kinds: Vec<EntryKind> = read_all(&client, 0).await.iter().map(|entry| entry.kind).collect();
            let expected =
                |pos| if (3..7).contains(&pos) || pos == 9 { EntryKind::Junk } else { EntryKind::Data };
            assert_eq!(kinds, (0..10).map(expected).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_reader_of_one_position_never_fills_it() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 1).await;
        client.tokens(1).await.expect("granted");
        for pos in [LogPos(0), LogPos(1), LogPos(u64::MAX)] {
            assert_eq!(client.read(pos).await, Err(ClientError::Unwritten { pos }));
        }
        assert_eq!(client.fill(LogPos(0)).await, Ok(EntryKind::Junk));
        assert_eq!(client.read(LogPos(0)).await.map(|entry| entry.kind), Ok(EntryKind::Junk));
    });
}

#[test]
fn a_fill_never_takes_an_entry_away() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 1).await;
        append(&client, 0, 3).await;
        assert_eq!(client.fill(LogPos(1)).await, Ok(EntryKind::Data));
        assert_eq!(client.read(LogPos(1)).await.expect("still there").data, entry(1));
        client.trim(LogPos(1)).await.expect("trimmed");
        assert_eq!(client.fill(LogPos(1)).await, Ok(EntryKind::Trimmed));
    });
}

#[test]
fn a_follower_fills_the_hole_that_keeps_it_from_going_on() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 2).await;
        client.tokens(3).await.expect("granted");
        append(&client, 3, 5).await;
        let follower = connect(&env, &cluster).await;
        let (mut tailing, mut kinds) = (follower.tail_from(LogPos(0)), Vec::new());
        while kinds.len() < 8 {
            let entries = env.timeout(Duration::from_secs(20), tailing.next()).await.expect("it goes on");
            kinds.extend(entries.expect("it serves").iter().map(|entry| entry.kind));
        }
        let expected = |pos| if pos < 3 { EntryKind::Junk } else { EntryKind::Data };
        assert_eq!(kinds, (0..8).map(expected).collect::<Vec<_>>());
    });
}

#[test]
fn a_trim_over_holes_decides_them_first() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 2).await;
        append(&client, 0, 2).await;
        client.tokens(4).await.expect("granted");
        client.trim_prefix(LogPos(6)).await.expect("trimmed");
        assert_eq!(client.check().await.expect("it serves").first, LogPos(6));
        assert_eq!(append(&client, 6, 1).await, [LogPos(6)]);
    });
}
