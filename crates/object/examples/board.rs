//! A board of tasks that several people share. With `ithaca dev --data ./ithaca-data` running, in one terminal:
//!
//!     cargo run --release -p ithaca-object --example board watch
//!
//! and in another one, as often as you like:
//!
//!     cargo run --release -p ithaca-object --example board add "paint the door"
//!     cargo run --release -p ithaca-object --example board take ann
//!     cargo run --release -p ithaca-object --example board end ann
//!     cargo run --release -p ithaca-object --example board then 17
//!
//! Which tasks wait is a queue, who does what is a map. Whoever takes a task takes it from one and puts it into the other in one
//! transaction, so that no two people ever have the same task, and none is lost; and whoever watches sees no board that never was.

use std::process::ExitCode;

use ithaca_env::real;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_object::collections::{Counter, Map, Queue};
use ithaca_object::{LogPos, ObjectError, Runtime, RuntimeOptions, TxOptions};

const USAGE: &str = "usage: board add TASK | take NAME | end NAME | watch | then POSITION";

/// What all programs share.
struct Board {
    runtime: Runtime,
    waiting: Queue<String>,
    /// The task that each person does.
    doing: Map<String, String>,
    ended: Counter,
}

impl Board {
    fn open(runtime: Runtime) -> Result<Self, ObjectError> {
        let waiting = Queue::open(&runtime, "board/waiting")?;
        let doing = Map::open(&runtime, "board/doing")?;
        let ended = Counter::open(&runtime, "board/ended")?;
        Ok(Self { runtime, waiting, doing, ended })
    }

    /// Gives `name` the task that has waited longest; none if none waits, or the person has one.
    async fn take(&self, name: &str) -> Result<Option<String>, ObjectError> {
        let (task, _) = self
            .runtime
            .transact(&TxOptions::default(), async |tx| -> Result<_, ObjectError> {
                let (waiting, doing) = (self.waiting.within(tx), self.doing.within(tx));
                if doing.contains_key(&name.to_owned()).await? {
                    return Ok(None);
                }
                let Some(task) = waiting.pop().await? else { return Ok(None) };
                doing.fast_put(name.to_owned(), task.clone()).await?;
                Ok(Some(task))
            })
            .await?;
        Ok(task)
    }

    /// What `name` did is done.
    async fn end(&self, name: &str) -> Result<Option<String>, ObjectError> {
        let (task, _) = self
            .runtime
            .transact(&TxOptions::default(), async |tx| -> Result<_, ObjectError> {
                let task = self.doing.within(tx).remove(name.to_owned()).await?;
                if task.is_some() {
                    self.ended.within(tx).add(1).await?;
                }
                Ok(task)
            })
            .await?;
        Ok(task)
    }

    /// Prints the board as it was when it reflected every position of the log below `snapshot`.
    async fn print(&self, snapshot: LogPos) -> Result<(), ObjectError> {
        println!("-- before log position {snapshot}: {} done", self.ended.at(snapshot).get().await?);
        for (name, task) in self.doing.at(snapshot).entries().await? {
            println!("   {name} does {task:?}");
        }
        println!(
            "   {} waiting, first {:?}",
            self.waiting.at(snapshot).len().await?,
            self.waiting.at(snapshot).peek().await?
        );
        Ok(())
    }

    /// Prints the board whenever somebody has taken or ended a task.
    async fn watch(&self) -> Result<(), ObjectError> {
        let now = self.runtime.client().check().await?.tail;
        self.print(now).await?;
        let mut watch = self.doing.handle().watch(now)?;
        loop {
            self.print(watch.next().await?).await?;
        }
    }
}

async fn run(board: &Board, arguments: &[&str]) -> Result<ExitCode, ObjectError> {
    match arguments {
        ["add", task] => board.waiting.push((*task).to_owned()).await?,
        ["take", name] => match board.take(name).await? {
            Some(task) => println!("{name} does {task:?}"),
            None => println!("no task waits, or {name} has one"),
        },
        ["end", name] => match board.end(name).await? {
            Some(task) => println!("{task:?} is done"),
            None => println!("{name} has no task"),
        },
        ["watch"] => board.watch().await?,
        ["then", position] if position.parse::<u64>().is_ok() => {
            board.print(LogPos(position.parse().unwrap_or_default())).await?;
        }
        _ => {
            eprintln!("{USAGE}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = real::run(async |env| {
        let client = Client::connect(&env, ClientOptions::default()).await?;
        let board = Board::open(Runtime::new(&env, client, RuntimeOptions::default()))?;
        run(&board, &arguments).await
    });
    ended.unwrap_or_else(|error: ObjectError| {
        eprintln!("board: {error}");
        ExitCode::FAILURE
    })
}
