//! State machines of one's own, and calls that share records.

use std::rc::Rc;
use std::time::Duration;

use ithaca_env::task::gather;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::{Add, Counter, List};
use ithaca_object::machine::{Machine, Replica};
use ithaca_object::{ObjectError, Runtime, RuntimeOptions, Tx};
use serde::{Deserialize, Serialize};

use crate::worlds::run;

/// Seats that are taken in turn, and who has them.
#[derive(Default, Serialize, Deserialize)]
struct Seats {
    taken: Vec<String>,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Take { who: String },
    Empty,
    Break,
}

impl Machine for Seats {
    const TYPE: &'static str = "seats";
    type Command = Command;
    type Response = usize;

    fn apply(&mut self, command: Command) -> usize {
        match command {
            Command::Take { who } => self.taken.push(who),
            Command::Empty => self.taken.clear(),
            Command::Break => panic!("no such seat"),
        }
        self.taken.len()
    }
}

fn take(who: &str) -> Command {
    Command::Take { who: who.to_owned() }
}

fn seats(runtime: &Runtime) -> Replica<Seats> {
    Replica::open(runtime, "seats").expect("opened")
}

/// How many entries of a stream are in the log.
async fn count(runtime: &Runtime, name: &str) -> usize {
    let client = runtime.client();
    let tail = client.check().await.expect("it serves").tail;
    let (mut next, mut count) = (LogPos(0), 0);
    while next < tail {
        let part = client.read_stream(StreamId::of_name(name), next..tail, 1 << 20).await.expect("read");
        count += part.entries.len();
        next = part.upto;
    }
    count
}

#[test]
fn every_command_has_its_own_response_whoever_shares_its_record() {
    run(async |world| {
        let programs = [world.program().await, world.program().await];
        let replicas: Vec<_> = programs.iter().map(seats).collect();
        let all = replicas.iter().flat_map(|replica| {
            (0..500).map(move |number| async move { replica.submit(take(&number.to_string())).await })
        });
        let responses = gather(all.collect(), Result::is_err).await;
        let mut responses: Vec<usize> =
            responses.into_iter().map(|response| response.expect("ended").expect("taken")).collect();
        responses.sort_unstable();
        assert_eq!(responses, (1..=1000).collect::<Vec<_>>(), "each seat is taken once");
        let taken = replicas[0].read(|seats| seats.taken.clone()).await.expect("read");
        assert_eq!(replicas[1].read(|seats| seats.taken.clone()).await, Ok(taken.clone()));
        assert_eq!(seats(&world.program().await).read(|seats| seats.taken.clone()).await, Ok(taken));
        assert!(count(&programs[0], "seats").await <= 20, "1000 commands that were there at once");
    });
}

#[test]
fn a_read_shows_what_was_acknowledged_to_anybody_and_a_stale_one_what_is_at_hand() {
    run(async |world| {
        let (here, there) = (seats(&world.program().await), seats(&world.program().await));
        assert_eq!(here.submit(take("ann")).await, Ok(1));
        assert_eq!(there.read(|seats| seats.taken.len()).await, Ok(1));
        assert_eq!(here.submit(take("bob")).await, Ok(2));
        let bound = Duration::from_secs(3600);
        assert_eq!(there.stale(bound).read(|seats| seats.taken.len()).await, Ok(1), "it has just asked");
        assert_eq!(there.read(|seats| seats.taken.len()).await, Ok(2));
    });
}

#[test]
fn a_machine_without_undo_has_a_past_checkpoints_and_transactions() {
    run(async |world| {
        let checkpoints = Policy { chunk_bytes: 64, ..Policy::NEVER };
        let program = world.program_with(RuntimeOptions { checkpoints, ..Default::default() }).await;
        let (here, visits) = (seats(&program), Counter::open(&program, "visits").expect("opened"));
        let (_, first) = here.submit_placed(take("ann")).await.expect("taken");
        let first = LogPos(first.expect("a position").0 + 1);
        here.submit(take("bob")).await.expect("taken");
        let middle = here.handle().checkpoint().await.expect("made");
        here.submit(Command::Empty).await.expect("emptied");
        assert_eq!(here.at(first).read(|seats| seats.taken.clone()).await, Ok(vec!["ann".to_owned()]));
        assert_eq!(here.handle().forget(middle).await.map(|forgotten| forgotten.earliest), Ok(middle));
        let fresh = seats(&world.program().await);
        assert_eq!(fresh.at(middle).read(|seats| seats.taken.len()).await, Ok(2));
        assert!(matches!(fresh.at(first).read(|_| ()).await, Err(ObjectError::Forgotten { .. })));

        let body = async |tx: &Tx| -> Result<usize, ObjectError> {
            let seats = here.within(tx);
            seats.submit(take("cat")).await?;
            let taken = seats.submit(take("dan")).await?;
            assert_eq!(seats.read(|seats| seats.taken.clone()).await?, ["cat", "dan"]);
            visits.within(tx).add(2).await?;
            Ok(taken)
        };
        let aborted = program.begin(&Default::default()).await.expect("begun");
        assert_eq!(body(&aborted).await, Ok(2));
        drop(aborted);
        assert_eq!(here.read(|seats| seats.taken.len()).await, Ok(0), "nothing of it stays");
        let (taken, _) = program.transact(&Default::default(), body).await.expect("committed");
        assert_eq!((taken, visits.get().await), (2, Ok(2)));
        assert_eq!(
            fresh.read(|seats| seats.taken.clone()).await,
            Ok(vec!["cat".to_owned(), "dan".to_owned()])
        );
    });
}

#[test]
fn a_command_that_panics_stops_the_machine_before_its_record_and_nobody_else() {
    run(async |world| {
        let program = world.program().await;
        let here = seats(&program);
        here.submit(take("ann")).await.expect("taken");
        // Both share a record: what is before the one that panics must not stay.
        let commands = [take("bob"), Command::Break, take("cat")];
        let ended = gather(commands.map(|command| here.submit(command)).into(), |_| false).await;
        for response in ended.into_iter().flatten() {
            assert!(matches!(response, Err(ObjectError::Stopped { .. })), "{response:?}");
        }
        let Err(ObjectError::Stopped { fault, .. }) = here.read(|_| ()).await else {
            panic!("it is stopped")
        };
        assert_eq!(here.at(fault.pos).read(|seats| seats.taken.clone()).await, Ok(vec!["ann".to_owned()]));
        let list = List::<u64>::open(&program, "list").expect("opened");
        assert_eq!(list.push(7).await.map(|_| ()), Ok(()));
    });
}

#[test]
fn calls_of_any_object_can_share_records() {
    run(async |world| {
        let program = world.program().await;
        let counter = Counter::open(&program, "counter").expect("opened");
        let handle = Rc::new(counter.handle().clone());
        let adds = (0..300).map(|amount| {
            let handle = Rc::clone(&handle);
            async move { handle.submit(Add { amount }).await }
        });
        for added in gather(adds.collect(), Result::is_err).await {
            assert_eq!(added.map(|added| added.map(|_| ())), Some(Ok(())));
        }
        assert_eq!(counter.get().await, Ok((0..300).sum()));
        assert!(count(&program, "counter").await <= 10);
        let old = handle.at(LogPos(0)).submit(Add { amount: 1 }).await;
        assert!(matches!(old, Err(ObjectError::ReadOnly { .. })), "{:?}", old.map(|_| ()));
    });
}

#[test]
fn a_command_that_fits_into_no_record_fails_alone() {
    run(async |world| {
        let here = seats(&world.program().await);
        let commands = [take("ann"), take(&"x".repeat(2 << 20)), take("bob")];
        let ended = gather(commands.map(|command| here.submit(command)).into(), |_| false).await;
        let ended: Vec<_> = ended.into_iter().flatten().collect();
        assert!(
            ended[0].is_ok() && ended[2].is_ok() && matches!(ended[1], Err(ObjectError::Log(_))),
            "{ended:?}"
        );
        assert_eq!(
            here.read(|seats| seats.taken.clone()).await,
            Ok(vec!["ann".to_owned(), "bob".to_owned()])
        );
    });
}
