//! Transactions over several objects and programs.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::Poll;

use ithaca_env::task::gather;
use ithaca_log::pos::LogPos;
use ithaca_object::collections::{Counter, List, Map, Put};
use ithaca_object::{Begin, Isolation, ObjectError, Runtime, Tx, TxOptions};

use crate::worlds::{World, run, run_with};

type Accounts = Map<String, i64>;

/// Something that is under way in a transaction.
type Doing<'d> = Pin<Box<dyn Future<Output = Result<(), ObjectError>> + 'd>>;

fn options(isolation: Isolation) -> TxOptions {
    TxOptions { isolation, ..TxOptions::default() }
}

#[test]
fn a_transaction_is_seen_whole_or_not_at_all() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let accounts = Accounts::open(&one, "accounts").expect("opened");
        let ledger = List::<String>::open(&one, "ledger").expect("opened");
        let tx = one.begin(&TxOptions::default()).await.expect("begun");
        let (inside, entries) = (accounts.within(&tx), ledger.within(&tx));
        inside.put("a".into(), 10).await.expect("put");
        entries.push("a has 10".into()).await.expect("pushed");
        assert_eq!(inside.get(&"a".into()).await, Ok(Some(10)), "it sees what it wrote");
        assert_eq!(entries.len().await, Ok(1));
        let elsewhere = Accounts::open(&two, "accounts").expect("opened");
        assert_eq!(elsewhere.get(&"a".into()).await, Ok(None), "and nobody else does");
        assert_eq!(accounts.get(&"a".into()).await, Ok(None));
        let (_, pos) = tx.commit().await.expect("committed").record.expect("it wrote");
        assert_eq!(elsewhere.get_placed(&"a".into()).await.expect("read").expect("there").pos, pos.0);
        assert_eq!(List::<String>::open(&two, "ledger").expect("opened").len().await, Ok(1));
        assert_eq!(inside.get(&"a".into()).await, Err(ObjectError::Ended));
    });
}

#[test]
fn an_abort_names_the_object_the_key_the_position_and_the_other_transaction() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let accounts = Accounts::open(&one, "accounts").expect("opened");
        accounts.put("a".into(), 10).await.expect("put");
        let tx = one.begin(&TxOptions::default()).await.expect("begun");
        let seen = accounts.within(&tx).get(&"a".into()).await.expect("read").expect("there");
        let other = Accounts::open(&two, "accounts").expect("opened");
        let between = other.fast_put("a".into(), 11).await.expect("put").expect("a position");
        assert_eq!(accounts.within(&tx).get(&"a".into()).await, Ok(Some(10)), "one snapshot, doomed or not");
        accounts.within(&tx).fast_put("a".into(), seen + 1).await.expect("put");
        let Err(ObjectError::Aborted(aborted)) = tx.commit().await else { panic!("a lost update") };
        assert_eq!((aborted.object.as_str(), aborted.pos), ("accounts", between));
        assert_eq!(aborted.key.to_string(), "key \"a\"");
        assert_eq!(aborted.by.map(|id| id.client), Some(two.client().id().0));
        assert_eq!(accounts.get(&"a".into()).await, Ok(Some(11)));
    });
}

#[test]
fn other_keys_and_additions_do_not_conflict_and_questions_about_all_do() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let accounts = Accounts::open(&one, "accounts").expect("opened");
        let visits = Counter::open(&one, "visits").expect("opened");
        let elsewhere = Accounts::open(&two, "accounts").expect("opened");
        let by_key = one.begin(&TxOptions::default()).await.expect("begun");
        accounts.within(&by_key).put("a".into(), 1).await.expect("put");
        visits.within(&by_key).add(1).await.expect("added");
        let by_size = one.begin(&TxOptions::default()).await.expect("begun");
        let size = accounts.within(&by_size).len().await.expect("read") as i64;
        accounts.within(&by_size).fast_put("size".into(), size).await.expect("put");
        elsewhere.put("b".into(), 2).await.expect("put");
        Counter::open(&two, "visits").expect("opened").add(1).await.expect("added");
        assert!(by_key.commit().await.is_ok());
        assert!(matches!(by_size.commit().await, Err(ObjectError::Aborted(_))));
        assert_eq!(visits.get().await, Ok(2));
    });
}

#[test]
fn snapshot_isolation_lets_two_write_what_the_other_has_read() {
    // Write skew: each takes from one account because both together have enough.
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        for (isolation, both) in [(Isolation::Snapshot, true), (Isolation::Strict, false)] {
            accounts.put("a".into(), 5).await.expect("put");
            accounts.put("b".into(), 5).await.expect("put");
            let take = async |from: &str| -> Result<Tx, ObjectError> {
                let tx = program.begin(&options(isolation)).await?;
                let inside = accounts.within(&tx);
                let sum =
                    inside.get(&"a".into()).await?.unwrap_or(0) + inside.get(&"b".into()).await?.unwrap_or(0);
                inside.fast_put(from.into(), 5 - sum).await?;
                Ok(tx)
            };
            let (one, other) = (take("a").await.expect("read"), take("b").await.expect("read"));
            assert!(one.commit().await.is_ok());
            assert_eq!(other.commit().await.is_ok(), both, "{isolation:?}");
        }
    });
}

#[test]
fn a_nested_transaction_that_fails_leaves_nothing_and_the_outer_one_goes_on() {
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let accounts = accounts.within(tx);
            accounts.put("outer".into(), 1).await?;
            let failed: Result<(), ObjectError> = tx
                .nested(async |tx| {
                    accounts.put("inner".into(), 1).await?;
                    assert_eq!(accounts.get(&"outer".into()).await?, Some(1));
                    let _: &Tx = tx;
                    Err(ObjectError::Ended)
                })
                .await;
            assert!(failed.is_err());
            assert_eq!(accounts.get(&"inner".into()).await?, None);
            tx.nested(async |_| accounts.put("kept".into(), 1).await.map(|_| ())).await
        };
        program.transact(&TxOptions::default(), body).await.expect("committed");
        assert_eq!(names_of(&accounts).await, ["kept", "outer"]);
    });
}

/// The names of all accounts.
async fn names_of(accounts: &Accounts) -> Vec<String> {
    accounts.entries().await.expect("read").into_iter().map(|(name, _)| name).collect()
}

/// Lets a future begin, and drops it.
async fn begin_and_drop<T>(future: impl Future<Output = T>) {
    let mut future = std::pin::pin!(future);
    let begun = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
    assert!(!begun, "it is under way");
}

#[test]
fn what_is_dropped_in_a_transaction_is_not_committed_with_the_rest_of_it() {
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let elsewhere = Accounts::open(&world.program().await, "accounts").expect("opened");
        elsewhere.put("there".into(), 1).await.expect("put");
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let accounts = accounts.within(tx);
            // The first waits for the log, so that it is dropped on its way.
            begin_and_drop(accounts.put("call".into(), 1)).await;
            let has_put = Cell::new(false);
            let nested = tx.nested(async |_| -> Result<(), ObjectError> {
                accounts.put("nested".into(), 1).await?;
                has_put.set(true);
                std::future::pending().await
            });
            let mut nested = Box::pin(nested);
            while !has_put.get() {
                begin_and_drop(nested.as_mut()).await;
                world.env.yield_now().await;
            }
            drop(nested);
            accounts.put("kept".into(), 1).await.map(|_| ())
        };
        program.transact(&TxOptions::default(), body).await.expect("committed");
        assert_eq!(names_of(&accounts).await, ["kept", "there"]);
    });
}

/// Two nested transactions side by side, each with a put to the object of its name; the failing one fails when both have put.
async fn side_by_side(
    world: &World,
    program: &Runtime,
    objects: [&str; 2],
    failing: usize,
) -> Result<Vec<bool>, ObjectError> {
    let body = async |tx: &Tx| -> Result<Vec<bool>, ObjectError> {
        let puts = Cell::new(0);
        let inner = async |nth: usize| {
            let accounts = Accounts::open(program, objects[nth]).expect("opened").within(tx);
            let nested = tx.nested(async |_| {
                accounts.put(format!("by {nth}"), 1).await?;
                puts.set(puts.get() + 1);
                while puts.get() < 2 {
                    world.env.yield_now().await;
                }
                if nth == failing { Err(ObjectError::Ended) } else { Ok(()) }
            });
            nested.await.is_ok()
        };
        Ok(gather(vec![inner(0), inner(1)], |_| false).await.into_iter().flatten().collect())
    };
    Ok(program.transact(&TxOptions::default(), body).await?.0)
}

#[test]
fn of_nested_transactions_side_by_side_each_takes_back_its_own() {
    run(async |world| {
        let program = world.program().await;
        for failing in [0, 1] {
            let objects = [format!("a{failing}"), format!("b{failing}")];
            let objects = [objects[0].as_str(), objects[1].as_str()];
            let done = side_by_side(&world, &program, objects, failing).await.expect("committed");
            assert_eq!(done, [failing != 0, failing != 1]);
            for (nth, name) in objects.iter().enumerate() {
                let accounts = Accounts::open(&program, name).expect("opened");
                let put = accounts.get(&format!("by {nth}")).await.expect("read");
                assert_eq!(put.is_some(), nth != failing, "{name}");
            }
        }
    });
}

#[test]
fn what_was_built_on_a_call_that_is_taken_back_is_not_committed() {
    run(async |world| {
        let program = world.program().await;
        let shared = Accounts::open(&program, "shared").expect("opened");
        assert_eq!(shared.len().await, Ok(0));
        let ended = side_by_side(&world, &program, ["shared", "shared"], 0).await;
        assert_eq!(ended, Err(ObjectError::Ended), "the second put has seen the first");
        assert_eq!(shared.len().await, Ok(0));
        let done = side_by_side(&world, &program, ["shared", "shared"], 1).await;
        assert_eq!(done, Ok(vec![true, false]), "the first put has seen nothing of the second");
        assert_eq!(shared.get(&"by 0".into()).await, Ok(Some(1)));
        assert_eq!(shared.len().await, Ok(1));
    });
}

#[test]
fn what_was_read_over_a_call_that_is_taken_back_is_not_committed() {
    // What others do because of such a read would be in the log without its cause.
    run(async |world| {
        let (program, other) = (world.program().await, world.program().await);
        let [cause, effect] = ["cause", "effect"].map(|name| Accounts::open(&program, name).expect("opened"));
        let elsewhere = Accounts::open(&other, "cause").expect("opened");
        for (puts_inside, reads_inside) in [(false, false), (true, false), (false, true), (true, true)] {
            // The view lies behind, so that the put waits.
            elsewhere.fast_put("there".into(), 1).await.expect("put");
            let body = async |tx: &Tx| -> Result<(), ObjectError> {
                let (cause, effect) = (cause.within(tx), effect.within(tx));
                let inside = tx.nested(async |_| cause.put("x".into(), 1).await.map(|_| ()));
                let (mut inside, mut plain) = (Box::pin(inside), Box::pin(cause.put("x".into(), 1)));
                match puts_inside {
                    true => begin_and_drop(inside.as_mut()).await,
                    false => begin_and_drop(plain.as_mut()).await,
                }
                let read = async |_: &Tx| match cause.get(&"x".into()).await? {
                    Some(_) => Err(ObjectError::Ended),
                    None => Ok(()),
                };
                let seen = if reads_inside { tx.nested(read).await } else { read(tx).await };
                assert_eq!(seen, Err(ObjectError::Ended));
                drop((inside, plain));
                effect.fast_put("y".into(), 1).await.map(|_| ())
            };
            let done = program.transact(&TxOptions::default(), body).await.map(|_| ());
            assert_eq!(done, Err(ObjectError::Ended), "put inside {puts_inside}, read inside {reads_inside}");
            assert_eq!((cause.len().await, effect.len().await), (Ok(1), Ok(0)));
        }
    });
}

#[test]
fn a_transaction_that_has_read_what_is_taken_back_has_no_result_though_it_writes_nothing() {
    run(async |world| {
        let (program, other) = (world.program().await, world.program().await);
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let elsewhere = Accounts::open(&other, "accounts").expect("opened");
        elsewhere.put("there".into(), 1).await.expect("put");
        let body = async |tx: &Tx| -> Result<usize, ObjectError> {
            let accounts = accounts.within(tx);
            let mut put = Box::pin(accounts.put("x".into(), 1));
            begin_and_drop(put.as_mut()).await;
            accounts.len().await
        };
        let done = program.transact(&TxOptions::default(), body).await.map(|(len, _)| len);
        assert_eq!(done, Err(ObjectError::Ended), "the put is dropped with the body");
    });
}

#[test]
fn a_nested_transaction_that_is_dropped_with_several_calls_under_way_leaves_the_rest_as_it_is() {
    // Its calls are dropped one after the other, and each is built on the ones before it.
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let elsewhere = Accounts::open(&world.program().await, "accounts").expect("opened");
        elsewhere.put("there".into(), 1).await.expect("put");
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let accounts = accounts.within(tx);
            let several = tx.nested(async |_| -> Result<(), ObjectError> {
                let put = async |name: &str| accounts.put(name.into(), 1).await.map(|_| ());
                let len = async || accounts.len().await.map(|_| ());
                let calls: Vec<Doing<'_>> = vec![Box::pin(put("a")), Box::pin(put("b")), Box::pin(len())];
                gather(calls, |_| false).await;
                Ok(())
            });
            begin_and_drop(several).await;
            accounts.put("kept".into(), 1).await.map(|_| ())
        };
        program.transact(&TxOptions::default(), body).await.expect("committed");
        assert_eq!(names_of(&accounts).await, ["kept", "there"]);
    });
}

#[test]
fn a_nested_transaction_that_outlives_the_one_around_it_writes_nothing() {
    // Half of it is gone with the one around it.
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let (world, accounts, begun) = (&world, &accounts.within(tx), &RefCell::new(None));
            let failed = tx.nested(async move |_| -> Result<(), ObjectError> {
                let mut inner = Box::pin(tx.nested(async move |_| -> Result<(), ObjectError> {
                    accounts.fast_put("first".into(), 1).await?;
                    world.env.yield_now().await;
                    accounts.fast_put("second".into(), 1).await.map(|_| ())
                }));
                begin_and_drop(inner.as_mut()).await;
                begun.replace(Some(inner));
                Err(ObjectError::Ended)
            });
            assert_eq!(failed.await, Err(ObjectError::Ended));
            let inner = begun.take().expect("begun");
            assert_eq!(inner.await, Err(ObjectError::Ended));
            accounts.fast_put("kept".into(), 1).await.map(|_| ())
        };
        program.transact(&TxOptions::default(), body).await.expect("committed");
        assert_eq!(names_of(&accounts).await, ["kept"]);
    });
}

#[test]
fn increments_of_many_programs_are_all_there() {
    // Each reads, adds one and writes, and does it again where another one came between.
    run(async |world| {
        let mut programs = Vec::new();
        for _ in 0..4 {
            programs.push(world.program().await);
        }
        for begin in [Begin::Newest, Begin::Local] {
            let options = TxOptions { begin, retries: 1000, ..TxOptions::default() };
            let work = programs.iter().map(|program| {
                let (world, options) = (&world, &options);
                async move {
                    let accounts = Accounts::open(program, "accounts").expect("opened");
                    for _ in 0..20 {
                        let body = async |tx: &Tx| -> Result<(), ObjectError> {
                            let inside = accounts.within(tx);
                            let value = inside.get(&"n".into()).await?.unwrap_or(0);
                            world.env.yield_now().await;
                            inside.put("n".into(), value + 1).await.map(|_| ())
                        };
                        program.transact(options, body).await.expect("committed");
                    }
                }
            });
            gather(work.collect(), |_| false).await;
        }
        let accounts = Accounts::open(&programs[0], "accounts").expect("opened");
        assert_eq!(accounts.get(&"n".into()).await, Ok(Some(160)));
    });
}

#[test]
fn a_transaction_that_is_run_again_begins_in_memory_where_that_reflects_what_was_in_its_way() {
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        accounts.put("a".into(), 1).await.expect("put");
        let between = Cell::new(None);
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let seen = accounts.within(tx).get(&"a".into()).await?.unwrap_or(0);
            if between.get().is_none() {
                let put = Put { key: "a".to_owned(), value: 10 };
                between.set(accounts.handle().call_placed(put).await?.1);
                // Whoever asks where the log ends is told of a position above.
                program.client().append("of no object".into()).await?;
            }
            accounts.within(tx).fast_put("a".into(), seen + 1).await.map(|_| ())
        };
        let local = TxOptions { begin: Begin::Local, ..TxOptions::default() };
        let ((), committed) = program.transact(&local, body).await.expect("committed");
        assert_eq!(committed.snapshot, between.get().map(|pos| LogPos(pos.0 + 1)), "nobody was asked");
        assert_eq!(accounts.get(&"a".into()).await, Ok(Some(11)));
    });
}

#[test]
fn a_transaction_that_sends_first_has_the_snapshot_of_what_it_reads_first() {
    run(async |world| {
        let elsewhere = Accounts::open(&world.program().await, "config").expect("opened");
        elsewhere.put("a".into(), 7).await.expect("put");
        let elsewhere = Accounts::open(&world.program().await, "sums").expect("opened");
        for isolation in [Isolation::Strict, Isolation::Snapshot] {
            elsewhere.put("sum".into(), 1).await.expect("put");
            // Nobody has read anything here.
            let program = world.program().await;
            let local = TxOptions { begin: Begin::Local, isolation, ..TxOptions::default() };
            let [sums, config] =
                ["sums", "config"].map(|name| Accounts::open(&program, name).expect("opened"));
            let tx = program.begin(&local).await.expect("begun");
            sums.within(&tx).fast_put(format!("sent by {isolation:?}"), 2).await.expect("sent");
            assert_eq!(config.within(&tx).get(&"a".into()).await, Ok(Some(7)), "{isolation:?}");
            tx.commit().await.expect("nobody was in the way");
            // Nor does one that reads nothing at all rest on the state before the first call.
            let program = world.program().await;
            let tx = program.begin(&local).await.expect("begun");
            let sums = Accounts::open(&program, "sums").expect("opened");
            sums.within(&tx).fast_put("sum".into(), 2).await.expect("sent");
            tx.commit().await.expect("nobody was in the way");
        }
        assert_eq!(elsewhere.get(&"sum".into()).await, Ok(Some(2)));
    });
}

#[test]
fn what_is_in_the_way_of_a_given_snapshot_is_said_at_once() {
    run(async |world| {
        let program = world.program().await;
        let accounts = Accounts::open(&program, "accounts").expect("opened");
        let before =
            accounts.handle().call_placed(Put { key: "a".to_owned(), value: 1 }).await.expect("put").1;
        accounts.put("a".into(), 2).await.expect("put");
        let given =
            TxOptions { begin: Begin::At(LogPos(before.expect("placed").0 + 1)), ..TxOptions::default() };
        let runs = Cell::new(0);
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            runs.set(runs.get() + 1);
            let seen = accounts.within(tx).get(&"a".into()).await?.unwrap_or(0);
            accounts.within(tx).fast_put("a".into(), seen + 1).await.map(|_| ())
        };
        assert!(matches!(program.transact(&given, body).await, Err(ObjectError::Aborted(_))));
        assert_eq!(runs.get(), 1, "it would be the same each time");
    });
}

#[test]
fn a_transaction_that_only_reads_sees_one_moment_of_all_objects() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let maps = ["x", "y"].map(|name| Accounts::open(&one, name).expect("opened"));
        let elsewhere = ["x", "y"].map(|name| Accounts::open(&two, name).expect("opened"));
        let tx = two.begin(&TxOptions::default()).await.expect("begun");
        assert_eq!(elsewhere[0].within(&tx).get(&"k".into()).await, Ok(None));
        maps[0].put("k".into(), 1).await.expect("put");
        maps[1].put("k".into(), 1).await.expect("put");
        assert_eq!(elsewhere[1].within(&tx).get(&"k".into()).await, Ok(None), "as of when it began");
        assert_eq!(tx.commit().await.expect("nothing to check").record, None);
    });
}

/// How often the sequencer did not remember far enough back.
async fn too_old_count(world: &World) -> u64 {
    let program = world.program().await;
    let answers = program.client().status().await.expect("asked");
    let counters = answers.into_iter().flat_map(|(_, _, status)| status.expect("it serves").counters);
    counters.filter(|(name, _)| name == "tokens_too_old").map(|(_, count)| count).sum()
}

#[test]
fn a_transaction_on_a_quiet_object_is_never_too_old_however_much_is_written_to_others() {
    run_with(
        |options| options.grants.remembered_writes_max = 8,
        async |world| {
            let (one, two) = (world.program().await, world.program().await);
            let quiet = Accounts::open(&one, "quiet").expect("opened");
            let busy = Accounts::open(&two, "busy").expect("opened");
            quiet.put("a".into(), 1).await.expect("put");
            let local = TxOptions { begin: Begin::Local, ..TxOptions::default() };
            let mut begun = Vec::new();
            for name in ["a", "b", "c"] {
                let tx = one.begin(&local).await.expect("begun");
                quiet.within(&tx).get(&name.into()).await.expect("read");
                quiet.within(&tx).fast_put(name.into(), 2).await.expect("put");
                begun.push(tx);
            }
            for nth in 0..20 {
                busy.fast_put(nth.to_string(), nth).await.expect("put");
            }
            for tx in begun {
                tx.commit().await.expect("nobody has written what it has read");
            }
            assert_eq!(too_old_count(&world).await, 0);
        },
    );
}

#[test]
fn a_transaction_that_is_too_old_for_the_sequencer_is_checked_against_what_was_written_since() {
    run_with(
        |options| options.grants.remembered_writes_max = 8,
        async |world| {
            let (one, two) = (world.program().await, world.program().await);
            let accounts = Accounts::open(&one, "accounts").expect("opened");
            let elsewhere = Accounts::open(&two, "accounts").expect("opened");
            let mut begun = Vec::new();
            for name in ["a", "3"] {
                let tx = one.begin(&TxOptions::default()).await.expect("begun");
                accounts.within(&tx).get(&name.into()).await.expect("read");
                accounts.within(&tx).fast_put("sum".into(), 2).await.expect("put");
                begun.push(tx);
            }
            for nth in 0..20 {
                elsewhere.fast_put(nth.to_string(), nth).await.expect("put");
            }
            let [unharmed, overtaken] = &begun[..] else { panic!("two") };
            assert!(matches!(overtaken.commit().await, Err(ObjectError::Aborted(_))), "a lost update");
            unharmed.commit().await.expect("nobody has written what it has read");
            assert_eq!(too_old_count(&world).await, 2);
        },
    );
}
