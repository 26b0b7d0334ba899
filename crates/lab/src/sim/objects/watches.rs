//! Watches of the maps: each is told of every change after what it knew, in order, and none is left out.

use std::cell::RefCell;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::pos::LogPos;
use ithaca_object::ObjectError;
use ithaca_object::collections::Map;

/// Changes that a watch waits for, at the most, and how long for each.
const CHANGES: usize = 5;
const WAIT: Duration = Duration::from_millis(3);

/// What one watch was told.
#[derive(Debug)]
struct Watched {
    /// Of which map.
    object: usize,
    /// What it knew.
    since: LogPos,
    /// The snapshots, in the order in which they were told.
    told: Vec<LogPos>,
}

/// What all watches were told.
#[derive(Default)]
pub struct Known {
    watched: RefCell<Vec<Watched>>,
}

impl Known {
    /// Whether any was told of more than one change.
    pub fn has_told_several(&self) -> bool {
        self.watched.borrow().iter().any(|watched| watched.told.len() > 1)
    }
}

/// Watches a map for a while. Gives the snapshots that were told.
pub async fn step(
    env: &Env,
    (object, map): (usize, &Map<u64, u64>),
    since: LogPos,
    known: &Known,
) -> Result<Vec<LogPos>, ObjectError> {
    let mut watch = map.handle().watch(since)?;
    let mut told = Vec::new();
    let mut ended = Ok(());
    while told.len() < CHANGES {
        match env.timeout(WAIT, watch.next()).await {
            Ok(Ok(snapshot)) => told.push(snapshot),
            Ok(Err(error)) => ended = Err(error),
            Err(_) => {}
        }
        // Several changes are new to who was busy.
        if env.random_u64().is_multiple_of(4) {
            break;
        }
        env.sleep(Duration::from_micros(env.random_u64() % 1_000)).await;
    }
    known.watched.borrow_mut().push(Watched { object, since, told: told.clone() });
    ended.map(|()| told)
}

/// Judges what all were told by the positions of each map's changes.
pub fn judge(
    known: &Known,
    changes: impl Fn(usize) -> Vec<LogPos>,
    was_forgotten: bool,
) -> Result<(), String> {
    let watched = known.watched.borrow();
    watched.iter().try_for_each(|watched| watched.judge(&changes(watched.object), was_forgotten))
}

impl Watched {
    /// Whether it was told of each of these changes, by the positions of their records, in order. What lies behind a checkpoint is told as one:
    /// at first, as its program may have begun with that, and whenever something was forgotten.
    fn judge(&self, changes: &[LogPos], was_forgotten: bool) -> Result<(), String> {
        let mut known = self.since;
        for (nth, &told) in self.told.iter().enumerate() {
            let is_one = |pos: &&LogPos| **pos >= known && **pos < told;
            let new: Vec<&LogPos> = changes.iter().filter(is_one).collect();
            let is_next = new.len() == 1 && LogPos(new[0].0 + 1) == told;
            if told <= known || !(is_next || nth == 0 || was_forgotten) {
                return Err(format!("{new:?} were told as {told} after {known}: {self:?}"));
            }
            known = told;
        }
        Ok(())
    }
}
