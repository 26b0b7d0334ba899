//! `ithaca log append`: pipelined, with bounded memory, printing each position as soon as its entry is durable.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use ithaca_env::real::Stdin;
use ithaca_env::sync::queue;
use ithaca_log::client::{Append, Client, ClientError, ClientOptions};
use ithaca_log::limits::ENTRY_MAX_BYTES;
use ithaca_log::pos::LogPos;

use super::lines::Lines;
use crate::cli::Global;
use crate::client::{options, with_client, with_options};
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Appends that wait to be printed at the most: bounds the memory that many empty lines take, whose bytes count nothing.
const UNPRINTED_MAX: usize = 65_536;

/// What the reader of lines hands to the printer.
enum Step {
    /// A line that is on its way.
    Appended(Append),
    /// The input failed here: nothing follows.
    Failed(Failure),
}

/// Appends the input, as one entry or line by line.
pub fn run(global: &Global, input: Option<&Path>, lines: bool, out: &mut Output) -> Result<(), Failure> {
    let input = Input::open(input)?;
    if !lines {
        // One entry has no order to keep: if its position certainly went to something else, another does as well.
        let options = ClientOptions { retry_appends: true, ..options(global) };
        return with_options(global, options, "log append", async |_, client| {
            let entry = input.whole().await?;
            let pos = client.append(entry).await?;
            print(out, pos)?;
            out.flush()
        });
    }
    with_client(global, "log append", async |env, client| {
        let (sender, mut steps) = queue::bounded(UNPRINTED_MAX);
        // The client stays here until everything is printed: with its last clone its appends would end.
        let reader = env.spawn(append_lines(client.clone(), input, sender));
        let printed = print_in_order(&mut steps, out).await;
        reader.abort();
        printed
    })
}

/// Appends every line, in order, as fast as there is room.
async fn append_lines(client: Client, mut input: Input, steps: queue::Sender<Step>) {
    let mut lines = Lines::new(ENTRY_MAX_BYTES);
    loop {
        let piece = match input.next().await {
            Ok(piece) => piece,
            Err(failure) => return drop(steps.send(Step::Failed(failure)).await),
        };
        let ended = piece.is_none();
        lines.add(piece.unwrap_or_default());
        loop {
            let line = match lines.next() {
                Ok(None) if ended => lines.last(),
                Ok(line) => line,
                Err(_) => {
                    let line = format!("an entry of more than {ENTRY_MAX_BYTES} bytes is over the limit");
                    return drop(steps.send(Step::Failed(Failure::usage(line))).await);
                }
            };
            let Some(line) = line else { break };
            client.room().await;
            if steps.send(Step::Appended(client.append(line))).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

/// Prints the position of line k as output line k, flushed whenever the next one is not there yet. Stops at the first
/// failure and names its line.
async fn print_in_order(steps: &mut queue::Receiver<Step>, out: &mut Output) -> Result<(), Failure> {
    let mut line = 0u64;
    loop {
        let step = match steps.try_recv() {
            Some(step) => step,
            None => {
                out.flush()?;
                match steps.recv().await {
                    Some(step) => step,
                    None => return Ok(()),
                }
            }
        };
        line += 1;
        let result = match step {
            Step::Appended(append) => durable(append, out).await?.map_err(Failure::from),
            Step::Failed(failure) => Err(failure),
        };
        match result {
            Ok(pos) => print(out, pos)?,
            Err(failure) => {
                out.flush()?;
                // A script that sees 3 knows that some lines may not be there, whatever stood in the way.
                return Err(failure.with_exit(Exit::Unreachable).context(format_args!("line {line}")));
            }
        }
    }
}

/// The result of an append; what was printed so far is flushed if it has to be waited for.
async fn durable(mut append: Append, out: &mut Output) -> Result<Result<LogPos, ClientError>, Failure> {
    let ready = poll_fn(|cx| match Pin::new(&mut append).poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(result) = ready.await {
        return Ok(result);
    }
    out.flush()?;
    Ok(append.await)
}

fn print(out: &mut Output, pos: LogPos) -> Result<(), Failure> {
    if out.is_json() { out.line(&format!("{{\"pos\":{pos}}}")) } else { out.line(&pos.to_string()) }
}

/// A file or the standard input.
struct Input {
    name: PathBuf,
    source: Stdin,
}

impl Input {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let (name, source) = match path {
            None => ("standard input".into(), Stdin::standard()),
            Some(path) if path == Path::new("-") => ("standard input".into(), Stdin::standard()),
            Some(path) => (path.to_owned(), Stdin::file(path)),
        };
        match source {
            Ok(source) => Ok(Self { name, source }),
            Err(error) => Err(Failure::usage(format!("log append: {}: {error}", name.display()))),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self.source.next().await {
            None => Ok(None),
            Some(Ok(piece)) => Ok(Some(piece)),
            Some(Err(error)) => Err(Failure::unreachable(format!("{}: {error}", self.name.display()))),
        }
    }

    /// All of it, which must fit in one entry.
    async fn whole(mut self) -> Result<Bytes, Failure> {
        let mut entry = BytesMut::new();
        while let Some(piece) = self.next().await? {
            entry.extend_from_slice(&piece);
            if entry.len() > ENTRY_MAX_BYTES {
                let name = self.name.display();
                return Err(Failure::usage(format!(
                    "{name}: an entry holds at most {ENTRY_MAX_BYTES} bytes"
                )));
            }
        }
        Ok(entry.freeze())
    }
}
