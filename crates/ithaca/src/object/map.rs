//! `ithaca map`: a map of strings, from the shell.

use std::time::Duration;

use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;
use ithaca_object::ObjectError;
use ithaca_object::collections::{Clear, Map, Name, Placed, Remove, Replaced, Value};
use ithaca_object::remote::any::Any;

use super::arguments::{Kept, MapCommand};
use super::{of_type, runtime, value, watch};
use crate::cli::Global;
use crate::client::{told_at, with_client};
use crate::failure::Failure;
use crate::json::Object;
use crate::output::{Output, shown};

/// A map from strings to strings: what the shell puts into.
pub type Strings = Map<String, String>;

/// A map from strings to anything: what the shell removes from.
type Named = Map<String, Any>;

/// A map of any keys and values, as programs have them: what the shell reads.
pub type Anything = Map<Any, Any>;

/// Runs one verb.
pub fn run(global: &Global, command: &MapCommand, out: &mut Output) -> Result<(), Failure> {
    match command {
        MapCommand::Put { name, key, value, if_absent, if_at } => {
            let condition = if *if_absent { Some(None) } else { if_at.map(Some) };
            put(global, (name, key), value, condition, out)
        }
        MapCommand::Del { name, key, if_at } => del(global, (name, key), *if_at, out),
        MapCommand::Clear { name } => clear(global, name, out),
        MapCommand::Get { name, key, as_of, remote } => get(global, (name, key), (*as_of, *remote), out),
        MapCommand::Ls { name, as_of } => ls(global, name, *as_of, out),
        MapCommand::Checkpoint { name, what_is_left } => checkpoint(global, name, *what_is_left, out),
        MapCommand::Forget { name, before, older } => forget(global, name, (*before, *older), out),
        MapCommand::History { name, span } => history(global, name, *span, out),
        MapCommand::Watch { name, key, since, count } => {
            watch::run(global, (name, key), (*since, *count), out)
        }
        MapCommand::Size { name, as_of, remote } => size(global, name, (*as_of, *remote), out),
    }
}

/// The position that the map is looked at as of, if not now; and whether a node is asked.
type When = (Option<u64>, bool);

/// Opens the map and does something with it.
fn with_map<K: Name, V: Value, T>(
    global: &Global,
    verb: &str,
    name: &str,
    (as_of, is_remote): When,
    work: impl AsyncFnOnce(Map<K, V>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_client(global, verb, async |env, client: Client| {
        let runtime = runtime(&env, client);
        let map = if is_remote { Map::open_remote(&runtime, name)? } else { Map::open(&runtime, name)? };
        let handle = map.handle().clone();
        let done = match as_of {
            Some(pos) => work(map.at(snapshot_after(pos)?)).await,
            None => work(map).await,
        };
        of_type(&handle, done).await
    })
}

/// The snapshot that reflects the record at `pos` and none after it.
pub fn snapshot_after(pos: u64) -> Result<LogPos, Failure> {
    pos.checked_add(1).map(LogPos).ok_or_else(|| Failure::usage(format!("no position is {pos}")))
}

/// Gives a key a value; on a condition only if it has one that was put at that position, or none.
fn put(
    global: &Global,
    (name, key): (&str, &str),
    value: &str,
    condition: Option<Option<u64>>,
    out: &mut Output,
) -> Result<(), Failure> {
    let verb = format!("map put {name} {key}");
    let (own_key, value) = (key.to_owned(), value.to_owned());
    let put = async |map: &Strings| match condition {
        Some(Some(version)) => map.replace(own_key, LogPos(version), value).await,
        Some(None) => map.put_if_absent(own_key, value).await,
        None => Ok(Replaced::Done(map.fast_put(own_key, value).await?)),
    };
    let done = change(global, &verb, name, put)?;
    replaced(global, &verb, (name, key), done, out)
}

/// Does what may be the map's first change.
fn change<K: Name, V: Value, T>(
    global: &Global,
    verb: &str,
    name: &str,
    change: impl AsyncFnOnce(&Map<K, V>) -> Result<T, ObjectError>,
) -> Result<T, Failure> {
    with_client(global, verb, async |env, client: Client| {
        let runtime = runtime(&env, client);
        let map = Map::open(&runtime, name)?;
        map.handle().check_type().await?;
        of_type(map.handle(), change(&map).await.map_err(Failure::from)).await
    })
}

/// Tells of a change that may have been made on a condition.
fn replaced<V>(
    global: &Global,
    verb: &str,
    (name, key): (&str, &str),
    done: Replaced<V>,
    out: &mut Output,
) -> Result<(), Failure> {
    match done {
        Replaced::Done(pos) => told(pos, out),
        Replaced::Differs(None) => Err(not_there(global, verb, name, key)),
        Replaced::Differs(Some(found)) => {
            let line = format!("{key:?} has a value that was put at log position {}", found.pos);
            Err(told_at(global, verb, Failure::no(line)))
        }
    }
}

fn clear(global: &Global, name: &str, out: &mut Output) -> Result<(), Failure> {
    let clear = async |map: &Anything| map.handle().send(Clear {}).await;
    told(change(global, &format!("map clear {name}"), name, clear)?, out)
}

fn del(
    global: &Global,
    (name, key): (&str, &str),
    version: Option<u64>,
    out: &mut Output,
) -> Result<(), Failure> {
    let verb = format!("map del {name} {key}");
    if let Some(version) = version {
        let remove = async |map: &Named| map.remove_if(key.to_owned(), LogPos(version)).await;
        let done = change(global, &verb, name, remove)?;
        return replaced(global, &verb, (name, key), done, out);
    }
    let (before, pos) = with_map(global, &verb, name, (None, false), async |map: Named| {
        map.handle().check_type().await?;
        Ok(map.handle().call_placed(Remove { key: key.to_owned() }).await?)
    })?;
    match before {
        Some(_) => told(pos, out),
        None => Err(not_there(global, &verb, name, key)),
    }
}

fn checkpoint(global: &Global, name: &str, what_is_left: bool, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("map checkpoint {name}");
    let make = async |map: Anything| match what_is_left {
        true => Ok(map.handle().checkpoint_what_is_left().await?),
        false => Ok(map.handle().checkpoint().await?),
    };
    let upto = with_map(global, &verb, name, (None, false), make)?;
    out.either(
        || format!("everything below log position {upto} is reflected"),
        || Object::new().number("upto", upto.0),
    )?;
    out.flush()
}

fn forget(
    global: &Global,
    name: &str,
    (before, older): (Option<u64>, Option<Duration>),
    out: &mut Output,
) -> Result<(), Failure> {
    let verb = format!("map forget {name}");
    let before = LogPos(before.map_or(u64::MAX, |pos| pos.saturating_add(1)));
    let forgotten = with_map(global, &verb, name, (None, false), async |map: Anything| {
        map.handle().check_type().await?;
        match older {
            Some(span) => Ok(map.handle().forget_older(span).await?),
            None => Ok(map.handle().forget(before).await?),
        }
    })?;
    let held = forgotten.held_by.as_ref().map(|name| format!(", held by {name:?}")).unwrap_or_default();
    out.either(
        || format!("the earliest state is that below log position {}{held}", forgotten.earliest),
        || {
            let told = Object::new().number("earliest", forgotten.earliest.0);
            match &forgotten.held_by {
                Some(name) => told.string("held_by", name),
                None => told.raw("held_by", "null"),
            }
        },
    )?;
    out.flush()
}

/// Prints which span of the map's past is kept, after that was changed if it is to be.
fn history(global: &Global, name: &str, span: Option<Kept>, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("map history {name}");
    let kept = with_map(global, &verb, name, (None, false), async |map: Anything| {
        let handle = map.handle();
        handle.check_type().await?;
        if let Some(Kept(span)) = span {
            handle.keep_history(span).await?;
        }
        Ok(handle.history().await?)
    })?;
    out.either(
        || kept.map_or("all".to_owned(), |span| format!("{span:?}")),
        || match kept {
            Some(span) => Object::new().number("history_ms", span.as_millis() as u64),
            None => Object::new().raw("history_ms", "null"),
        },
    )?;
    out.flush()
}

/// Where a change stands.
fn told(pos: Option<LogPos>, out: &mut Output) -> Result<(), Failure> {
    let pos = pos.unwrap_or_default();
    out.either(|| format!("at log position {pos}"), || Object::new().number("log_pos", pos.0))?;
    out.flush()
}

fn get(global: &Global, (name, key): (&str, &str), when: When, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("map get {name} {key}");
    let found = with_map(global, &verb, name, when, async |map| Ok(find(&map, key).await?))?;
    let Some((key, found)) = found else { return Err(not_there(global, &verb, name, key)) };
    out.either(|| value::text(&found.value), || entry(&key, &found))?;
    out.flush()
}

/// The key that a word means and its value, if the map has one.
pub async fn find(map: &Anything, word: &str) -> Result<Option<(Any, Placed<Any>)>, ObjectError> {
    for key in value::keys(word) {
        if let Some(found) = map.get_placed(&key).await? {
            return Ok(Some((key, found)));
        }
    }
    Ok(None)
}

fn entry(key: &Any, found: &Placed<Any>) -> Object {
    let entry = Object::new().raw("key", &value::json(key)).raw("value", &value::json(&found.value));
    entry.number("log_pos", found.pos)
}

fn not_there(global: &Global, verb: &str, name: &str, key: &str) -> Failure {
    told_at(global, verb, Failure::no(format!("map {name:?} has no key {key:?}")))
}

fn ls(global: &Global, name: &str, as_of: Option<u64>, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("map ls {name}");
    let map = with_map(global, &verb, name, (as_of, false), async |map: Anything| Ok(map.state().await?))?;
    for (key, found) in map.entries().iter() {
        let columns = || format!("{}\t{}", shown(&value::text(key)), shown(&value::text(&found.value)));
        out.either(columns, || entry(key, found))?;
    }
    out.flush()
}

fn size(global: &Global, name: &str, when: When, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("map size {name}");
    let size = with_map(global, &verb, name, when, async |map: Anything| Ok(map.len().await?))?;
    out.either(|| size.to_string(), || Object::new().number("size", size as u64))?;
    out.flush()
}
