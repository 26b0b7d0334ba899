//! What a metadata drive is written for each byte of data, beside what Gecko's is: two pages of 4 KiB for 1,024 blocks of 4 KiB.

use std::io;
use std::path::Path;

use clap::Args;
use ithaca_chain::{Batch, Chain, MetadataStats};
use ithaca_env::real;

use super::results::Results;
use super::volume::{Places, append_all, drives, identity, open_metadata, options, runs, scattered, settle};
use super::{Ground, parse_size};

/// Pages of 4 KiB that Gecko's metadata drive is written for 1,024 blocks: when they are written, and when they are freed.
const GECKO_PAGES: f64 = 2.0;
/// Pages that ours may be written for them, of blocks with keys in no order: key, version, place, length and checksum of each, and the
/// rest of a page and of an entry.
const PAGES_MAX: f64 = 6.0;

/// How much is written.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak metadata --bytes 4G")]
pub struct MetadataArguments {
    /// Bytes of data of each chain.
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    bytes: u64,
    #[command(flatten)]
    ground: Ground,
}

/// What a chain is filled with.
struct Case {
    name: &'static str,
    record_bytes: usize,
    /// Records of a run; 1: keys in no order, with an owner.
    run: u64,
}

const CASES: [Case; 3] = [
    Case { name: "blocks with keys in no order", record_bytes: 4096, run: 1 },
    Case { name: "runs of 256 entries of 4 KiB", record_bytes: 4096, run: 256 },
    Case { name: "runs of 8192 entries of 128 bytes", record_bytes: 128, run: 8192 },
];

/// Fills a chain of each kind and counts what its metadata drive was written.
pub fn run(arguments: &MetadataArguments) -> io::Result<(u64, u64)> {
    let folder = arguments.ground.data.join(format!("metadata-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut results = Results::new(
        "what a metadata drive is written; Gecko: 2 pages of 4 KiB for 1,024 blocks of 4 KiB, 0.00195 bytes for a byte",
        "records,data_bytes,segments,metadata_bytes,metadata_bytes_per_data_byte,pages_per_1024_blocks,times_gecko",
    );
    let mut passed = 0;
    for case in &CASES {
        let (path, metadata) = (folder.join("chain"), folder.join("metadata"));
        let written = fill(&path, &metadata, case, arguments.bytes)?;
        std::fs::remove_file(&path)?;
        std::fs::remove_file(&metadata)?;
        let per_byte = written.metadata.bytes_written as f64 / written.data_bytes as f64;
        let pages = per_byte * 1024.0;
        println!(
            "{}: {pages:.2} pages for 1,024 blocks, {:.2} times Gecko's",
            case.name,
            pages / GECKO_PAGES
        );
        results.row(&format!(
            "{},{},{},{},{per_byte:.6},{pages:.3},{:.2}",
            case.name,
            written.data_bytes,
            written.metadata.entries_written,
            written.metadata.bytes_written,
            pages / GECKO_PAGES,
        ));
        passed += u64::from(case.run > 1 || pages <= PAGES_MAX);
    }
    results.write(&arguments.ground.results, "metadata")?;
    std::fs::remove_dir_all(&folder)?;
    Ok((passed, CASES.len() as u64 - passed))
}

/// What was written, but for the open segment, which has no footer yet.
struct Written {
    data_bytes: u64,
    metadata: MetadataStats,
}

fn fill(path: &Path, metadata: &Path, case: &Case, bytes: u64) -> io::Result<Written> {
    let records = bytes / case.record_bytes as u64;
    real::run(async |env| {
        let metadata = open_metadata(&env, Some(metadata)).await?;
        let drives = drives(&env, path, metadata.as_ref()).await?;
        let created = match case.run {
            1 => {
                let owner = Places::new(records);
                Chain::create_owned(&env, drives, identity(), options(64 << 20), owner).await
            }
            _ => Chain::create(&env, drives, identity(), options(64 << 20)).await,
        };
        let chain = created.map_err(io::Error::other)?;
        let batches: Box<dyn Iterator<Item = Batch>> = match case.run {
            1 => Box::new(scattered(records, case.record_bytes)),
            length => Box::new(runs(records, length, case.record_bytes)),
        };
        append_all(&env, &chain, batches).await?;
        let Some(metadata) = metadata else { return Err(io::Error::other("no metadata drive")) };
        settle(&env, &chain, &metadata).await;
        let stats = chain.stats();
        // Segments are filled alike: the open one holds what is left.
        let open = stats.data_bytes as f64 / (stats.segments_closed + stats.segments_open) as f64;
        let data_bytes =
            stats.data_bytes - (open * stats.segments_open as f64).min(stats.data_bytes as f64) as u64;
        Ok(Written { data_bytes, metadata: metadata.stats() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_chain_of_each_kind_is_mirrored() {
        for case in &CASES {
            let folder = tempfile::tempdir().expect("a folder");
            let (path, metadata) = (folder.path().join("chain"), folder.path().join("metadata"));
            let written = fill(&path, &metadata, case, 130 << 20).expect("it is filled");
            assert!(written.metadata.entries_written >= 1, "{}", case.name);
        }
    }
}
