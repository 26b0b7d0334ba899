//! Metrics and health over HTTP, and `ithaca cluster status`.

use crate::harness::{Dev, get, number_field, temp_dir};

#[test]
fn every_page_answers() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    for path in ["/", "/metrics", "/livez", "/readyz", "/version"] {
        assert!(get(&dev.http, path).starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
    }
    assert!(get(&dev.http, "/nothing").starts_with("HTTP/1.1 404 "));
}

#[test]
fn the_tail_that_metrics_show_moves_with_appends() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    dev.feed("log append --lines", b"1\n2\n3\n").expect(0);
    let metrics = get(&dev.http, "/metrics");
    assert!(metrics.contains("\nithaca_sequencer_tail_position{node=\"1\"} 3\n"), "{metrics}");
    let named = |line: &str| line.starts_with("# ") || line.starts_with("ithaca_");
    let body = metrics.split("\r\n\r\n").nth(1).expect("a body");
    assert!(body.lines().all(named), "{body}");
}

#[test]
fn status_lists_every_unit_as_a_node_and_the_epoch_grows_with_each_start() {
    let dir = temp_dir();
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let dev = Dev::start(dir.path(), &["--units", "2"]);
        let status = dev.run("cluster status --json").expect(0).text();
        assert_eq!(status.matches("\"state\":\"up\"").count(), 2, "{status}");
        for key in ["sequencer", "tail", "ranges", "nodes", "id", "addr"] {
            assert!(status.contains(&format!("\"{key}\":")), "{key} in {status}");
        }
        epochs.push(number_field(&status, "epoch"));
        assert!(dev.run("cluster status").expect(0).text().contains("durability fsync"));
    }
    assert!(epochs[0] < epochs[1], "{epochs:?}");
}
