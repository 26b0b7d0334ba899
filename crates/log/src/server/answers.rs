//! The answers of one connection: where they go, and how much of them is under way at a time, whatever is asked.
//!
//! * An answer that takes several steps to make counts, with what it may come to, from before its request's work begins until it is handed over
//!   to the connection. It begins when all that count, and what was handed over and is unsent, are less than
//!   [`UNSENT_MAX_BYTES`](limits::UNSENT_MAX_BYTES) together; in the order in which it was asked for.
//! * Of the work of one connection a piece is done in a turn: it has its share of the node, however many requests it has.
//! * They end with their connection.
//!
//! What is answered at once needs none of this: nothing more is taken from the connection while too much is unsent. Nor do reads of the drive,
//! which have room of their own. (cold_reads.rs)

use std::cell::Cell;
use std::rc::{Rc, Weak};

use ithaca_env::Env;
use ithaca_env::net::{NetError, Writer};
use ithaca_env::sync::{Count, Notify, Semaphore};
use ithaca_env::task::{Ended, race};

use super::tasks::Tasks;
use crate::limits;

/// What an answer that is being made counts at the least: its request takes memory too, and work.
const MAKING_MIN_BYTES: usize = 64 << 10;

/// The answers of one connection.
pub(super) struct Answers {
    pub(super) writer: Writer,
    /// Requests that have no reply yet.
    pub(super) under_way: Count,
    /// Bytes for which cold reads wait at a time.
    pub(super) cold_turn: Semaphore,
    /// What the answers that are being made may come to together.
    making_bytes: Cell<usize>,
    /// Rings when that is less.
    made: Notify,
    /// Whose answer begins next.
    first: Semaphore,
    /// Whose piece of work is next.
    piece: Semaphore,
    tasks: Weak<Tasks>,
}

/// An answer that is being made, until this is dropped.
pub(super) struct Making {
    answers: Rc<Answers>,
    bytes: usize,
}

impl Answers {
    /// Those that go to `writer`; what makes them is among `tasks`.
    pub(super) fn new(writer: Writer, tasks: &Rc<Tasks>) -> Rc<Self> {
        Rc::new(Self {
            writer,
            under_way: Count::default(),
            cold_turn: Semaphore::new(limits::READ_MAX_BYTES),
            making_bytes: Cell::new(0),
            made: Notify::default(),
            first: Semaphore::new(1),
            piece: Semaphore::new(1),
            tasks: Rc::downgrade(tasks),
        })
    }

    /// Runs what makes an answer until it is done, or the connection is gone.
    pub(super) fn spawn(&self, env: &Env, task: impl Future<Output = ()> + 'static) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.spawn(env, task);
        }
    }

    /// Waits until an answer of up to so many bytes may be made, and counts it. An error if the connection is closed.
    pub(super) async fn begin(self: &Rc<Self>, bytes: usize) -> Result<Making, NetError> {
        let bytes = bytes.clamp(MAKING_MIN_BYTES, limits::READ_MAX_BYTES);
        let _first = self.first.acquire(1).await;
        loop {
            let ticket = self.made.ticket();
            let room = limits::UNSENT_MAX_BYTES.saturating_sub(self.making_bytes.get());
            if self.writer.queued_bytes() < room {
                self.making_bytes.set(self.making_bytes.get() + bytes);
                return Ok(Making { answers: Rc::clone(self), bytes });
            }
            if let Ended::First(Err(closed)) = race(self.writer.below(room), self.made.after(ticket)).await {
                return Err(closed);
            }
        }
    }

    /// After a piece of work: others have their turn.
    pub(super) async fn give_way(&self, env: &Env) {
        let _piece = self.piece.acquire(1).await;
        env.next_turn().await;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.answers.making_bytes.set(self.answers.making_bytes.get() - self.bytes);
        self.answers.made.ring();
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::net::Conn;
    use ithaca_env::sim::Sim;

    use super::*;

    /// Runs `test` with the answers of a connection whose other end takes none.
    fn with_answers(test: impl AsyncFnOnce(Env, Rc<Answers>, Rc<Tasks>, Conn) + 'static) {
        let sim = Sim::new(1);
        let process = sim.process("node", [10, 0, 0, 1].into());
        let env = sim.env(process);
        sim.block_on(process, async move {
            let listener = env.listen(([10, 0, 0, 1], 0).into()).expect("a free port");
            let there = env.connect(listener.local_addr()).await.expect("it is there");
            let tasks = Rc::new(Tasks::default());
            let here = listener.accept().await.expect("it came");
            test(env, Answers::new(here.writer, &tasks), tasks, there).await;
        });
    }

    #[test]
    fn an_answer_begins_when_those_that_are_being_made_and_what_is_unsent_leave_room() {
        const MANY: usize = limits::UNSENT_MAX_BYTES / limits::READ_MAX_BYTES;
        with_answers(async |env, answers, tasks, there| {
            let begun = Rc::new(Cell::new(0));
            let mut made = Vec::new();
            for _ in 0..MANY {
                made.push(answers.begin(limits::READ_MAX_BYTES).await.expect("it is open"));
            }
            for _ in 0..2 {
                let (of, begun) = (Rc::clone(&answers), Rc::clone(&begun));
                answers.spawn(&env, async move {
                    let _making = of.begin(1).await.expect("it is open");
                    begun.set(begun.get() + 1);
                    std::future::pending::<()>().await;
                });
            }
            let told = async |expected| {
                env.yield_now().await;
                env.yield_now().await;
                env.yield_now().await;
                assert_eq!(begun.get(), expected);
            };
            told(0).await;
            answers.writer.push(|out| out.resize(limits::READ_MAX_BYTES - MAKING_MIN_BYTES, 0));
            made.pop();
            told(1).await;
            made.pop();
            told(2).await;
            drop((tasks, there));
            assert_eq!(answers.making_bytes.get(), (MANY - 2) * limits::READ_MAX_BYTES);
        });
    }

    #[test]
    fn a_piece_of_the_work_of_a_connection_is_done_in_a_turn_however_many_requests_it_is_of() {
        with_answers(async |env, answers, _tasks, _there| {
            let pieces = Rc::new(Cell::new(0));
            for _ in 0..10 {
                let (of, pieces, task_env) = (Rc::clone(&answers), Rc::clone(&pieces), env.clone());
                answers.spawn(&env, async move {
                    for _ in 0..10 {
                        of.give_way(&task_env).await;
                        pieces.set(pieces.get() + 1);
                    }
                });
            }
            let mut before = 0;
            while before < 100 {
                env.yield_now().await;
                assert!(pieces.get() <= before + 1, "{} after {before}", pieces.get());
                before = pieces.get();
            }
        });
    }
}
