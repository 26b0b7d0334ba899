//! Looks at many blocks: whoever wants one takes turns with all others who do, a slice at a time, so that what is asked for together holds
//! up no more of other work than one slice does.

use std::ops::Range;
use std::rc::Rc;

use super::Inner;
use super::read::{Extents, View};
use crate::error::VolumeError;

/// Blocks that are looked at between two turns of other work.
pub(super) const LOOK_SLICE: u64 = 1 << 12;
/// Blocks that are looked at without waiting for others: no more than a small read looks at.
const LOOK_AT_ONCE: u64 = 1 << 8;

impl Inner {
    /// Has `look` look at these blocks, a slice, when it is its turn. Dropping the future gives the turn up.
    pub(super) async fn in_turn<T>(&self, slice: &Range<u64>, look: impl FnOnce() -> T) -> T {
        let blocks = slice.end - slice.start;
        assert!(blocks <= LOOK_SLICE, "{blocks} blocks are no slice");
        if blocks <= LOOK_AT_ONCE {
            return look();
        }
        let turn = self.looks.acquire(1).await;
        let found = look();
        // Others have theirs before the next one looks.
        self.env.yield_now().await;
        drop(turn);
        found
    }

    /// The first stretches of these blocks, `at_most` of them, each with whether it holds data.
    pub(super) async fn extents_in_turn(
        self: &Rc<Self>,
        blocks: Range<u64>,
        at_most: usize,
        view: View,
    ) -> Result<Vec<(Range<u64>, bool)>, VolumeError> {
        let (mut found, mut at) = (Vec::<(Range<u64>, bool)>::new(), blocks.start);
        // One more, so that the last is known to have come to its end.
        while at < blocks.end && found.len() <= at_most {
            let slice = at..blocks.end.min(at + LOOK_SLICE);
            let look = || {
                for (stretch, is_data) in Extents::new(self, slice.clone(), view)? {
                    let is_full = found.len() > at_most;
                    match found.last_mut() {
                        Some((last, of_data)) if *of_data == is_data => last.end = stretch.end,
                        _ if is_full => break,
                        _ => found.push((stretch, is_data)),
                    }
                }
                Ok::<_, VolumeError>(())
            };
            self.in_turn(&slice, look).await?;
            at = slice.end;
        }
        found.truncate(at_most);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use ithaca_chain::ChainOptions;
    use ithaca_env::drive::OpenDrive;
    use ithaca_env::sim::Sim;

    use super::*;
    use crate::{Durability, Volume, VolumeOptions, VolumeSettings};

    #[test]
    fn stretches_are_looked_for_in_slices_one_a_turn_whoever_asks_and_are_the_same_as_at_once() {
        let sim = Sim::new(1);
        let process = sim.process("volume", std::net::Ipv4Addr::LOCALHOST.into());
        let env = sim.env(process);
        sim.block_on(process, async move {
            let (blocks, clients) = (1 << 16, 10);
            let chain =
                ChainOptions { segment_bytes: 1 << 20, capacity_bytes: 64 << 20, ..ChainOptions::default() };
            let settings = VolumeSettings { chain, ..VolumeSettings::default() };
            let open = OpenDrive { path: "volume".into(), create_bytes: Some(1 << 20), read_only: false };
            let drive = env.open_drive(open).await.expect("a new drive");
            let volume =
                Volume::create(&env, drive, VolumeOptions { settings, ..VolumeOptions::new(blocks) });
            let volume = volume.await.expect("created");
            // At the ends of slices, across one, and alone.
            for (at, count) in
                [(0, 1), (LOOK_SLICE - 2, 4), (3 * LOOK_SLICE, 1), (blocks / 2, 5), (blocks - 1, 1)]
            {
                let data = Bytes::from(vec![7; count * 4096]);
                volume.write(at, data, Durability::Stable).await.expect("room");
            }
            let (turns, others) = (Rc::new(Cell::new(0)), env.clone());
            let count = Rc::clone(&turns);
            let counting = env.spawn(async move {
                loop {
                    others.yield_now().await;
                    count.set(count.get() + 1);
                }
            });
            let at_once: Vec<_> = volume.extents(5..blocks).expect("inside").collect();
            assert_eq!((turns.get(), at_once.len()), (0, 8));
            let looks = (0..clients).map(|_| {
                let volume = volume.clone();
                env.spawn(async move { volume.extents_in_turn(5..blocks, 4096).await })
            });
            for look in looks.collect::<Vec<_>>() {
                assert_eq!(look.join().await, Some(Ok(at_once.clone())));
            }
            let slices = clients * blocks / LOOK_SLICE;
            assert!(turns.get() >= slices, "{} turns of others in {slices} slices", turns.get());
            counting.abort();
            let version = volume.info().version;
            let snapshot = volume.at(version).expect("the newest");
            for at_most in 1..9 {
                let found = volume.extents_in_turn(5..blocks, at_most).await;
                assert_eq!(found.as_deref(), Ok(&at_once[..at_most]));
                assert_eq!(snapshot.extents_in_turn(5..blocks, at_most).await, found);
            }
        });
    }
}
