//! Nodes on real sockets, each behind a gate that can be shut: what is read while the last replica is silent, and after a seal.

use std::time::Duration;

use ithaca_log::client::{CallError, ClientError, EntryKind};
use ithaca_log::pos::{Epoch, LogPos, NodeId};
use ithaca_log::wire::{Refusal, RunState, Seal, Sealed};

use crate::gates::{PATIENCE, World};
use crate::worlds::{append, entry, run};

#[test]
fn committed_entries_are_read_while_the_last_replica_is_silent_and_nothing_is_said_of_others() {
    // The other replica may hold what was never decided, and may lack what was.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 60).await;
        let silent = NodeId(3);
        let (begun, free) = {
            let granted = client.tokens(6).await.expect("granted");
            let mut here =
                (granted.start.0..granted.end.0).map(LogPos).filter(|&pos| world.replicas(pos).1 == silent);
            (here.next().expect("one of three"), here.next().expect("one of three"))
        };
        world.write_at_first(begun, 60).await;
        world.until_complete(&positions).await;
        world.gates[2].set(true);
        for (&pos, number) in positions.iter().zip(0..) {
            let found = client.read(pos).await.expect("it is on every replica");
            assert_eq!((found.kind, found.data), (EntryKind::Data, entry(number)), "{pos}");
        }
        assert_eq!(client.read_many(&positions).await.expect("they are on every replica").len(), 60);
        let ranges = client.read_range(LogPos(0), LogPos(60)).await.expect("they are on every replica");
        assert_eq!(ranges.len(), 60);
        assert!(client.reads_elsewhere() >= 20, "{} reads", client.reads_elsewhere());
        let (follower, mut next) = (world.client(PATIENCE).await, 0);
        let mut tailing = follower.tail_from(LogPos(0));
        while next < 60 {
            for found in tailing.next().await.expect("it is on every replica") {
                assert_eq!((found.pos.0, found.data), (next, entry(next)));
                next += 1;
            }
        }
        let hasty = world.client(Duration::from_millis(300)).await;
        for pos in [begun, free] {
            let answer = hasty.read(pos).await;
            let is_silent =
                answer.as_ref().is_err_and(|error| !matches!(error, ClientError::Unwritten { .. }));
            assert!(is_silent, "{pos}: {answer:?}");
        }
        world.gates[2].set(false);
        assert_eq!(client.fill(begun).await, Ok(EntryKind::Data));
        assert_eq!(client.read(begun).await.map(|found| found.data), Ok(entry(60)));
    });
}

#[test]
fn committed_entries_are_read_in_a_sealed_epoch_and_nothing_else_is() {
    // A seal comes before the layout that goes on: readers would stand still in between.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 30).await;
        world.until_complete(&positions).await;
        for node in (1..=3).map(NodeId) {
            let seal = Seal { epoch: world.layout.epoch, extents: world.layout.active_extents(node) };
            world.call::<_, Sealed>(node, &seal).await.expect("sealed");
        }
        for &pos in &positions {
            let (first, last) = world.replicas(pos);
            for (node, committed) in [(first, true), (last, true), (last, false)] {
                let found = world.read(node, pos, committed).await;
                assert!(matches!(found, Ok(RunState::Data { .. })), "{pos} at {node}: {found:?}");
            }
        }
        let beyond = LogPos(30);
        let (first, last) = world.replicas(beyond);
        for (node, committed) in [(first, true), (first, false), (last, true), (last, false)] {
            let found = world.read(node, beyond, committed).await;
            let refused = CallError::Refused(Refusal::Sealed { sealed: Epoch(1) });
            assert_eq!(found, Err(refused), "{beyond} at {node}");
        }
    });
}
