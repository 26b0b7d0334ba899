//! The figures of the tail cache count with an emulator. Here a real chain with a real cache drive, simulated, is given the same requests: it
//! must answer as many of them as the emulator says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    Answered, Batch, CacheDrive, Chain, ChainId, ChainOptions, Identity, Label, Owner, Place, Placed, Run,
    RunKind, Table,
};
use ithaca_env::sim::Speed;

use super::load::Bench;
use super::tail_emulator::{Mix, Sizes, fill, mixes};

const TAIL_BLOCKS: u64 = 1 << 14;
const BLOCK_BYTES: usize = 4096;

/// Where the newest version of each block of a volume lies.
#[derive(Default)]
struct Map(RefCell<BTreeMap<u64, (u64, Place)>>);

impl Owner for Map {
    fn placed(&self, record: Placed) -> Option<Place> {
        let before = self.0.borrow_mut().insert(record.key, (record.version, record.place));
        before.map(|(_, place)| place)
    }

    fn is_live(&self, record: Placed) -> bool {
        self.0.borrow().get(&record.key) == Some(&(record.version, record.place))
    }

    fn moved(&self, _: Placed, _: Place) -> bool {
        unreachable!("nothing is cleaned: there is room for everything")
    }

    fn dropped(&self, _: Placed) -> bool {
        unreachable!("nothing is deleted")
    }
}

async fn write(chain: &Chain, block: u64, version: u64) {
    let data = Bytes::from(vec![version as u8; BLOCK_BYTES]);
    let table = Table::of_payloads([&data]);
    let run = Run { first_key: block, version, kind: RunKind::Data, meta: Bytes::new(), table, data };
    let ticket = chain.append(Batch { runs: vec![run], ..Batch::default() }).expect("there is room");
    chain.wait(ticket).await.expect("no fault meets the drive");
}

/// What a chain answers of the requests of a mix until as many blocks are written as the tail drive is to have.
fn answered_by_a_chain(sizes: Sizes, mix: Mix) -> Answered {
    let bench = Bench::new(1, Speed::Ram);
    let (_, drive) = bench.drive("tail", 1 << 30);
    let (_, cache_drive) = bench.drive("cache", 64 << 10);
    let (env, map) = (bench.env(), Rc::new(Map::default()));
    bench.block_on(async move {
        let identity = Identity { id: ChainId([7; 16]), label: Label::new("figure").expect("a short label") };
        // Each group is a block of data and one for its head.
        let tail_cache_bytes = sizes.memory_blocks as usize * 2 * BLOCK_BYTES;
        let options = ChainOptions { segment_bytes: 8 << 20, tail_cache_bytes, ..ChainOptions::default() };
        let owner = Rc::clone(&map) as Rc<dyn Owner>;
        let chain = Chain::create_owned(&env, drive, identity, options, owner).await.expect("a blank drive");
        let cache_bytes = sizes.tail_blocks / sizes.tail_of_ssd * BLOCK_BYTES as u64 + (64 << 10);
        let cache = CacheDrive::open(&env, cache_drive, cache_bytes).await.expect("a blank drive");
        chain.use_cache(&cache);
        let mut version = 0;
        for request in mix {
            for block in request.block..request.block + request.blocks {
                if request.is_write && version == sizes.tail_blocks {
                    return chain.stats().reads.tail;
                }
                let place = map.0.borrow().get(&block).copied();
                match (request.is_write, place) {
                    (true, _) => {
                        version += 1;
                        write(&chain, block, version).await;
                    }
                    (false, Some((version, place))) => {
                        let data = chain.read_at(place).await.expect("no fault meets the drives");
                        assert!(data.iter().all(|&byte| byte == version as u8), "block {block}");
                    }
                    (false, None) => {}
                }
            }
        }
        unreachable!("a mix does not end")
    })
}

#[test]
fn a_chain_answers_as_many_reads_as_the_emulator_says() {
    let sizes = Sizes::of_the_text(TAIL_BLOCKS);
    for number in [0, 12] {
        let mix = || mixes(TAIL_BLOCKS).swap_remove(number);
        let emulated = fill(sizes, mix().blocks, mix()).whole();
        let chain = answered_by_a_chain(sizes, mix());
        let reads = (chain.memory + chain.cache_drive + chain.missed) as f64;
        let memory_percent = 100.0 * chain.memory as f64 / reads;
        let hit_percent = 100.0 * (chain.memory + chain.cache_drive) as f64 / reads;
        println!("mix {number}: {chain:?}, emulated {emulated:?}");
        assert_eq!(chain.memory + chain.cache_drive + chain.missed, emulated.reads());
        assert!((memory_percent - emulated.memory_percent()).abs() < 1.0, "memory {memory_percent:.1} %");
        assert!((hit_percent - emulated.hit_percent()).abs() < 2.0, "memory and cache {hit_percent:.1} %");
    }
}
