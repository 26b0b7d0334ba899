//! A frame for programs: one JSON object.

use ithaca_log::layout::Layout;
use ithaca_log::wire::NodeStatus;

use super::frame::{ChainFrame, Frame, NodeFrame};
use super::rates::Rates;
use crate::cluster::{drive_json, drives, state};
use crate::json::{Object, array, quoted};

/// The object of a frame. A rate that was not measured, and a tail that the sequencer does not tell, are `null`.
pub fn object(frame: &Frame) -> Object {
    Object::new()
        .number("epoch", frame.layout.epoch.0)
        .number("sequencer", frame.layout.sequencer.0)
        .optional("tail", frame.tail.map(|tail| tail.0))
        .raw("nodes", &array(frame.nodes.iter().map(|it| node(&frame.layout, it))))
        .string("cluster", &frame.layout.cluster.to_string())
}

fn node(layout: &Layout, node: &NodeFrame) -> String {
    let object = Object::new().number("id", node.id.0).string("addr", &node.addr.to_string());
    match &node.answer {
        Ok((status, rates)) => {
            let object = object.string("state", state(layout, node.id, status));
            answered(object, status, rates).finish()
        }
        Err(error) => object.string("state", "unreachable").string("error", error).finish(),
    }
}

fn answered(object: Object, status: &NodeStatus, rates: &Rates) -> Object {
    let rate =
        |object: Object, key: &str, value: Option<f64>| object.decimal(key, value.unwrap_or(f64::NAN), 1);
    let object = object
        .raw("roles", &array(status.roles.names().map(quoted)))
        .number("uptime_ms", status.uptime_ms)
        .number("rss_bytes", status.rss_bytes);
    let object = [
        ("appends_per_s", rates.appends),
        ("bytes_written_per_s", rates.bytes_written),
        ("reads_per_s", rates.reads),
        ("bytes_read_per_s", rates.bytes_read),
        ("tokens_per_s", rates.tokens),
        ("cpu_percent", rates.cpu_percent),
    ]
    .into_iter()
    .fold(object, |object, (key, value)| rate(object, key, value));
    match ChainFrame::of(status) {
        Some(chain) => object.raw("chain", &chain_json(&chain, status)),
        None => object,
    }
}

fn chain_json(chain: &ChainFrame, status: &NodeStatus) -> String {
    Object::new()
        .number("queued_bytes", chain.queued_bytes)
        .number("segments_open", chain.segments_open)
        .number("segments_closed", chain.segments_closed)
        .number("free_bytes", chain.free_bytes)
        .number("tail_cache_bytes", chain.tail_cache_bytes)
        .number("footer_cache_bytes", chain.footer_cache_bytes)
        .number("damaged_places", chain.damaged_places)
        .boolean("cleaning", chain.is_cleaning)
        .number("segments_cleaned", chain.segments_cleaned)
        .number("moved_bytes", chain.moved_bytes)
        .raw("drives", &array(drives(status).map(drive_json)))
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::frame::tests::example;

    #[test]
    fn a_frame_is_one_object_in_one_line() {
        ithaca_env::real::golden::check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/top.json"),
            &format!("{}\n", object(&example()).finish()),
        );
    }
}
