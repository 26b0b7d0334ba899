//! The bytes of stored records, as they have always been.

use ithaca_env::real::golden::{self, hex};

#[test]
fn every_stored_record_has_golden_bytes() {
    use crate::layout::{Layout, Node, NodeState, acceptor};
    use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId, StreamId, StreamPos};
    use crate::release::{Release, Releases};
    use crate::unit::{SealedExtent, UnitState};

    let told = |base: u64, highest| SealedExtent { extent: (base..base + (1 << 44)).into(), highest };
    let sealed_extents = vec![told(0, Some(Addr(44))), told(1 << 44, None)];
    let voided = std::iter::once(40..42).collect();
    let state = UnitState { sealed: Epoch(3), sealed_extents, served: Epoch(3), voided };
    let roles = crate::wire::Roles::LAYOUT.with(crate::wire::Roles::SEQUENCER).with(crate::wire::Roles::UNIT);
    let node = Node::new(NodeId(2), roles, "127.0.0.1:7420".to_owned());
    let first = Layout::single(ClusterId(0x1111_2222_3333_4444_5555_6666_7777_8888), node);
    let layout = first.next_epoch(LogPos(45));
    // One of three acceptors, so that what it accepts is not decided by that.
    let mut first = first;
    for id in [3, 4] {
        let state = if id == 4 { NodeState::Full } else { NodeState::InUse };
        first.nodes.push(Node { state, ..Node::new(NodeId(id), roles, format!("127.0.0.1:742{id}")) });
    }
    let to = crate::unit::ReplyTo(0);
    let ballot = crate::pos::Ballot { round: 6, proposer: NodeId(4) };
    let mut effects = Vec::new();
    let mut acceptor = crate::layout::Acceptor::new(NodeId(2), crate::planted::Planted::NONE);
    acceptor.step(acceptor::Input::Learn { to, layout: first.clone() }, &mut effects);
    acceptor.step(acceptor::Input::Persisted, &mut effects);
    effects.clear();
    acceptor.step(acceptor::Input::Accept { to, ballot, layout: first.next_epoch(LogPos(45)) }, &mut effects);
    let Some(acceptor::Effect::Persist { record }) = effects.first() else { panic!("a record to store") };
    acceptor.step(acceptor::Input::Persisted, &mut Vec::new());
    let again = crate::layout::Acceptor::recover(NodeId(2), record, crate::planted::Planted::NONE);
    assert_eq!(again.as_ref(), Ok(&acceptor));
    let tail = crate::stream::StreamTail { next: StreamPos(4), last: Some(LogPos(41)) };
    let streams = [(StreamId(300), tail), (StreamId(1 << 100), Default::default())];
    let streams = crate::sequencer::StreamTable::of(&streams);
    let (from, unseen) = (LogPos(40), LogPos(30));
    let chunk = crate::sequencer::checkpoint::Chunk { from, unseen, number: 2, is_last: true, streams };
    let release = Release { below: StreamPos(3), log_below: LogPos(45) };
    let mut releases = Releases::of(StreamId(0x1111_2222_3333_4444_5555_6666_7777_8888), release);
    releases.add(&Releases::of(StreamId(300), release));
    let text = format!(
        "Records that the log stores, in hexadecimal. docs/format/log.md explains them.\n\nunit state\n{}\nlayout\n{}\n\
         acceptor\n{}\ncheckpoint of streams\n{}\nrelease\n{}",
        hex(&state.encode()),
        hex(&layout.encode()),
        hex(record),
        hex(&chunk.encode()),
        hex(&releases.encode().next().expect("a record")),
    );
    golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/records.txt"), &text);
}
