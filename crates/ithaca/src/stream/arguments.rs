//! What `ithaca stream` takes.

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::parse_stream;

/// `ithaca stream`.
#[derive(Subcommand, Debug)]
pub enum StreamCommand {
    /// Append the input as one entry of a stream, or each of its lines as one
    #[command(after_help = "Example:\n  printf 'one\\ntwo\\n' | ithaca stream append orders --lines\n\n\
                      The entry's position in the stream is printed, and with --json that in the log too. Otherwise as \
                      `log append`.")]
    Append {
        /// The stream
        #[arg(value_parser = parse_stream)]
        name: String,
        /// A file; `-` or nothing is the standard input
        #[arg(value_name = "FILE")]
        input: Option<PathBuf>,
        /// Each line is an entry, without its newline
        #[arg(long)]
        lines: bool,
    },
    /// Show the position that a stream's next entry gets
    #[command(after_help = "Example:\n  ithaca stream check orders --json")]
    Check {
        /// The stream
        #[arg(value_parser = parse_stream)]
        name: String,
    },
    /// List the names of all streams
    #[command(after_help = "Example:\n  ithaca stream ls")]
    Ls,
    /// Print an entry of a stream, every entry of a range, or all of them
    #[command(after_help = "Example:\n  ithaca stream read orders\n  ithaca stream read orders 7\n  \
                      ithaca stream read orders --from 0 --to 100 --json\n\n\
                      Positions are those of the stream. Some may have no entry: they are left out of a range.")]
    Read {
        /// The stream
        #[arg(value_parser = parse_stream)]
        name: String,
        /// A position in it
        #[arg(value_name = "POS", conflicts_with_all = ["from", "to"])]
        pos: Option<u64>,
        /// First position of a range [default: the first that is retained]
        #[arg(long, value_name = "A")]
        from: Option<u64>,
        /// The position after the range [default: the stream's end]
        #[arg(long, value_name = "B")]
        to: Option<u64>,
        /// End each entry with a newline
        #[arg(long)]
        lines: bool,
    },
    /// Print a stream's entries in order, each ended by a newline
    #[command(after_help = "Example:\n  ithaca stream tail orders --follow")]
    Tail {
        /// The stream
        #[arg(value_parser = parse_stream)]
        name: String,
        /// Go on as entries become readable
        #[arg(short, long)]
        follow: bool,
        /// Where to begin, a position in the stream [default: the first that is retained]
        #[arg(long, value_name = "POS")]
        from: Option<u64>,
    },
    /// Give up every entry of a stream below a position
    #[command(after_help = "Example:\n  ithaca stream trim orders 100\n\n\
                      An entry that other streams have too stays in these, and in the log, until all have given it up.\n\
                      The stream of a map is refused without --force: `ithaca map forget` gives up what its state does not need.")]
    Trim {
        /// The stream
        #[arg(value_parser = parse_stream)]
        name: String,
        /// The lowest position of the stream that is kept
        pos: u64,
        /// As it is anyway: a stream is trimmed from its beginning on
        #[arg(long)]
        prefix: bool,
        /// Trim an object's stream too: the object cannot be read any more, unless a checkpoint holds all that is gone
        #[arg(long)]
        force: bool,
    },
}
