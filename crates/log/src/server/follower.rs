//! A subscription at work: pushes what becomes readable, as far as its credit goes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_env::task::{TaskHandle, race};

use super::answers::Answers;
use super::reply::push_found;
use super::unit_shell::UnitShell;
use crate::limits;
use crate::unit::Follower;
use crate::wire::{self, FLAG_END, FLAG_PUSH, Head, Refusal, Runs, Subscribe};

/// Bytes of data in one push, about.
const PUSH_BYTES: u32 = 256 << 10;

struct Shared {
    follower: RefCell<Follower>,
    /// Rings when credit came.
    credited: Notify,
    open: Cell<bool>,
}

/// A subscription. It ends when this is dropped.
pub(super) struct Following {
    shared: Rc<Shared>,
    answers: Rc<Answers>,
    head: Head,
    task: TaskHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Following {
    pub(super) fn add_credit(&self, bytes: u64) {
        self.shared.follower.borrow_mut().add_credit(bytes);
        self.shared.credited.ring();
    }

    pub(super) fn is_open(&self) -> bool {
        self.shared.open.get()
    }

    /// Ends it as its follower asked.
    pub(super) fn end(self) {
        let head = Head { flags: FLAG_PUSH | FLAG_END, ..self.head };
        self.answers.writer.push(|out| wire::encode_message(out, head, &Runs::default()));
    }
}

/// Begins to push.
pub(super) fn follow(
    env: &Env,
    unit: Rc<UnitShell>,
    answers: &Rc<Answers>,
    head: Head,
    subscribe: Subscribe,
) -> Following {
    let follower = RefCell::new(Follower::new(subscribe.addr, subscribe.credit_bytes));
    let shared = Rc::new(Shared { follower, credited: Notify::default(), open: Cell::new(true) });
    let (task_shared, task_answers) = (Rc::clone(&shared), Rc::clone(answers));
    let task = env.spawn(async move {
        let refusal = push_all(&unit, &task_answers, head, &task_shared).await;
        task_shared.open.set(false);
        let head = Head { flags: FLAG_PUSH | FLAG_END, ..head };
        task_answers.writer.push(|out| wire::encode_message(out, head, &refusal));
    });
    Following { shared, answers: Rc::clone(answers), head, task }
}

/// Pushes until the unit refuses: the epoch is over, or something is damaged.
async fn push_all(unit: &Rc<UnitShell>, answers: &Answers, head: Head, shared: &Shared) -> Refusal {
    loop {
        // Many may push what stands in memory, none of which waits for anything else.
        if answers.writer.below(limits::UNSENT_MAX_BYTES).await.is_err() {
            return Refusal::Failed;
        }
        if let Err(refusal) = unit.check_epoch(head.epoch) {
            return refusal;
        }
        let (advanced, credited) = (unit.advanced().ticket(), shared.credited.ticket());
        let watermark = unit.watermark(shared.follower.borrow().next());
        let ready = shared.follower.borrow().ready(watermark);
        let Some(range) = ready else {
            race(unit.advanced().after(advanced), shared.credited.after(credited)).await;
            continue;
        };
        let mut cold = unit.cold_reads().begin(answers);
        let mut found = match unit.push_from(range, PUSH_BYTES, &mut cold).await {
            Ok(found) => found,
            Err(refusal) => return refusal,
        };
        let Some(end) = found.end() else { return Refusal::Failed };
        let bytes = push_found(&answers.writer, head.request, head.epoch, &mut found);
        shared.follower.borrow_mut().pushed(end, bytes);
    }
}
