//! `ithaca tx`: a script over maps, counters and lists, as one transaction.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use ithaca_env::Env;
use ithaca_env::real::files;
use ithaca_log::client::Client;
use ithaca_object::collections::{Counter, Queue};
use ithaca_object::{Begin, Committed, Isolation, ObjectError, Runtime, Tx, TxOptions};

use super::arguments::{Held, TxArgs};
use super::map::{Strings, snapshot_after};
use super::runtime;
use super::script::{Operation, Script, Type, parse};
use crate::cli::Global;
use crate::client::with_client;
use crate::failure::{Exit, Failure};
use crate::json::Object;
use crate::output::Output;

/// Bytes of a script at the most.
const SCRIPT_MAX_BYTES: u64 = 4 << 20;

/// A counter is added to without being read, so that scripts which add do not conflict, where it stands no farther from 0 than the first of
/// these and the script adds no more than the second: 2^30 such scripts would have to commit before this one to bring it to an end.
const FAR_FROM_ENDS: u64 = 1 << 62;
const SMALL_AMOUNT: u64 = 1 << 32;

/// What an operation is told as: for people and for programs.
type Told = (String, Object);

/// Runs the script and prints what it saw once it is committed, and nothing if it is not.
pub fn run(global: &Global, arguments: &TxArgs, out: &mut Output) -> Result<(), Failure> {
    let verb = format!("tx {}", arguments.script.display());
    let script = read(&arguments.script).and_then(|text| parse(&text));
    let script = script.map_err(|failure| failure.context(&verb))?;
    let (told, committed) = with_client(global, &verb, async |env, client: Client| {
        let runtime = runtime(&env, client);
        transact(&env, &runtime, &script, arguments).await
    })?;
    for (human, json) in told {
        out.either(|| human, || json)?;
    }
    out.either(|| human(&committed), || json(&committed))?;
    out.flush()
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::usage(error.to_string());
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(SCRIPT_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > SCRIPT_MAX_BYTES {
            return Err(Failure::usage(format!("a script of more than {SCRIPT_MAX_BYTES} bytes")));
        }
        bytes
    } else {
        files::read_at_most(path, SCRIPT_MAX_BYTES).map_err(failed)?
    };
    String::from_utf8(bytes).map_err(|_| Failure::usage("a script is text (UTF-8)"))
}

async fn transact(
    env: &Env,
    runtime: &Runtime,
    script: &Script,
    arguments: &TxArgs,
) -> Result<(Vec<Told>, Committed), Failure> {
    let isolation = match arguments.isolation {
        Held::Strict => Isolation::Strict,
        Held::Snapshot => Isolation::Snapshot,
    };
    let begin = match script.as_of {
        Some(pos) => Begin::At(snapshot_after(pos)?),
        None => Begin::Newest,
    };
    let options = TxOptions { isolation, begin, retries: arguments.retries };
    // A call of another type of object would stop what it is sent to for good.
    check_types(runtime, script.operations.iter().filter_map(Operation::changed)).await?;
    let near_ends = near_ends(runtime, script).await?;
    let told = RefCell::new(Vec::new());
    let body = async |tx: &Tx| -> Result<(), Failure> {
        told.borrow_mut().clear();
        for operation in &script.operations {
            let said = perform(env, runtime, tx, operation, &near_ends).await?;
            told.borrow_mut().extend(said);
        }
        Ok(())
    };
    let done = runtime.transact(&options, body).await;
    if let Err(Failure::Told { exit: Exit::Damaged, .. }) = done {
        // What cannot be read may be of another type: wrong usage, and nothing is damaged.
        check_types(runtime, script.operations.iter().filter_map(Operation::object)).await?;
    }
    let ((), committed) = done?;
    Ok((told.into_inner(), committed))
}

/// Refuses objects that are not of the type that the script takes them for.
async fn check_types<'a>(
    runtime: &Runtime,
    objects: impl Iterator<Item = (Type, &'a str)>,
) -> Result<(), ObjectError> {
    for (of, name) in objects.collect::<BTreeSet<_>>() {
        match of {
            Type::Map => Strings::open(runtime, name)?.handle().check_type().await?,
            Type::Counter => Counter::open(runtime, name)?.handle().check_type().await?,
            Type::List => Queue::<String>::open(runtime, name)?.handle().check_type().await?,
        }
    }
    Ok(())
}

/// The counters that may come to an end of their range by what the script adds.
async fn near_ends<'a>(runtime: &Runtime, script: &'a Script) -> Result<BTreeSet<&'a str>, ObjectError> {
    let mut added: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in &script.operations {
        if let Operation::Add { counter, amount } = operation {
            let sum = added.entry(counter).or_default();
            *sum = sum.saturating_add(amount.unsigned_abs());
        }
    }
    let mut near = BTreeSet::new();
    for (name, amount) in added {
        let stands_at = Counter::open(runtime, name)?.get().await?;
        if stands_at.unsigned_abs() > FAR_FROM_ENDS || amount > SMALL_AMOUNT {
            near.insert(name);
        }
    }
    Ok(near)
}

/// Adds to a counter; to one that is near the ends of its range only where that does not carry it over one, to the other.
async fn add(counter: &Counter, name: &str, amount: i64, near_ends: &BTreeSet<&str>) -> Result<(), Failure> {
    if !near_ends.contains(name) {
        return Ok(counter.add(amount).await?);
    }
    let after = counter.add_and_get(amount).await?;
    let before = after.wrapping_sub(amount);
    if before.checked_add(amount).is_some() {
        return Ok(());
    }
    let held = format!("a counter holds {} to {}", i64::MIN, i64::MAX);
    Err(Failure::no(format!("aborted: {name:?} is {before}, and {amount} cannot be added: {held}")))
}

async fn perform(
    env: &Env,
    runtime: &Runtime,
    tx: &Tx,
    operation: &Operation,
    near_ends: &BTreeSet<&str>,
) -> Result<Option<Told>, Failure> {
    let map = |name: &str| -> Result<Strings, ObjectError> { Ok(Strings::open(runtime, name)?.within(tx)) };
    let list =
        |name: &str| -> Result<Queue<String>, ObjectError> { Ok(Queue::open(runtime, name)?.within(tx)) };
    let counter =
        |name: &str| -> Result<Counter, ObjectError> { Ok(Counter::open(runtime, name)?.within(tx)) };
    let said = |object: &str| Object::new().string("op", operation.name()).string("object", object);
    Ok(match operation {
        Operation::Get { map: name, key } => {
            let value = map(name)?.get(key).await?;
            Some((
                shown(value.as_deref()),
                optional(said(name).string("key", key), "value", value.as_deref()),
            ))
        }
        Operation::Put { map: name, key, value } => {
            map(name)?.fast_put(key.clone(), value.clone()).await?;
            None
        }
        Operation::Del { map: name, key } => {
            let value = map(name)?.remove(key.clone()).await?;
            Some((
                shown(value.as_deref()),
                optional(said(name).string("key", key), "value", value.as_deref()),
            ))
        }
        Operation::Size { map: name } => {
            let size = map(name)?.len().await?;
            Some((size.to_string(), said(name).number("size", size as u64)))
        }
        Operation::Expect { map: name, key, value } => {
            let found = map(name)?.get(key).await?;
            if found != *value {
                let (found, value) = (shown(found.as_deref()), shown(value.as_deref()));
                return Err(Failure::no(format!(
                    "aborted: key {key:?} of {name:?} is {found}, expected {value}"
                )));
            }
            None
        }
        Operation::Add { counter: name, amount } => {
            add(&counter(name)?, name, *amount, near_ends).await?;
            None
        }
        Operation::Count { counter: name } => {
            let value = counter(name)?.get().await?;
            Some((value.to_string(), said(name).raw("value", &value.to_string())))
        }
        Operation::Push { list: name, item } => {
            list(name)?.push(item.clone()).await?;
            None
        }
        Operation::Pop { list: name } => {
            let item = list(name)?.pop().await?;
            Some((shown(item.as_deref()), optional(said(name), "value", item.as_deref())))
        }
        Operation::Pause { span } => {
            env.sleep(*span).await;
            None
        }
    })
}

fn shown(value: Option<&str>) -> String {
    value.unwrap_or("(none)").to_owned()
}

fn optional(object: Object, key: &str, value: Option<&str>) -> Object {
    match value {
        Some(value) => object.string(key, value),
        None => object.raw(key, "null"),
    }
}

fn human(committed: &Committed) -> String {
    match committed.record {
        Some((_, pos)) => format!("committed at log position {pos}"),
        None => "done, nothing was changed".to_owned(),
    }
}

fn json(committed: &Committed) -> Object {
    let (id, pos) = committed.record.unzip();
    Object::new()
        .boolean("committed", true)
        .optional("log_pos", pos.map(|pos| pos.0))
        .optional("snapshot", committed.snapshot.map(|snapshot| snapshot.0))
        .raw("tx", &id.map_or("null".to_owned(), |id| crate::json::quoted(&id.to_string())))
}
