//! What the commands of objects take.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::parse_stream;
use crate::quantity;

/// `ithaca map`.
#[derive(Subcommand, Debug)]
pub enum MapCommand {
    /// Give a key a value
    #[command(
        after_help = "Example:\n  ithaca map put users ann 42\n  ithaca map put locks backup host-3 --if-absent\n\n\
                      A condition is decided where the change stands in the log, so that of several who try one succeeds; the others \
                      get exit code 1."
    )]
    Put {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The key
        key: String,
        /// The value
        value: String,
        /// Only if the key has no value
        #[arg(long, conflicts_with = "if_at")]
        if_absent: bool,
        /// Only if the value that it has was put at this log position, as `map get --json` says
        #[arg(long, value_name = "POS")]
        if_at: Option<u64>,
    },
    /// Print the value of a key
    #[command(after_help = "Example:\n  ithaca map get users ann\n  ithaca map get users ann --as-of 17\n\n\
                      A program's map may have other keys and values than text: a KEY that is a whole number means that too, and values are JSON.\n\
                      --as-of POS shows the map as it was after the record at log position POS.\n\
                      --remote asks a node that has the map in memory, and reads none of its changes here.")]
    Get {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The key
        key: String,
        /// As of this log position, which is included
        #[arg(long, value_name = "POS")]
        as_of: Option<u64>,
        /// Ask a node's view of the map
        #[arg(long)]
        remote: bool,
    },
    /// Remove a key
    #[command(after_help = "Example:\n  ithaca map del users ann\n  ithaca map del locks backup --if-at 17")]
    Del {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The key
        key: String,
        /// Only if the value that it has was put at this log position, as `map get --json` says
        #[arg(long, value_name = "POS")]
        if_at: Option<u64>,
    },
    /// Remove every key
    #[command(after_help = "Example:\n  ithaca map clear users\n\n\
                      What it held can be read as of earlier positions still, until `ithaca map forget` gives that up.")]
    Clear {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
    },
    /// Print every key and its value, in the order of the keys
    #[command(after_help = "Example:\n  ithaca map ls users --json")]
    Ls {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// As of this log position, which is included
        #[arg(long, value_name = "POS")]
        as_of: Option<u64>,
    },
    /// Store the map's state in the log, so that whoever opens it reads only what comes after
    #[command(
        after_help = "Example:\n  ithaca map checkpoint users\n  ithaca map checkpoint users --what-is-left\n\n\
                      With --what-is-left the changes that are gone are as if they had never been made, for programs too that have the map in memory \
                      as it was: better is that one of these makes a checkpoint of it."
    )]
    Checkpoint {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// Of a map that is refused because changes of it are gone for good: the state that those make which are left
        #[arg(long)]
        what_is_left: bool,
    },
    /// Give up, for ever, the changes below a checkpoint
    #[command(
        after_help = "Example:\n  ithaca map checkpoint users\n  ithaca map forget users --older 24h\n\n\
                      Without a bound everything below the newest checkpoint is given up."
    )]
    Forget {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The state as of this log position, which is included, and all later ones are kept
        #[arg(long, value_name = "POS", conflicts_with = "older")]
        before: Option<u64>,
        /// The states of this last span of time are kept
        #[arg(long, value_name = "SPAN", value_parser = quantity::duration)]
        older: Option<Duration>,
    },
    /// Say which span of the map's past is kept, or print it
    #[command(
        after_help = "Example:\n  ithaca map history users 24h\n  ithaca map history users\n  ithaca map history users all\n\n\
                      Whatever makes a checkpoint of the map (a program that has it in memory, a node that keeps a view of it, `ithaca map \
                      checkpoint`) then forgets what is older, as `ithaca map forget --older` does; with `all` only what its own settings say."
    )]
    History {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// A span such as 24h, or `all`
        #[arg(value_name = "SPAN", value_parser = kept)]
        span: Option<Kept>,
    },
    /// Print the value of a key whenever it changes, until it is interrupted
    #[command(
        after_help = "Example:\n  ithaca map watch users ann\n  ithaca map watch users ann --since 17 --count 1\n\n\
                      A line is the log position of the change, a tab and the value; the position alone if the key was removed.\n\
                      It begins with what is there now; with --since POS, with the first change after that position."
    )]
    Watch {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The key
        key: String,
        /// Not what is there now, but each change after this log position
        #[arg(long, value_name = "POS")]
        since: Option<u64>,
        /// End after so many lines
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Print how many keys there are
    #[command(after_help = "Example:\n  ithaca map size users")]
    Size {
        /// The map's name
        #[arg(value_parser = parse_stream)]
        name: String,
        /// As of this log position, which is included
        #[arg(long, value_name = "POS")]
        as_of: Option<u64>,
        /// Ask a node's view of the map
        #[arg(long)]
        remote: bool,
    },
}

/// A span of the past that is kept; without one, all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(pub Option<Duration>);

fn kept(text: &str) -> Result<Kept, quantity::QuantityError> {
    match text {
        "all" => Ok(Kept(None)),
        // A shorter one would be kept as nothing at all.
        _ => match quantity::duration(text)? {
            span if span < Duration::from_millis(1) => Err(quantity::QuantityError::Nothing),
            span => Ok(Kept(Some(span))),
        },
    }
}

/// What a transaction is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Held {
    /// As if transactions ran one after the other: what it reads is checked.
    Strict,
    /// One snapshot: what it writes is checked.
    Snapshot,
}

/// `ithaca tx`.
#[derive(Args, Debug)]
pub struct TxArgs {
    /// A script, one operation a line; `-` is the standard input
    #[arg(value_name = "FILE")]
    pub script: PathBuf,
    /// What it is held to
    #[arg(long, value_enum, default_value_t = Held::Strict)]
    pub isolation: Held,
    /// How often it is run again after a conflict
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retries: u32,
}
