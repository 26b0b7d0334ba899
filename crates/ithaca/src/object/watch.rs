//! `ithaca map watch`: each value that a key gets, as soon as it is durable.

use std::collections::VecDeque;

use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;
use ithaca_object::collections::{MapState, Placed};
use ithaca_object::remote::any::Any;
use ithaca_object::{Runtime, RuntimeOptions};

use super::map::{Anything, find, snapshot_after};
use super::{of_type, value};
use crate::cli::Global;
use crate::client::with_client;
use crate::failure::Failure;
use crate::json::Object;
use crate::output::{Output, shown, while_read};

/// Prints what the key has now, or with `since` nothing of what it had after that position, and then each change. Ends after `count` lines.
pub fn run(
    global: &Global,
    (name, key): (&str, &str),
    (since, count): (Option<u64>, Option<u64>),
    out: &mut Output,
) -> Result<(), Failure> {
    let verb = format!("map watch {name} {key}");
    with_client(global, &verb, async |env, client: Client| {
        let snapshot = match since {
            Some(pos) => snapshot_after(pos)?,
            None => client.check().await?.tail,
        };
        let map = Anything::open(&Runtime::new(&env, client, RuntimeOptions::default()), name)?;
        let showing = show(&map, key, snapshot, (since.is_none(), count), out);
        let shown = while_read(&env, showing).await;
        of_type(map.handle(), shown).await
    })
}

/// Prints each change after `snapshot`, and what is there in it if that `is_news`, until `count` lines are printed.
async fn show(
    map: &Anything,
    key: &str,
    snapshot: LogPos,
    (is_news, count): (bool, Option<u64>),
    out: &mut Output,
) -> Result<(), Failure> {
    let mut watch = map.handle().watch(snapshot)?;
    let mut left = count.unwrap_or(u64::MAX);
    let found = find(&map.at(snapshot), key).await?.map(|(_, found)| found);
    let mut known = found.as_ref().map(|found| found.pos);
    let mut news = VecDeque::from_iter(found.filter(|_| is_news).map(|found| (snapshot, Some(found))));
    let keys = value::keys(key);
    loop {
        while left > 0
            && let Some((snapshot, found)) = news.pop_front()
        {
            print(key, found.as_ref(), snapshot, out)?;
            left -= 1;
        }
        if left == 0 {
            return Ok(());
        }
        let look = |snapshot, state: &MapState<Any, Any>| {
            let found = keys.iter().find_map(|key| state.entries().get(key));
            let pos = found.map(|found| found.pos);
            if pos != known {
                news.push_back((snapshot, found.cloned()));
                known = pos;
            }
        };
        watch.look_through(look).await?;
    }
}

/// What the key has in `snapshot`, which the last change led to.
fn print(key: &str, found: Option<&Placed<Any>>, snapshot: LogPos, out: &mut Output) -> Result<(), Failure> {
    let pos = found.map_or(snapshot.0.saturating_sub(1), |found| found.pos);
    out.either(
        || found.map_or(pos.to_string(), |found| format!("{pos}\t{}", shown(&value::text(&found.value)))),
        || {
            let told = Object::new().string("key", key);
            let told = match found {
                Some(found) => told.raw("value", &value::json(&found.value)),
                None => told.raw("value", "null"),
            };
            told.number("log_pos", pos)
        },
    )?;
    out.flush()
}
