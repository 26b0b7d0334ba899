//! A cleaner that is in a hurry: the next segment is looked through while the records of one are moved.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{AppendError, Chain, ChainOptions};
use ithaca_env::drive::{Drive, DriveFuture, Wrapper};
use ithaca_env::sync::Notify;

use crate::cleaning::{append, tenth};
use crate::drives::within;
use crate::world::{identity, open_drive, small_options};

const SEGMENT: u64 = 128 << 10;
/// Where the first segment begins.
const FIRST: u64 = 64 << 10;

/// A drive that answers no reads of records in the first half of a segment, while it is told to hold them.
#[derive(Clone)]
struct Held {
    drive: Drive,
    is_holding: Rc<Cell<bool>>,
    let_go: Rc<Notify>,
    /// The segment whose read was held first, and those that were read of since.
    held: Rc<Cell<Option<u64>>>,
    others: Rc<RefCell<Vec<u64>>>,
}

impl Wrapper for Held {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let read = self.drive.read(offset, len);
        let Some(offset) = offset.checked_sub(FIRST) else { return read };
        let (segment, place) = (offset / SEGMENT, offset % SEGMENT);
        let is_record = (1..SEGMENT / 2).contains(&place);
        if self.held.get().is_some_and(|held| held != segment) {
            self.others.borrow_mut().push(segment);
        }
        if !self.is_holding.get() || !is_record {
            return read;
        }
        self.held.set(self.held.get().or(Some(segment)));
        let (is_holding, let_go) = (Rc::clone(&self.is_holding), Rc::clone(&self.let_go));
        Box::pin(async move {
            let_go.until(|| (!is_holding.get()).then_some(())).await;
            read.await
        })
    }
}

#[test]
fn the_next_segment_is_looked_through_while_records_of_one_are_moved() {
    within(41, async |env| {
        let held = Held {
            drive: open_drive(&env).await,
            is_holding: Rc::default(),
            let_go: Rc::default(),
            held: Rc::default(),
            others: Rc::default(),
        };
        let options = ChainOptions {
            capacity_bytes: 2 << 20,
            tail_cache_bytes: 0,
            clean_start_free_percent: 0,
            ..small_options()
        };
        let drive = Drive::new(Rc::new(held.clone()));
        let chain = Chain::create(&env, drive, identity(), options).await.expect("created");
        let mut key = 0;
        while held.held.get().is_none() {
            match chain.append(tenth(key)) {
                Ok(_) => key += 1,
                Err(AppendError::Overloaded { .. }) => {
                    held.is_holding.set(true);
                    env.sleep(Duration::from_micros(500)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        env.sleep(Duration::from_millis(50)).await;
        assert_ne!(*held.others.borrow(), [], "read of while segment {:?} waits", held.held.get());
        held.is_holding.set(false);
        held.let_go.ring();
        for key in key..2 * key {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        for key in (0..2 * key).step_by(10) {
            let record = chain.read(key).await.expect("no damage").expect("it is kept");
            assert_eq!(record.data[..], [key as u8; 4096]);
        }
    });
}
