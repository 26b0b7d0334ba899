//! Owners of many versions: what they are told before the first record, reads by what they know of a place, and garbage that is
//! told of late.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    Batch, Chain, ChainOptions, Opening, OptionsError, Owner, Place, PlaceError, Placed, Stretch,
};

use crate::cleaning::eager;
use crate::drives::within;
use crate::model::run_of;
use crate::world::{identity, open_drive, small_options};

/// Needs all versions from `floor` on.
#[derive(Default)]
struct Versions {
    first: Option<Bytes>,
    opening: RefCell<Option<Opening>>,
    places: RefCell<BTreeMap<(u64, u64), Place>>,
    floor: Cell<u64>,
}

impl Owner for Versions {
    fn first_state(&self) -> Option<Bytes> {
        self.first.clone()
    }

    fn opening(&self, opening: &Opening) {
        assert!(self.places.borrow().is_empty(), "it is told before any record");
        assert_eq!(self.opening.replace(Some(opening.clone())), None, "it is told once");
    }

    fn placed(&self, it: Placed) -> Option<Place> {
        assert!(self.opening.borrow().is_some(), "it is told before any record");
        self.places.borrow_mut().insert((it.key, it.version), it.place);
        None
    }

    fn is_live(&self, it: Placed) -> bool {
        it.version >= self.floor.get() && self.places.borrow().get(&(it.key, it.version)) == Some(&it.place)
    }

    fn moved(&self, it: Placed, to: Place) -> bool {
        self.is_live(it) && self.places.borrow_mut().insert((it.key, it.version), to).is_some()
    }

    fn dropped(&self, _: Placed) -> bool {
        false
    }
}

fn block(number: u64) -> Bytes {
    Bytes::from(vec![number as u8; 4096])
}

#[test]
fn an_owner_has_its_state_from_the_first_group_on() {
    within(61, async |env| {
        let drive = open_drive(&env).await;
        let first = Some(Bytes::from_static(b"what it is"));
        let owner = Rc::new(Versions { first: first.clone(), ..Versions::default() });
        let options = small_options();
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let chain = Chain::create_owned(&env, &drive, identity(), options.clone(), told).await;
        let created = owner.opening.borrow().clone().expect("it was told");
        assert_eq!((&created.state, created.segment_bytes, created.link_segments), (&first, 128 << 10, 31));
        // Cut off at once: nothing was ever appended.
        chain.expect("created").abandon().await;
        let owner = Rc::new(Versions::default());
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let (_, recovered) = Chain::open_owned(&env, &drive, None, options, told).await.expect("it opens");
        assert_eq!(recovered.state, first);
        assert_eq!(owner.opening.borrow().as_ref(), Some(&created));
        let large = Rc::new(Versions { first: Some(vec![0; 100_000].into()), ..Versions::default() });
        let refused = Chain::create_owned(&env, &drive, identity(), small_options(), large).await;
        let error = refused.err().expect("it does not fit");
        assert!(
            matches!(
                error,
                ithaca_chain::OpenError::Options(OptionsError::OutOfRange { found: 100_000, .. })
            ),
            "{error}"
        );
    });
}

#[test]
fn records_side_by_side_are_read_by_what_is_known_of_them() {
    within(62, async |env| {
        let drive = open_drive(&env).await;
        let owner = Rc::new(Versions::default());
        let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let chain = Chain::create_owned(&env, &drive, identity(), options, told).await.expect("created");
        let runs = vec![run_of(10, 1, &[block(1), block(2), block(3), block(4)])];
        let ticket = chain.append(Batch { runs, ..Batch::default() }).expect("room");
        chain.wait(ticket).await.expect("no fault");
        let places: Vec<Place> = owner.places.borrow().values().copied().collect();
        let sums: Vec<u32> = places.iter().map(|place| place.checksum).collect();
        let of = |from: usize, checksums, bits| Stretch {
            segment: places[from].segment,
            offset: places[from].offset,
            record_bytes: 4096,
            checksums,
            checksum_bits: bits,
        };
        let three = Bytes::from([block(2), block(3), block(4)].concat());
        assert_eq!(chain.read_stretch(of(1, &sums[1..], 32)).await, Ok(three.clone()));
        let low: Vec<u32> = sums.iter().map(|sum| sum & 0xfff).collect();
        assert_eq!(chain.read_stretch(of(1, &low[1..], 12)).await, Ok(three));
        assert_eq!(chain.read_stretch(of(3, &sums[3..], 32)).await, Ok(block(4)));
        let wrong = [sums[1], sums[2] ^ 1];
        let read = chain.read_stretch(of(1, &wrong, 32)).await;
        assert!(matches!(read, Err(PlaceError::Damaged { place }) if place.len == 8192), "{read:?}");
        let free = Stretch { segment: 9, ..of(0, &sums, 32) };
        assert!(matches!(chain.read_stretch(free).await, Err(PlaceError::Moved { .. })));
    });
}

#[test]
fn a_segment_is_cleaned_when_it_is_told_that_old_versions_are_garbage() {
    within(63, async |env| {
        let drive = open_drive(&env).await;
        let owner = Rc::new(Versions::default());
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let chain = Chain::create_owned(&env, &drive, identity(), eager(), told).await.expect("created");
        for version in 1..=300 {
            let runs = vec![run_of(version % 5, version, &[block(version)])];
            let ticket = chain.append(Batch { runs, ..Batch::default() }).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        env.sleep(Duration::from_millis(50)).await;
        assert_eq!(chain.stats().counters.segments_cleaned, 0, "every version is needed");
        owner.floor.set(296);
        let mut garbage = BTreeMap::new();
        for ((_, version), place) in owner.places.borrow().iter() {
            if *version < 296 {
                *garbage.entry(place.segment).or_insert(0) += 1;
            }
        }
        chain.note_garbage(garbage);
        env.sleep(Duration::from_millis(50)).await;
        let stats = chain.stats();
        assert!(stats.counters.segments_cleaned > 5, "{stats:?}");
        for version in 296..=300 {
            let place = owner.places.borrow()[&(version % 5, version)];
            assert_eq!(chain.read_at(place).await, Ok(block(version)));
        }
    });
}
