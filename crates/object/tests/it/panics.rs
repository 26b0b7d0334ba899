//! Methods that panic: the object stops there, whoever has other objects goes on.

use std::time::Duration;

use ithaca_log::pos::LogPos;
use ithaca_object::collections::Map;
use ithaca_object::key::Key;
use ithaca_object::{ObjectError, Tx, TxOptions, object_type};
use serde::{Deserialize, Serialize};

use crate::worlds::run;

const DAY: Duration = Duration::from_secs(86_400);

/// A sum that takes no odd numbers.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Even {
    sum: u64,
    half_done: bool,
}

#[object_type]
impl Even {
    #[accessor]
    pub fn sum(&self) -> u64 {
        assert!(!self.half_done, "nobody sees what a panic has left");
        self.sum
    }

    #[mutator]
    pub fn add(&mut self, number: u64) {
        self.half_done = true;
        assert!(number.is_multiple_of(2), "{number} is odd");
        self.sum += number;
        self.half_done = false;
    }

    #[accessor_mutator]
    pub fn add_and_tell(&mut self, number: u64) -> u64 {
        self.add(number);
        self.sum
    }
}

#[test]
fn a_method_that_panics_stops_its_object_there_and_no_other() {
    run(async |world| {
        let program = world.program().await;
        let even = EvenHandle::open(&program, "even").expect("opened");
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        even.add(2).await.expect("added");
        even.add(4).await.expect("added");
        assert_eq!(even.sum().await, Ok(6));
        let before = program.client().check().await.expect("it serves").tail;
        even.add(3).await.expect("it is in the log; what it does there nobody has asked");
        for program in [&program, &world.program().await] {
            let even = EvenHandle::open(program, "even").expect("opened");
            let read = even.sum().await;
            let Err(error @ ObjectError::Stopped { .. }) = &read else { panic!("{read:?}") };
            let text = error.to_string();
            assert!(
                text.contains("`add` panicked: 3 is odd") && text.contains(&before.to_string()),
                "{text}"
            );
            assert_eq!(even.at(before).sum().await, Ok(6), "what lies below is read");
            assert_eq!(even.at(LogPos(before.0 - 1)).sum().await, Ok(2));
        }
        map.put(1, 1).await.expect("others go on");
        assert_eq!(map.len().await, Ok(1));
    });
}

#[test]
fn a_call_that_panics_in_a_transaction_is_in_no_log_and_the_object_goes_on() {
    run(async |world| {
        let program = world.program().await;
        let even = EvenHandle::open(&program, "even").expect("opened");
        even.add(2).await.expect("added");
        assert_eq!(even.sum().await, Ok(2));
        let odd = async |tx: &Tx| -> Result<u64, ObjectError> {
            even.within(tx).add(4).await?;
            even.within(tx).add(5).await?;
            even.within(tx).sum().await
        };
        let error = program.transact(&Default::default(), odd).await.map(|_| ());
        assert!(matches!(error, Err(ObjectError::Call(_))), "{error:?}");
        assert_eq!(
            even.handle.stale(DAY).read(Key::all, |even| even.sum).await,
            Ok(2),
            "an old state, and not none"
        );
        assert_eq!(even.sum().await, Ok(2), "as if it had never been");
        even.add(6).await.expect("added");
        assert_eq!(even.sum().await, Ok(8));
    });
}

#[test]
fn a_call_that_fails_in_a_transaction_is_not_committed_with_the_rest_of_it() {
    run(async |world| {
        let program = world.program().await;
        let even = EvenHandle::open(&program, "even").expect("opened");
        even.add(2).await.expect("added");
        let body = async |tx: &Tx| -> Result<u64, ObjectError> {
            even.within(tx).add(4).await?;
            let failed = even.within(tx).add_and_tell(5).await;
            assert!(matches!(failed, Err(ObjectError::Call(_))), "{failed:?}");
            even.within(tx).add(6).await?;
            even.within(tx).sum().await
        };
        let (sum, _) = program.transact(&TxOptions::default(), body).await.expect("committed");
        assert_eq!((sum, even.sum().await), (12, Ok(12)));
    });
}

#[test]
fn a_mutator_that_panics_in_a_transaction_without_a_read_is_in_no_log() {
    // It gives nothing, so nobody has to make it before it is in the log; there it would stop the object for good.
    run(async |world| {
        let program = world.program().await;
        let even = EvenHandle::open(&program, "even").expect("opened");
        even.add(2).await.expect("added");
        assert_eq!(even.sum().await, Ok(2));
        let odd = async |tx: &Tx| -> Result<(), ObjectError> {
            even.within(tx).add(4).await?;
            even.within(tx).add(5).await
        };
        let error = program.transact(&TxOptions::default(), odd).await.map(|_| ());
        assert!(matches!(error, Err(ObjectError::Call(_))), "{error:?}");
        for program in [&program, &world.program().await] {
            let even = EvenHandle::open(program, "even").expect("opened");
            assert_eq!(even.sum().await, Ok(2), "as if it had never been");
        }
    });
}
