//! The commands and their arguments: noun, then verb.
//!
//! Arguments that are settings too (see [`crate::config`]) state neither a default nor an environment variable here:
//! those come from the one table of settings.

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use thiserror::Error;

use ithaca_log::pos::NodeId;

use crate::bench::Workload;
use crate::drive::DriveCommand;
use crate::object::{MapCommand, TxArgs};
use crate::quantity;
use crate::stream::StreamCommand;
use crate::volume::VolumeCommand;

/// Units of one process, at the most.
pub const UNITS_MAX: u32 = 64;
/// Copies of an entry, at the most.
pub const REPLICAS_MAX: u32 = ithaca_log::limits::REPLICAS_MAX_COUNT as u32;

/// A shared log: append-only, ordered, durable.
#[derive(Parser, Debug)]
#[command(
    name = "ithaca",
    version,
    propagate_version = false,
    after_help = "Example:\n  ithaca dev --data ./ithaca-data &\n  echo hello | ithaca log append\n  ithaca log read 0\n\n\
                  Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 not reached or timed out, 4 data damaged."
)]
pub struct Cli {
    /// Arguments that every command takes, before or after the verb.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How the values of options are called that are amounts, or places and numbers of nodes.
const QUANTITIES: &[&str] = &["SIZE", "SPAN", "N", "R", "C", "POS", "A", "B", "ID"];

/// The program's arguments. A negative number, with a unit or without, is a value wherever a number is expected: it is refused
/// by the argument's name.
pub fn command() -> clap::Command {
    fn with_negative_numbers(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|argument| match argument.get_action().takes_values() {
            true => {
                let is_quantity = is_quantity(&argument);
                argument.allow_negative_numbers(true).allow_hyphen_values(is_quantity)
            }
            false => argument,
        });
        command.mut_subcommands(with_negative_numbers)
    }
    with_negative_numbers(Cli::command())
}

/// Whether an argument is an option whose value is a quantity.
fn is_quantity(argument: &clap::Arg) -> bool {
    let names = argument.get_value_names().unwrap_or_default();
    argument.get_long().is_some() && names.iter().any(|name| QUANTITIES.contains(&name.as_str()))
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs: one JSON object a line.
    Json,
}

/// What a cache drive keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheKeeps {
    /// What lies on the drives that are being written to.
    Tail,
    /// What is read from the others too.
    All,
}

/// Which drive the log goes on on when a segment is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// A drive is filled before the next one is begun.
    Fill,
    /// The next drive, each time.
    RoundRobin,
}

/// Where entries go that are left of a segment in which others were trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cleaning {
    /// To the end of the log.
    Tail,
    /// Into segments of their own, on another drive than the log's end.
    Body,
    /// Nowhere: a segment is free when all of it is trimmed.
    Off,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Decides layouts, with others.
    Layout,
    /// Hands out positions.
    Sequencer,
    /// Stores entries.
    Unit,
    /// Keeps views of objects, for programs that have not the objects themselves.
    Views,
    /// Serves metrics and health.
    Http,
}

/// How much is told on stderr while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Arguments that every command takes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Nodes of the cluster
    #[arg(long, global = true, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = parse_endpoint)]
    pub endpoint: Vec<Endpoint>,
    /// Bound on every remote call
    #[arg(long, global = true, value_name = "SPAN", value_parser = quantity::duration)]
    pub timeout: Duration,
    /// How results are printed
    #[arg(short, long, global = true)]
    pub output: Format,
    /// Short for --output json
    #[arg(long, global = true)]
    pub json: bool,
    /// What is told on stderr
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: LogLevel,
    /// Settings file [default: ./ithaca.toml where it is there]
    // Read before the rest is understood. A variable that is there and empty names none, which a path could not be.
    #[arg(long, global = true, value_name = "FILE", env = "ITHACA_CONFIG", value_parser = clap::value_parser!(OsString))]
    pub config: Option<OsString>,
}

impl Global {
    /// How results are printed, `--json` considered.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

/// The nouns, and verbs that need none.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole cluster in this process
    #[command(after_help = "Example:\n  ithaca dev --data ./ithaca-data --units 2")]
    Dev(ServeArgs),
    /// Run one durable node, with every role unless told otherwise
    #[command(after_help = "Example:\n  ithaca server\n  ithaca server --config ithaca.toml")]
    Server(ServeArgs),
    /// Look at a cluster
    #[command(
        subcommand,
        after_help = "Example:\n  ithaca cluster status\n  ithaca cluster init 1=10.0.0.1:7420 2=10.0.0.2:7420 3=10.0.0.3:7420"
    )]
    Cluster(ClusterCommand),
    /// Look at the drives of nodes, add and remove them while they serve
    #[command(
        subcommand,
        after_help = "Example:\n  ithaca drive ls\n  ithaca drive add /mnt/b/drive --size 100G"
    )]
    Drive(DriveCommand),
    /// Append to the log and read from it
    #[command(subcommand, after_help = "Example:\n  echo hello | ithaca log append\n  ithaca log read 0")]
    Log(LogCommand),
    /// Append to streams of the log and read them
    #[command(
        subcommand,
        after_help = "Example:\n  echo hello | ithaca stream append orders\n  ithaca stream read orders"
    )]
    Stream(StreamCommand),
    /// Read and change a replicated map
    #[command(subcommand, after_help = "Example:\n  ithaca map put users ann 42\n  ithaca map get users ann")]
    Map(MapCommand),
    /// Run a script over objects as one transaction
    #[command(
        after_help = "Example:\n  printf 'get accounts ann\\nput accounts ann 41\\nadd transfers 1\\n' | ithaca tx -\n\n\
                      One operation a line: get MAP KEY, put MAP KEY VALUE, del MAP KEY, size MAP, expect MAP KEY [VALUE], \
                      add COUNTER N, count COUNTER, push LIST ITEM, pop LIST, pause SPAN; `as-of POS` first reads the past. \
                      Words with blanks go in double quotes. Exit 1 where it aborts: what conflicted is said."
    )]
    Tx(TxArgs),
    /// Make volumes and export them as block devices
    #[command(
        subcommand,
        after_help = "Example:\n  ithaca volume create ./disk --size 1G\n  ithaca volume serve ./disk"
    )]
    Volume(VolumeCommand),
    /// Watch a cluster: what each node does and what its chain holds
    #[command(after_help = "Example:\n  ithaca top --interval 2s\n  ithaca top --once --json\n\n\
                      Rates are of the time between two looks. Ctrl-C ends it. Where standard output is no terminal one \
                      table is printed, or with --json one object an interval.")]
    Top(TopArgs),
    /// Measure a cluster
    #[command(
        after_help = "Example:\n  ithaca bench append --size 512 --clients 16 --inflight 256 --seconds 10\n\n\
                      --inflight is the total over all clients, and what each client has for map, get, snapshot and tx. cpu_us_per_op is user and system time of this process \
                      and of all nodes, warm-up excluded.\n\n\
                      What is appended stays in the log, up to gigabytes; where nothing else is, `ithaca log trim POS --prefix` with the \
                      tail of `ithaca log check` gives it up."
    )]
    Bench(BenchArgs),
    /// Check a data directory that no process uses; never changes it
    #[command(after_help = "Example:\n  ithaca fsck ./ithaca-data\n  ithaca fsck ./ithaca-data /mnt/b/drive")]
    Fsck {
        /// The data directory, and drives of its units that lie where it does not remember
        #[arg(required = true, value_name = "DIR")]
        paths: Vec<PathBuf>,
    },
    /// Print a stored file in readable form; never changes it
    #[command(after_help = "Example:\n  ithaca dump ./ithaca-data/unit-1.chain")]
    Dump {
        /// A file of a data directory
        file: PathBuf,
    },
    /// Write or show settings
    #[command(
        subcommand,
        after_help = "Example:\n  ithaca config init ithaca.toml\n  ithaca config show --origin"
    )]
    Config(ConfigCommand),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  ithaca completions bash > ~/.local/share/bash-completion/completions/ithaca"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a directory
    #[command(after_help = "Example:\n  ithaca man ./man && man ./man/ithaca-log-append.1")]
    Man {
        /// Where to; made if it is not there
        dir: PathBuf,
    },
    /// Print the version
    #[command(after_help = "Example:\n  ithaca version --json")]
    Version,
}

/// What `dev` and `server` take. Each is a setting.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Where data lives; the same directory resumes
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where clients connect; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Where metrics and health are served; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    pub http: SocketAddr,
    /// Id of this server among the nodes of a cluster of servers, which `ithaca cluster init` forms; 0 makes it a cluster of
    /// its own
    #[arg(long, value_name = "ID")]
    pub node: u64,
    /// What the server does. A node of several servers offers its cluster the first three, and has those that this gives it
    #[arg(long, value_name = "ROLE,...", value_delimiter = ',', value_enum)]
    pub roles: Vec<Role>,
    /// Log units
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(UNITS_MAX)))]
    pub units: u32,
    /// Copies of each entry
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
    pub replicas: u32,
    /// A file or block device for data, in chain order; repeats. A missing path becomes a file of --drive-size. A path
    /// that is new to a unit is added to its drives. A+B is one mirrored drive: each side holds the same, and a side that is
    /// new, or was away, is rebuilt. Without any, and with the same as before, the units have the drives that they had last
    /// (`ithaca drive`)
    #[arg(long, value_name = "PATH", value_delimiter = ',', value_parser = crate::drive::sided())]
    pub drive: Vec<PathBuf>,
    /// Size at which a new drive file begins
    #[arg(long, value_name = "SIZE", value_parser = quantity::drive_bytes)]
    pub drive_size: u64,
    /// Size to which each drive file may grow. Where that is used up entries are refused as on a full drive, and trims are
    /// not. A file that is larger already, or a block device, is used whole
    #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub quota: u64,
    /// A file or block device that caches what left memory, for all units. It holds copies only, and is forgotten at a
    /// restart; a missing path becomes a file
    #[arg(long, value_name = "PATH")]
    pub cache: Option<PathBuf>,
    /// Bytes of the cache that are used
    #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub cache_size: u64,
    /// What the cache keeps
    #[arg(long, value_name = "WHAT", value_enum)]
    pub cache_keeps: CacheKeeps,
    /// A file or block device that mirrors what lies where on the units' drives, for all units, so that a start reads that from
    /// one drive. It holds copies only, and is written anew when it was lost; a missing path becomes a file
    #[arg(long, value_name = "PATH")]
    pub metadata: Option<PathBuf>,
    /// Which drive the log goes on on when a segment is full
    #[arg(long, value_name = "ORDER", value_enum)]
    pub placement: Placement,
    /// Where entries go that are left of a segment in which others were trimmed
    #[arg(long, value_name = "WHERE", value_enum)]
    pub cleaning: Cleaning,
    /// Bytes a second of each drive that are read to find harm; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = quantity::size_bytes)]
    pub scrub_rate: u64,
    /// Time without writes after which all sides of a mirrored drive but one are left alone; 0s for never
    #[arg(long, value_name = "SPAN", value_parser = quantity::duration)]
    pub sleep_after: std::time::Duration,
    /// Bytes a second that a node of several servers copies of what it lacks
    #[arg(long, value_name = "SIZE", value_parser = quantity::some_bytes)]
    pub rebuild_rate: u64,
    /// Time for which another node may be away before this one copies what that held
    #[arg(long, value_name = "SPAN", value_parser = quantity::duration)]
    pub rebuild_after: std::time::Duration,
}

/// `ithaca cluster`.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Show the epoch, the nodes and the tail
    #[command(after_help = "Example:\n  ithaca cluster status --json")]
    Status,
    /// Make one cluster of servers that belong to none yet
    #[command(
        after_help = "Example:\n  ithaca cluster init 1=10.0.0.1:7420 2=10.0.0.2:7420 3=10.0.0.3:7420\n\n\
                      Each server was started with its id: ithaca server --node 1 --listen 10.0.0.1:7420"
    )]
    Init(InitArgs),
    /// Have a server with an empty data directory take the place of a node that has lost its own
    #[command(after_help = "Example:\n  ithaca cluster replace 3=10.0.0.3:7420")]
    Replace {
        /// The node's id and where it listens
        #[arg(value_name = "ID=HOST:PORT", value_parser = parse_node)]
        node: (NodeId, Endpoint),
    },
    /// Make a server with an empty data directory a member of the cluster, and wait until it is in use
    #[command(
        after_help = "Example:\n  ithaca cluster add 4=10.0.0.4:7420\n\nThe server was started with its id: ithaca server \
                      --node 4 --listen 10.0.0.4:7420. To add a node that is in use changes nothing."
    )]
    Add {
        /// The node's id and where it listens
        #[arg(value_name = "ID=HOST:PORT", value_parser = parse_node)]
        node: (NodeId, Endpoint),
    },
    /// Have a node leave the cluster for good, and wait until others have its copies
    #[command(
        after_help = "Example:\n  ithaca cluster remove 3 --timeout 10m\n\nIf the time is over before all is copied, the \
                      copying goes on; the same command waits for the rest. Exit 1 where the node is no member (any more)."
    )]
    Remove {
        /// The node's id
        #[arg(value_name = "ID")]
        node: u64,
    },
    /// Go on without nodes that are gone for good, where the cluster cannot by itself; what they alone held is lost
    #[command(
        after_help = "Example:\n  ithaca cluster give-up 2 3\n\nFor a cluster that has lost half of its nodes, a majority of those that decide, or \
                      all copies of something. All other nodes must run, and no node that is named may answer them. Never start one \
                      that was given up with its data again. Programs that are connected have to connect anew. Exit 1 where a node \
                      is no member, 2 where it is there or the others go on without it."
    )]
    GiveUp {
        /// The ids of all nodes that are gone
        #[arg(value_name = "ID", required = true, value_delimiter = ',')]
        nodes: Vec<u64>,
    },
    /// Change what the cluster asks of an append
    #[command(
        after_help = "Example:\n  ithaca cluster set --min-replicas 1\n\nWith fewer nodes in use than that nothing is \
                      appended; what is there can be read."
    )]
    Set {
        /// Copies without which nothing is appended
        #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
        min_replicas: u16,
    },
    /// Show the newest layout, or the latest ones
    #[command(after_help = "Example:\n  ithaca cluster layout --json\n  ithaca cluster layout --history")]
    Layout {
        /// The layouts before it as well, the newest first, as far back as the nodes remember
        #[arg(long)]
        history: bool,
    },
}

/// `ithaca cluster init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Each node's id and where it listens
    #[arg(required = true, value_name = "ID=HOST:PORT", value_parser = parse_node)]
    pub nodes: Vec<(NodeId, Endpoint)>,
    /// Copies of each entry [default: 2, or 1 for a single node]
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
    pub replicas: Option<u16>,
    /// Copies without which nothing is appended [default: all]
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
    pub min_replicas: Option<u16>,
}

/// `ithaca top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Time from one look to the next, 100ms to 1h
    #[arg(long, default_value = "1s", value_name = "SPAN", value_parser = parse_interval)]
    pub interval: Duration,
    /// Show one interval and end
    #[arg(long)]
    pub once: bool,
}

/// `ithaca log`.
#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Append the input as one entry, or each of its lines as one
    #[command(after_help = "Example:\n  printf 'one\\ntwo\\n' | ithaca log append --lines\n\n\
                      Each position is printed as soon as its entry is durable. At the first failure printing stops, the \
                      line is named, and nothing is tried again at a later position.")]
    Append {
        /// A file; `-` or nothing is the standard input
        #[arg(value_name = "FILE")]
        input: Option<PathBuf>,
        /// Each line is an entry, without its newline
        #[arg(long)]
        lines: bool,
        /// A stream that each entry belongs to; several are allowed
        #[arg(long = "stream", value_name = "NAME", value_parser = parse_stream)]
        streams: Vec<String>,
    },
    /// Print an entry, or every entry of a range
    #[command(after_help = "Example:\n  ithaca log read 7\n  ithaca log read --from 0 --to 100 --json\n\n\
                      In a range, holes below the tail are waited for, then filled; reading one position never fills.")]
    Read {
        /// A position
        #[arg(value_name = "POS", required_unless_present = "from", conflicts_with_all = ["from", "to"])]
        pos: Option<u64>,
        /// First position of a range
        #[arg(long, value_name = "A")]
        from: Option<u64>,
        /// The position after the range [default: the tail]
        #[arg(long, value_name = "B", requires = "from")]
        to: Option<u64>,
        /// End each entry with a newline
        #[arg(long)]
        lines: bool,
    },
    /// Print entries in order, each ended by a newline
    #[command(after_help = "Example:\n  ithaca log tail --follow --from 100")]
    Tail {
        /// Go on as entries become readable
        #[arg(short, long)]
        follow: bool,
        /// Where to begin [default: the lowest position that is not trimmed]
        #[arg(long, value_name = "POS")]
        from: Option<u64>,
    },
    /// Show the tail and the lowest position that is not trimmed
    #[command(after_help = "Example:\n  ithaca log check --json")]
    Check,
    /// Turn a position that was not written into junk
    #[command(after_help = "Example:\n  ithaca log fill 7")]
    Fill {
        /// The position
        pos: u64,
    },
    /// Give a position up
    #[command(after_help = "Example:\n  ithaca log trim 100 --prefix\n\n\
                      A map of which something is trimmed can only be read if `ithaca map checkpoint` has printed a position\n\
                      above that.")]
    Trim {
        /// The position
        pos: u64,
        /// Give up every position below POS instead
        #[arg(long)]
        prefix: bool,
    },
}

/// The name of a stream, or of an object, of a length that is allowed.
pub fn parse_stream(name: &str) -> Result<String, String> {
    let limit = ithaca_log::limits::STREAM_NAME_MAX_BYTES;
    match name.len() {
        len if (1..=limit).contains(&len) => Ok(name.to_owned()),
        len => Err(format!("a name of {len} bytes; 1 to {limit} are allowed")),
    }
}

/// `ithaca config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Write a settings file with every default, commented
    #[command(after_help = "Example:\n  ithaca config init ithaca.toml")]
    Init {
        /// The file, which must not be there yet; `-` prints it
        #[arg(default_value = "ithaca.toml")]
        file: PathBuf,
    },
    /// Show every setting
    #[command(after_help = "Example:\n  ITHACA_TIMEOUT=1s ithaca config show --origin")]
    Show {
        /// And where its value comes from
        #[arg(long)]
        origin: bool,
    },
}

/// `ithaca bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What to do
    pub workload: Workload,
    /// How long to measure, after the warm-up
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Bytes of an entry
    #[arg(long, default_value = "512", value_name = "SIZE", value_parser = parse_entry_size)]
    pub size: usize,
    /// Clients, each with connections of its own
    #[arg(long, default_value_t = 16, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Operations in flight, over all clients; of each client for map, get, snapshot and tx [default: 16 a client; 64 for token, map, get and tx; 1 for snapshot]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub inflight: Option<u32>,
    /// Read from the whole log, not only from its last entries
    #[arg(long)]
    pub cold: bool,
    /// Streams of each client, for the workload that appends to streams
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub streams: u32,
    /// Every client has the same map, for map and tx
    #[arg(long)]
    pub shared: bool,
    /// Who carries entries to the units that keep them
    #[arg(long, value_enum, default_value_t = Carrier::Sequencer)]
    pub carrier: Carrier,
}

/// Who carries appended entries to the units that keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    /// The sequencer's node takes batches whole
    Sequencer,
    /// The client asks for positions and writes to the first unit; the units hand entries on
    Units,
    /// The client asks for positions and writes to one unit after the other
    Client,
}

/// Why a text gives no address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// It is written otherwise.
    #[error("expected HOST:PORT: {why}")]
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// It is where a node listens, and not where it is.
    #[error("{endpoint}: others reach nobody at that address")]
    Everywhere {
        /// What was asked for.
        endpoint: String,
    },
    /// There is no node before it.
    #[error("expected ID=HOST:PORT, with an id of 1 or more")]
    NoNode,
    /// It is well formed, and nobody knows an address for the name now.
    #[error("{endpoint}: no address is known for this name: {why}")]
    Unresolved {
        /// What was asked for.
        endpoint: String,
        /// What the system says.
        why: String,
    },
}

/// A node by address or name, which is not looked up.
pub fn check_endpoint(text: &str) -> Result<(), EndpointError> {
    let endpoint = text.trim();
    if endpoint.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    let is_name = |host: &str| {
        !host.is_empty() && host.chars().all(|letter| letter.is_alphanumeric() || "-._".contains(letter))
    };
    match endpoint.rsplit_once(':') {
        Some((host, port)) if is_name(host) => {
            let port = port
                .parse::<u16>()
                .map_err(|_| EndpointError::Malformed { why: "invalid port value".to_owned() });
            port.map(drop)
        }
        _ => Err(EndpointError::Malformed { why: "no name of a host before a port".to_owned() }),
    }
}

/// A node by address or name. A name is looked up where the node is asked for something: it may be another one's by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// The address, if it is one by itself and no name.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }

    /// Its addresses, at least one, in the order in which they are tried. A name has all its addresses: `localhost` may be `::1` first, where
    /// nobody listens. Blocks while a name is looked up.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, EndpointError> {
        match self.0.to_socket_addrs() {
            Ok(found) if found.len() == 0 => Err(self.unresolved("it has none".to_owned())),
            Ok(found) => Ok(found.collect()),
            Err(error) => Err(self.unresolved(error.to_string())),
        }
    }

    /// That no address is known.
    pub fn unresolved(&self, why: String) -> EndpointError {
        EndpointError::Unresolved { endpoint: self.0.clone(), why }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

fn parse_endpoint(text: &str) -> Result<Endpoint, EndpointError> {
    check_endpoint(text)?;
    Ok(Endpoint(text.trim().to_owned()))
}

/// One address, by itself or as the first of a name.
pub fn parse_address(text: &str) -> Result<SocketAddr, EndpointError> {
    parse_endpoint(text)?.addresses().map(|addresses| addresses[0])
}

fn parse_node(text: &str) -> Result<(NodeId, Endpoint), EndpointError> {
    let (id, at) = text.split_once('=').ok_or(EndpointError::NoNode)?;
    let id: std::num::NonZeroU64 = id.parse().map_err(|_| EndpointError::NoNode)?;
    let at = parse_endpoint(at)?;
    match at.0.parse::<SocketAddr>() {
        Ok(addr) if addr.ip().is_unspecified() => Err(EndpointError::Everywhere { endpoint: at.0 }),
        _ => Ok((NodeId(id.get()), at)),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = quantity::duration(text).map_err(|error| error.to_string())?;
    let is_allowed = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    is_allowed.then_some(interval).ok_or_else(|| "expected 100ms to 1h".to_owned())
}

fn parse_entry_size(text: &str) -> Result<usize, String> {
    let limit = ithaca_log::limits::ENTRY_MAX_BYTES;
    let bytes = quantity::size_bytes(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= limit)
        .ok_or_else(|| format!("at most {limit} bytes"))
}

/// The value of `--config` on a command line, before the rest of it can be understood.
pub fn config_argument(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_file_is_found_before_and_after_the_verb_but_not_among_operands() {
        let find = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            config_argument(&words)
        };
        assert_eq!(find("ithaca --config a dev"), Some("a".into()));
        assert_eq!(find("ithaca dev --config=b"), Some("b".into()));
        assert_eq!(find("ithaca log append -- --config"), None);
    }

    fn whole_command() -> clap::Command {
        crate::config::apply(command(), &crate::config::File::default())
    }

    /// Gives each option of a command, and of those below it, that is a quantity a negative one. Returns how many there are.
    fn refuse_negative(command: &clap::Command, words: &[&str]) -> usize {
        let mut count = 0;
        for argument in command.get_arguments().filter(|argument| is_quantity(argument)) {
            let option = format!("--{}", argument.get_long().expect("an option"));
            for value in ["-4", "-4k", "-5s"] {
                let line = words.iter().copied().chain([option.as_str(), value]);
                let error = whole_command().try_get_matches_from(line).expect_err("negative");
                let (line, named) = (error.to_string(), format!("'{value}' for '{option} <"));
                assert!(line.contains(&named), "{words:?}: {line}");
            }
            count += 1;
        }
        for command in command.get_subcommands() {
            let words: Vec<&str> = words.iter().copied().chain([command.get_name()]).collect();
            count += refuse_negative(command, &words);
        }
        count
    }

    #[test]
    fn a_negative_quantity_is_refused_by_the_name_of_its_option() {
        // It was an unexpected argument, or several, where a unit followed the number.
        let count = refuse_negative(&whole_command(), &["ithaca"]);
        assert!(count > 30, "{count} options that take a number, a size or a span");
    }

    #[test]
    fn an_endpoint_is_a_name_or_an_address_with_a_port() {
        assert_eq!(parse_address("127.0.0.1:0"), Ok(SocketAddr::from(([127, 0, 0, 1], 0))));
        for malformed in ["localhost", "", "localhost:99999", ":0", "[::1", "two words:0"] {
            assert!(matches!(parse_endpoint(malformed), Err(EndpointError::Malformed { .. })), "{malformed}");
        }
    }
}
