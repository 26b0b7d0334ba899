//! What a block says of streams, compared with a list of every address.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_env::sim::Random;

use super::*;
use crate::entry::{StreamGroup, StreamPlace, StreamPlaces};
use crate::pos::{Addr, ClientId, LogPos, RequestNo, StreamPos};

/// A run's meta with groups that begin before it, end behind it, or leave some of it out; spread over `stride` stripes.
fn meta(random: &mut Random, addrs: &AddrRange) -> EntryMeta {
    let place = |random: &mut Random| {
        let stream = StreamId(300 + u128::from(random.below(3)) + (u128::from(random.below(2)) << 64));
        StreamPlace { stream, position: StreamPos(0), previous: None }
    };
    let group = |random: &mut Random| {
        let mut places: Vec<StreamPlace> = (0..random.below(3)).map(|_| place(random)).collect();
        places.sort_by_key(|place| place.stream);
        places.dedup_by_key(|place| place.stream);
        StreamGroup { count: 1 + random.below(60) as u32, places: places.into() }
    };
    let groups: Vec<StreamGroup> = (0..1 + random.below(4)).map(|_| group(random)).collect();
    let stride = 1 + random.below(3) as u16;
    let (anchor, request) = (Addr(addrs.start.0 + random.below(20)), RequestNo(1000 + random.below(50)));
    let groups_from = RequestNo(990 + random.below(40));
    EntryMeta { stride, groups_from, groups, ..EntryMeta::new(ClientId(1), anchor, request) }
}

#[test]
fn a_block_finds_what_every_record_says_whatever_the_order_it_was_looked_at_in() {
    let mut random = Random::new(1);
    let mut passed = 0;
    for _ in 0..40 {
        let mut index = StreamIndex::new(1 << 20);
        let mut model: BTreeMap<u64, BTreeSet<StreamId>> = BTreeMap::new();
        let (mut runs, mut next) = (Vec::new(), 0);
        while next < 3 * limits::STREAM_BLOCK_COUNT {
            let addrs = AddrRange::from(next..next + 1 + random.below(200));
            next = addrs.end.0 + random.below(2) * random.below(100);
            let meta = (random.below(5) > 0).then(|| meta(&mut random, &addrs));
            for addr in addrs.numbers() {
                let places =
                    meta.as_ref().map_or(StreamPlaces::new(), |it| it.places_at(Addr(addr), LogPos(addr)));
                model.insert(addr, places.iter().map(|place| place.stream).collect());
            }
            runs.push((addrs, meta));
        }
        let mut noted = BTreeSet::new();
        for _ in 0..3 * runs.len() {
            let (addrs, meta) = &runs[random.below(runs.len() as u64) as usize];
            // Now and then a part of it only, and parts of it again.
            let start = addrs.start.0 + random.below(addrs.count());
            let part = AddrRange::from(start..start + 1 + random.below(addrs.end.0 - start));
            for addr in [part.start.0, part.end.0 - 1] {
                index.block(addr).borrow_mut().note(part, meta.as_ref());
                index.settle(addr);
            }
            noted.extend(part.numbers());
            if random.below(20) == 0 {
                check(&mut index, &model, &noted, &mut random);
            }
        }
        check(&mut index, &model, &noted, &mut random);
        passed += (0..10).filter(|_| passes(&index, &model, &noted, &mut random)).count();
    }
    assert!(passed > 20, "{passed} of 400 times a stream that is nowhere was passed without a look");
}

/// Whether the first addresses of a block are passed for a stream that is nowhere. They are not for one that has some of them, or where
/// some were not looked at.
fn passes(
    index: &StreamIndex,
    model: &BTreeMap<u64, BTreeSet<StreamId>>,
    noted: &BTreeSet<u64>,
    random: &mut Random,
) -> bool {
    let start = random.below(3) * limits::STREAM_BLOCK_COUNT;
    let addrs = AddrRange::from(start..start + 1 + random.below(60));
    let has_none = |stream: StreamId| {
        let is_passed = index.none_up_to(stream, addrs) == addrs.end;
        let is_none = addrs.numbers().all(|addr| noted.contains(&addr) && !model[&addr].contains(&stream));
        assert!(is_none || !is_passed, "{stream} in {addrs}");
        is_passed
    };
    for nth in 0..6 {
        has_none(StreamId(300 + nth % 3 + ((nth / 3) << 64)));
    }
    has_none(StreamId(900))
}

fn check(
    index: &mut StreamIndex,
    model: &BTreeMap<u64, BTreeSet<StreamId>>,
    noted: &BTreeSet<u64>,
    random: &mut Random,
) {
    let start = random.below(3 * limits::STREAM_BLOCK_COUNT);
    let block = index.block(start);
    let end = (start + 1 + random.below(900)).min(block.borrow().range().end.0);
    let addrs = AddrRange::from(start..end);
    let unknown: BTreeSet<u64> =
        block.borrow().unknown(addrs).iter().flat_map(|range| range.numbers()).collect();
    assert!(addrs.numbers().all(|addr| unknown.contains(&addr) != noted.contains(&addr)), "{addrs}");
    let stream = StreamId(300 + u128::from(random.below(3)) + (u128::from(random.below(2)) << 64));
    for stream in [Some(stream), None] {
        let found = block.borrow_mut().find(stream, addrs);
        assert!(found.windows(2).all(|two| two[0].end < two[1].start), "{found:?}");
        let found: BTreeSet<u64> = found.iter().flat_map(|range| range.numbers()).collect();
        let is_of = |streams: &BTreeSet<StreamId>| match stream {
            Some(stream) => streams.contains(&stream),
            None => !streams.is_empty(),
        };
        let is_own = |addr: &u64| noted.contains(addr) && model.get(addr).is_some_and(is_of);
        assert_eq!(found, addrs.numbers().filter(is_own).collect(), "{stream:?} in {addrs}");
    }
}

#[test]
fn an_index_keeps_to_its_bytes_and_forgets_what_was_used_least() {
    let mut index = StreamIndex::new(20_000);
    let place = StreamPlace { stream: StreamId(300), position: StreamPos(0), previous: None };
    let groups = (0..50).flat_map(|_| {
        [
            StreamGroup { count: 1, places: vec![place].into() },
            StreamGroup { count: 1, places: StreamPlaces::new() },
        ]
    });
    let groups: Vec<StreamGroup> = groups.collect();
    for block in 0..100 {
        let start = block * limits::STREAM_BLOCK_COUNT;
        let meta =
            EntryMeta { groups: groups.clone(), ..EntryMeta::new(ClientId(1), Addr(start), RequestNo(0)) };
        index.block(start).borrow_mut().note((start..start + 100).into(), Some(&meta));
        index.settle(start);
        assert!(index.bytes() <= 20_000, "{} bytes", index.bytes());
        // The first one is used all the time.
        let first = index.block(0);
        assert_eq!(first.borrow_mut().find(None, (0..100).into()).len(), 50, "after {block} blocks");
    }
    let second = index.block(limits::STREAM_BLOCK_COUNT);
    assert_eq!(second.borrow().unknown(second.borrow().range()).len(), 1, "it is to be looked at again");
}
