//! The SSD by itself: what each part of the model is there for.

use super::super::testbed::{Testbed, scattered};
use super::super::{Access, Speed};

const SIZE: u64 = 256 << 20;
const PAGES: u64 = SIZE / 4096;
const CHUNK: u64 = 256 << 10;

fn ssd() -> Testbed {
    Testbed::new(Speed::Ssd.model(), SIZE)
}

/// Every page written once, in order.
fn full() -> Testbed {
    let mut ssd = ssd();
    ssd.closed_loop(Access::Write, CHUNK, 4, SIZE / CHUNK, |n| n * CHUNK);
    ssd.run(Access::Sync, 0, 0);
    ssd
}

fn mb_per_s(bytes: u64, ns: u64) -> u64 {
    bytes * 1000 / ns
}

#[test]
fn the_link_limits_reads_and_the_channels_limit_writes() {
    let mut ssd = ssd();
    let ns = ssd.closed_loop(Access::Write, CHUNK, 8, 1000, |n| n * CHUNK);
    let written = mb_per_s(1000 * CHUNK, ns);
    let ns = ssd.closed_loop(Access::Read, CHUNK, 8, 1000, |n| n * CHUNK);
    let read = mb_per_s(1000 * CHUNK, ns);
    assert!((360..=400).contains(&written), "writes {written} MB/s");
    assert!((500..=550).contains(&read), "reads {read} MB/s");
}

#[test]
fn the_buffer_answers_volatile_writes_and_the_flash_durable_ones() {
    let mut ssd = ssd();
    let begin = ssd.run(Access::Sync, 0, 0).0;
    let volatile = ssd.run(Access::Write, 0, 4096).0 - begin;
    let durable = ssd.run(Access::DurableWrite, 4096, 4096).0 - begin - volatile;
    assert!(volatile < 80_000 && (340_000..500_000).contains(&durable), "{volatile} and {durable} ns");
}

#[test]
fn a_sync_waits_for_the_buffer_to_be_empty() {
    let mut ssd = ssd();
    let idle = ssd.run(Access::Sync, 0, 0).0;
    for n in 0..64 {
        ssd.submit(Access::Write, n * 4096, 4096);
    }
    let synced = ssd.run(Access::Sync, 0, 0).0 - idle;
    assert!(synced > idle + 340_000, "{synced} ns after 64 writes, {idle} ns after none");
}

#[test]
fn writes_slow_reads_down() {
    let places = |n| scattered(n, PAGES, 4096);
    let alone = full().closed_loop(Access::Read, 4096, 1, 200, places) / 200;
    let mut ssd = full();
    let mut read_ns = 0;
    for n in 0..200 {
        for m in 0..4 {
            ssd.submit(Access::Write, scattered(n * 4 + m, SIZE / CHUNK, CHUNK), CHUNK);
        }
        let begin = ssd.now();
        let key = ssd.submit(Access::Read, places(n), 4096);
        while ssd.next_end() != Some(key) {}
        read_ns += ssd.now().0 - begin.0;
        ssd.finish();
    }
    let mixed = read_ns / 200;
    assert!((150_000..220_000).contains(&alone), "{alone} ns alone");
    assert!(mixed > alone + 100_000, "{alone} ns alone, {mixed} ns among writes");
}

#[test]
fn random_overwrites_of_a_full_drive_are_slowed_down_by_cleaning() {
    let mut ssd = full();
    let fresh = ssd.media();
    assert_eq!((fresh.bytes_written, fresh.bytes_moved, fresh.erases), (SIZE, 0, 0));
    ssd.closed_loop(Access::Write, 4096, 32, PAGES * 2, |n| scattered(n, PAGES, 4096));
    let before = ssd.media();
    let ns = ssd.closed_loop(Access::Write, 4096, 32, PAGES, |n| scattered(n + PAGES * 2, PAGES, 4096));
    let done = ssd.media().since(&before);
    let amplification = done.bytes_written as f64 / SIZE as f64;
    assert!((2.0..9.0).contains(&amplification), "{amplification} bytes inside for each from outside");
    assert!(mb_per_s(SIZE, ns) < 390 / 2, "{} MB/s", mb_per_s(SIZE, ns));
    assert_eq!(done.bytes_written - done.bytes_moved, SIZE);
    assert!(done.erases * 256 * 4096 > SIZE, "{} erases", done.erases);
}

#[test]
fn a_discarded_drive_writes_like_a_new_one() {
    let mut ssd = full();
    ssd.closed_loop(Access::Write, 4096, 32, PAGES * 2, |n| scattered(n, PAGES, 4096));
    ssd.run(Access::Discard, 0, SIZE);
    let before = ssd.media();
    ssd.closed_loop(Access::Write, 4096, 32, PAGES / 2, |n| n * 4096);
    assert_eq!(ssd.media().since(&before).bytes_moved, 0);
}

#[test]
fn pages_that_were_never_written_are_read_without_the_flash() {
    let mut ssd = ssd();
    ssd.run(Access::Read, 0, 4096);
    assert_eq!(ssd.media().busy_ns, 0);
}
