//! `ithaca log append` and `ithaca stream append`: pipelined, with bounded memory, printing each position as soon as its entry is durable.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use ithaca_env::real::Stdin;
use ithaca_env::sync::queue;
use ithaca_log::client::{AppendTo, Client, ClientError, Placed};
use ithaca_log::limits::{ENTRY_MAX_BYTES, STREAMS_MAX_COUNT};
use ithaca_log::pos::StreamId;

use super::lines::Lines;
use crate::cli::Global;
use crate::client::{with_client, with_client_in_order};
use crate::failure::{Exit, Failure};
use crate::json::Object;
use crate::object::mark_of;
use crate::output::Output;

/// Appends that wait to be printed at the most: bounds the memory that many empty lines take, whose bytes count nothing.
const UNPRINTED_MAX: usize = 65_536;

/// What is appended to.
pub struct Target<'a> {
    /// The command, for a line that says what failed.
    pub verb: &'static str,
    /// Streams that each entry belongs to.
    pub streams: &'a [String],
    /// What is printed of each entry.
    pub shown: Shown,
}

/// Which position of an entry is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// That in the log.
    Log,
    /// That in the first stream.
    Stream,
}

impl Target<'_> {
    /// Refuses a stream that is named twice, and more than an entry belongs to, before any of them is given a name.
    fn check_names(&self) -> Result<(), Failure> {
        if self.streams.len() > STREAMS_MAX_COUNT {
            let (verb, count) = (self.verb, self.streams.len());
            let line =
                format!("{verb}: {count} streams are named, an entry belongs to {STREAMS_MAX_COUNT} at most");
            return Err(Failure::usage(line));
        }
        let mut streams = self.streams.iter().enumerate();
        match streams.find(|&(nth, name)| self.streams[..nth].contains(name)) {
            Some((_, name)) => Err(Failure::usage(format!("{}: stream {name} is named twice", self.verb))),
            None => Ok(()),
        }
    }

    /// The streams, named if they were not before. Those of objects take nothing but calls: anything else would stop the object for good.
    async fn streams(&self, client: &Client) -> Result<Vec<StreamId>, Failure> {
        let mut streams = Vec::with_capacity(self.streams.len());
        for name in self.streams {
            let stream = client.stream(name).await?;
            if let Some(mark) = mark_of(client, stream).await? {
                return Err(Failure::usage(format!("{name:?} is an object's: {mark}")));
            }
            streams.push(stream);
        }
        Ok(streams)
    }

    fn print(&self, out: &mut Output, placed: &Placed) -> Result<(), Failure> {
        let stream = self.streams.first().zip(placed.places.first());
        let Some((name, place)) = stream.filter(|_| self.shown == Shown::Stream) else {
            let pos = placed.pos;
            return match out.is_json() {
                true => out.line(&format!("{{\"pos\":{pos}}}")),
                false => out.line(&pos.to_string()),
            };
        };
        out.either(
            || place.position.to_string(),
            || {
                let object = Object::new().string("stream", name).number("pos", place.position.0);
                object.number("log_pos", placed.pos.0)
            },
        )
    }
}

/// What the reader of lines hands to the printer.
enum Step {
    /// A line that is on its way.
    Appended(AppendTo),
    /// The input failed here: nothing follows.
    Failed(Failure),
    /// The input ends here.
    Ended,
}

/// Appends the input, as one entry or line by line.
pub fn run(
    global: &Global,
    target: &Target<'_>,
    input: Option<&Path>,
    lines: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    target.check_names()?;
    let input = Input::open(target.verb, input)?;
    if !lines {
        return with_client(global, target.verb, async |_, client| {
            let entry = input.whole().await?;
            let streams = target.streams(&client).await?;
            let placed = client.append_to(&streams, entry).await?;
            target.print(out, &placed)?;
            out.flush()
        });
    }
    with_client_in_order(global, target.verb, async |env, client| {
        let streams = target.streams(&client).await?;
        let (sender, mut steps) = queue::bounded(UNPRINTED_MAX);
        // The client stays here until everything is printed: with its last clone its appends would end.
        let reader = env.spawn(append_lines(client.clone(), streams, input, sender));
        let mut line = 0;
        let printed = print_in_order(target, &mut steps, out, &mut line).await;
        reader.abort();
        match printed {
            Err(Failure::OutputClosed) if !ends(&mut steps).await => {
                let line =
                    format!("standard output was closed at line {line}: what follows may not be appended");
                Err(Failure::unreachable(line))
            }
            printed => printed,
        }
    })
}

/// Appends every line, in order, as fast as there is room.
async fn append_lines(client: Client, streams: Vec<StreamId>, mut input: Input, steps: queue::Sender<Step>) {
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
            if steps.send(Step::Appended(client.append_to(&streams, line))).await.is_err() {
                return;
            }
        }
        if ended {
            return drop(steps.send(Step::Ended).await);
        }
    }
}

/// Whether what is on its way is all there was, and is appended.
async fn ends(steps: &mut queue::Receiver<Step>) -> bool {
    while let Some(step) = steps.recv().await {
        match step {
            Step::Appended(append) => {
                if append.await.is_err() {
                    return false;
                }
            }
            Step::Ended => return true,
            Step::Failed(_) => return false,
        }
    }
    false
}

/// Prints the position of line k as output line k, flushed whenever the next one is not there yet. Stops at the first
/// failure and names its line. `line` is the one that it has come to.
async fn print_in_order(
    target: &Target<'_>,
    steps: &mut queue::Receiver<Step>,
    out: &mut Output,
    line: &mut u64,
) -> Result<(), Failure> {
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
        *line += 1;
        let result = match step {
            Step::Appended(append) => durable(append, out).await?.map_err(Failure::from),
            Step::Failed(failure) => Err(failure),
            Step::Ended => return out.flush(),
        };
        match result {
            Ok(placed) => target.print(out, &placed)?,
            Err(failure) => {
                out.flush()?;
                // A script that sees 3 knows that some lines may not be there, whatever stood in the way.
                return Err(failure.with_exit(Exit::Unreachable).context(format_args!("line {line}")));
            }
        }
    }
}

/// The result of an append; what was printed so far is flushed if it has to be waited for.
async fn durable(mut append: AppendTo, out: &mut Output) -> Result<Result<Placed, ClientError>, Failure> {
    let ready = poll_fn(|cx| match Pin::new(&mut append).poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(result) = ready.await {
        return Ok(result);
    }
    let flushed = out.flush();
    match append.await {
        Ok(placed) => {
            flushed?;
            Ok(Ok(placed))
        }
        failed => Ok(failed),
    }
}

/// A file or the standard input.
struct Input {
    name: PathBuf,
    source: Stdin,
}

impl Input {
    fn open(verb: &str, path: Option<&Path>) -> Result<Self, Failure> {
        let (name, source) = match path {
            None => ("standard input".into(), Stdin::standard()),
            Some(path) if path == Path::new("-") => ("standard input".into(), Stdin::standard()),
            Some(path) => (path.to_owned(), Stdin::file(path)),
        };
        match source {
            Ok(source) => Ok(Self { name, source }),
            Err(error) => Err(Failure::usage(format!("{verb}: {}: {error}", name.display()))),
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
