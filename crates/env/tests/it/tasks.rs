//! Timers, blocking calls and inputs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::real::{self, Stdin};

use crate::everywhere;

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    everywhere(|env, _| async move {
        let woken = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30, 10, 20]
            .map(|ms| {
                let (task_env, woken) = (env.clone(), Rc::clone(&woken));
                env.spawn(async move {
                    task_env.sleep(Duration::from_millis(ms)).await;
                    woken.borrow_mut().push(ms);
                })
            })
            .into();
        for task in tasks {
            task.join().await.expect("not aborted");
        }
        assert_eq!(*woken.borrow(), [10, 20, 30]);
    });
}

#[test]
fn a_timeout_ends_what_never_ends_and_leaves_what_is_done() {
    everywhere(|env, _| async move {
        let never = env.timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
        assert!(never.is_err());
        assert_eq!(env.timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));
    });
}

#[test]
fn an_aborted_task_is_dropped_where_it_stands() {
    everywhere(|env, _| async move {
        let held = Rc::new(());
        let inside = Rc::clone(&held);
        let task = env.spawn(async move {
            std::future::pending::<()>().await;
            drop(inside);
        });
        env.yield_now().await;
        task.abort();
        assert_eq!((Rc::strong_count(&held), task.join().await), (1, None));
    });
}

#[test]
fn blocking_calls_and_files_come_back_to_the_loop() {
    real::run(|env| async move {
        assert_eq!(real::unblock(&env, || 6 * 7).await, 42);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let whole = real::files::read(&path).expect("it is there");
        let (mut input, mut read) = (Stdin::file(&path).expect("it is there"), Vec::new());
        while let Some(piece) = input.next().await {
            read.extend_from_slice(&piece.expect("readable"));
        }
        assert_eq!(read, whole);
    });
}

#[test]
fn what_was_queued_is_sent_before_the_next_turn() {
    // Who works piece by piece, and is ready all the time, would keep back what others have said.
    real::run(|env| async move {
        let listener = env.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let there = env.connect(listener.local_addr()).await.expect("it listens");
        let task_env = env.clone();
        // The future that is run has one step a turn.
        let task = env.spawn(async move {
            there.writer.push(|out| out.extend_from_slice(b"an answer"));
            task_env.yield_now().await;
            assert_eq!(there.writer.queued_bytes(), 9);
            task_env.next_turn().await;
            assert_eq!(there.writer.queued_bytes(), 0);
        });
        task.join().await.expect("it ended");
    });
}
