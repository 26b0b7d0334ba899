//! The disk by itself: what each part of the model is there for.

use super::super::testbed::{Testbed, scattered};
use super::super::{Access, Speed};
use super::{Disk, DiskOptions};
use crate::Time;

const SIZE: u64 = 4 << 30;
const CHUNK: u64 = 64 << 10;
const TURN: u64 = 6_000_000;

fn disk() -> Testbed {
    Testbed::new(Speed::Disk.model(), SIZE)
}

fn cached(bytes: u64) -> Testbed {
    let options = DiskOptions { write_cache_bytes: bytes, ..DiskOptions::default() };
    Testbed::new(Box::new(Disk::new(options)), SIZE)
}

fn mb_per_s(bytes: u64, ns: u64) -> u64 {
    bytes * 1000 / ns
}

#[test]
fn sequential_writes_that_queue_never_miss_a_turn() {
    let mut disk = disk();
    let ns = disk.closed_loop(Access::DurableWrite, CHUNK, 2, 1000, |n| n * CHUNK);
    let speed = mb_per_s(1000 * CHUNK, ns);
    assert!((119..=121).contains(&speed), "{speed} MB/s");
    assert_eq!((disk.media().seeks, disk.media().bytes_written), (0, 1000 * CHUNK));
}

#[test]
fn a_sequential_write_that_waited_for_the_last_misses_a_turn() {
    let mut disk = disk();
    let ns = disk.closed_loop(Access::DurableWrite, 4096, 1, 100, |n| n * 4096);
    assert!((99 * TURN..=102 * TURN).contains(&ns), "{ns} ns for 100 writes");
}

#[test]
fn sequential_reads_one_at_a_time_are_answered_from_the_buffer_at_full_speed() {
    let mut disk = disk();
    let ns = disk.closed_loop(Access::Read, CHUNK, 1, 1000, |n| n * CHUNK);
    let speed = mb_per_s(1000 * CHUNK, ns);
    assert!((117..=121).contains(&speed), "{speed} MB/s");
}

#[test]
fn the_idle_head_fills_the_buffer_and_then_stands_still() {
    let mut disk = disk();
    disk.run(Access::Read, 0, CHUNK);
    disk.idle_until(Time(1_000_000_000));
    let before = disk.media();
    let ns = disk.closed_loop(Access::Read, CHUNK, 1, 32, |n| (n + 1) * CHUNK);
    let done = disk.media().since(&before);
    assert_eq!((done.read_ahead_hits, done.busy_ns), (32, 0), "2 MiB were read ahead");
    assert!(mb_per_s(32 * CHUNK, ns) > 250, "the link's speed, less the commands");
    // What the first answers made the head read on is not all there yet.
    let ns = disk.closed_loop(Access::Read, CHUNK, 1, 512, |n| (n + 33) * CHUNK);
    assert!((112..=135).contains(&mb_per_s(512 * CHUNK, ns)), "{} MB/s", mb_per_s(512 * CHUNK, ns));
}

#[test]
fn a_write_into_what_was_read_ahead_empties_the_buffer() {
    let mut disk = disk();
    disk.run(Access::Read, 0, CHUNK);
    disk.idle_until(Time(1_000_000_000));
    disk.run(Access::DurableWrite, CHUNK, CHUNK);
    let before = disk.media().busy_ns;
    disk.run(Access::Read, CHUNK, CHUNK);
    assert_eq!(disk.media().read_ahead_hits, 0);
    assert!(disk.media().busy_ns > before, "the arm had to fetch it");
}

#[test]
fn the_elevator_serves_scattered_requests_faster_the_more_it_sees() {
    let speed = |depth| {
        let mut disk = disk();
        let places = |n| scattered(n, SIZE / 4096, 4096);
        disk.closed_loop(Access::Read, 4096, depth, 1000, places)
    };
    let (alone, queued) = (speed(1), speed(32));
    assert!(queued < alone * 7 / 10, "{alone} ns one at a time, {queued} ns with 32 queued");
}

#[test]
fn outer_tracks_are_faster_than_inner_ones() {
    let speed = |from| {
        let mut disk = disk();
        mb_per_s(200 * CHUNK, disk.closed_loop(Access::DurableWrite, CHUNK, 4, 200, |n| from + n * CHUNK))
    };
    let (outer, inner) = (speed(0), speed(SIZE - 200 * CHUNK));
    assert!(outer * 62 / 100 > inner && outer / 2 < inner, "{outer} and {inner} MB/s");
}

#[test]
fn a_write_cache_answers_before_the_platter_and_a_sync_after() {
    let mut disk = cached(1 << 20);
    let written = disk.submit(Access::Write, SIZE / 2, 4096);
    let synced = disk.submit(Access::Sync, 0, 0);
    assert_eq!(disk.next_end(), Some(written));
    assert_eq!(disk.media().bytes_written, 4096, "on its way");
    assert_eq!(disk.next_end(), Some(synced));
    assert!(disk.finish() > Time(3_000_000), "after a seek");
    let clean = disk.finish().0;
    assert_eq!(disk.run(Access::Sync, 0, 0).0 - clean, DiskOptions::default().command_ns);
}

#[test]
fn a_sync_waits_for_what_was_in_the_cache_when_it_came_and_for_no_more() {
    let mut disk = cached(1 << 20);
    let first: Vec<_> = (0..8).map(|n| disk.submit(Access::Write, scattered(n, 1000, 4096), 4096)).collect();
    let synced = disk.submit(Access::Sync, 0, 0);
    let later: Vec<_> =
        (8..200).map(|n| disk.submit(Access::Write, scattered(n, 1000, 4096), 4096)).collect();
    let mut ended = Vec::new();
    while let Some(key) = disk.next_end() {
        ended.push(key);
    }
    assert_eq!(ended.len(), first.len() + later.len() + 1);
    assert!(ended.contains(&synced) && disk.media().bytes_written == 200 * 4096);
}

#[test]
fn a_full_write_cache_makes_writers_wait_for_the_arm() {
    let mut disk = cached(16 * 4096);
    let places = |n| scattered(n, SIZE / 4096, 4096);
    let ns = disk.closed_loop(Access::Write, 4096, 1, 200, places);
    assert!(ns > 150 * 2_000_000, "{ns} ns for 200 scattered writes of which 16 fit");
}

#[test]
fn what_has_not_begun_when_the_power_goes_is_not_done() {
    let mut disk = disk();
    let first = disk.submit(Access::DurableWrite, 0, 4096);
    let second = disk.submit(Access::DurableWrite, SIZE / 2, 4096);
    let other = disk.submit(Access::Read, SIZE / 4, 4096);
    disk.cut_power(&[first, second]);
    assert_eq!(disk.next_end(), Some(first), "what has begun ends");
    assert_eq!(disk.next_end(), Some(other), "what is another's goes on");
    assert_eq!(disk.next_end(), None);
    assert_eq!(disk.media().bytes_written, 4096);
}

#[test]
fn a_power_cut_empties_the_write_cache() {
    let mut disk = cached(1 << 20);
    let keys: Vec<_> = (0..8).map(|n| disk.submit(Access::Write, scattered(n, 1000, 4096), 4096)).collect();
    disk.cut_power(&keys);
    disk.finish();
    assert_eq!(disk.media().bytes_written, 4096, "the first was on its way");
    disk.closed_loop(Access::Write, 4096, 1, 256, |n| n * 4096);
    assert_eq!(disk.media().bytes_written, 257 * 4096, "and there is room again");
}

#[test]
fn a_disk_in_place_of_another_starts_anew() {
    let mut disk = disk();
    disk.run(Access::DurableWrite, SIZE / 2, 4096);
    disk.replace();
    assert_eq!(disk.media(), super::MediaStats::default());
}
