//! How a connection begins: with a hello, soon, or it is closed.

use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ithaca_env::net::Reader;
use ithaca_env::sync::Counted;

use super::answers::Answers;
use super::node::{Ended, Node};
use super::places::Places;
use super::reply::ReplyRoute;
use crate::limits;
use crate::pos::{ClientId, ClusterId, NodeId};
use crate::wire::{self, Frame, Hello, HelloOk, Kind, PROTOCOL_VERSION, Refusal, Request};

/// A connection is closed that does not begin with a hello within this.
pub(super) const HELLO_MAX: Duration = Duration::from_secs(10);

/// Who has greeted, and is served.
pub(super) struct Greeted {
    /// Whether it is another node.
    pub(super) is_node: bool,
    /// What it counts as, for as long as it is served.
    pub(super) place: Counted,
}

/// Waits for the greeting and answers it. What came right behind it is left in `buf`.
pub(super) async fn wait(
    node: &Node,
    places: &Places,
    answers: &Rc<Answers>,
    reader: &mut Reader,
    buf: &mut BytesMut,
) -> Result<Greeted, Ended> {
    let deadline = node.env.now() + HELLO_MAX;
    loop {
        let read = node.env.timeout_at(deadline, reader.read(buf)).await.map_err(|_| Ended::Greeting)?;
        if read? == 0 {
            return Err(Ended::Greeting);
        }
        // No memory is kept for anything but a greeting.
        if let Some(frame) = wire::next_frame_within(buf, limits::GREETING_MAX_BYTES)? {
            return answer(node, places, answers, &frame);
        }
    }
}

fn answer(node: &Node, places: &Places, answers: &Rc<Answers>, frame: &Frame) -> Result<Greeted, Ended> {
    let route = ReplyRoute::new(answers, frame.head);
    let admitted = match Request::decode(frame) {
        Ok(Request::Hello(hello)) => admit(node, places, &hello),
        Err(_) if frame.kind == Kind::Hello as u16 => Err(Refusal::Malformed { kind: frame.kind }),
        _ => Err(Refusal::Greeting),
    };
    match admitted {
        Ok(greeted) => {
            route.send_in(node.epoch(), &welcome(node));
            Ok(greeted)
        }
        Err(refusal) => {
            route.refuse(refusal);
            Err(Ended::Greeting)
        }
    }
}

/// Whether who greets so is served.
fn admit(node: &Node, places: &Places, hello: &Hello) -> Result<Greeted, Refusal> {
    if !(hello.version_min..=hello.version_max).contains(&PROTOCOL_VERSION) {
        let (version_min, version_max) = (PROTOCOL_VERSION, PROTOCOL_VERSION);
        return Err(Refusal::UnsupportedVersion { version_min, version_max });
    }
    if hello.cluster != ClusterId::UNKNOWN && hello.cluster != node.cluster.get() {
        return Err(Refusal::WrongCluster { cluster: node.cluster.get() });
    }
    if hello.node != NodeId(0) && hello.node != node.id {
        return Err(Refusal::WrongNode { node: node.id });
    }
    Ok(Greeted { is_node: hello.client == ClientId(0), place: places.take(node, hello.client)? })
}

fn welcome(node: &Node) -> HelloOk {
    let whole = (limits::WRITE_MAX_BYTES, limits::RUN_MAX_COUNT);
    let (write_max_bytes, run_max_count) = node.unit.get().map_or(whole, |unit| unit.write_limits());
    HelloOk {
        version: PROTOCOL_VERSION,
        cluster: node.cluster.get(),
        node: node.id,
        incarnation: node.incarnation,
        entry_max_bytes: limits::ENTRY_MAX_BYTES.min(write_max_bytes) as u32,
        write_max_bytes: write_max_bytes as u32,
        read_max_bytes: limits::READ_MAX_BYTES as u32,
        run_max_count: run_max_count as u32,
        grant_max_count: limits::GRANT_MAX_COUNT,
    }
}
