//! The one page for people: what runs here, and what else can be asked.

use std::fmt::Write;

use super::Source;

const PAGES: &[(&str, &str)] = &[
    ("/metrics", "metrics in Prometheus' text format"),
    ("/livez", "200 while the process runs"),
    ("/readyz", "200 while clients are served, 503 else"),
    ("/version", "the version, as JSON"),
];

/// The page at `/`.
pub fn index(source: &dyn Source) -> String {
    let mut rows = String::new();
    for node in source.nodes() {
        let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        // Writing to a String cannot fail.
        let _ = write!(
            rows,
            "<tr><td>{}<td>{}<td>{}<td>{} MiB<td>{} s",
            node.node.0,
            number(node.tail.map(|pos| pos.0)),
            number(node.watermark.map(|addr| addr.0)),
            node.rss_bytes >> 20,
            node.uptime_ms / 1000,
        );
    }
    let mut links = String::new();
    for (path, what) in PAGES {
        let _ = write!(links, "<li><a href=\"{path}\">{path}</a> {what}");
    }
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Ithaca</title>\
         <style>body{{font:16px sans-serif;margin:2em;max-width:50em}}td,th{{text-align:right;padding:.2em 1em}}</style>\
         <h1>Ithaca {}</h1><p>A shared log. Clients connect to <code>{}</code>.\
         <table><tr><th>node<th>tail<th>watermark<th>memory<th>up{rows}</table><ul>{links}</ul>\n",
        env!("CARGO_PKG_VERSION"),
        source.log_addr(),
    )
}
