//! The one binary: arguments and settings, what is printed, signals, and health over HTTP.
//!
//! Every command ends with an exit code of [`failure::Exit`] and at most one line on stderr. Nothing of the log's logic
//! is here: commands call the client library and the servers of `ithaca-log`.

mod bench;
mod cli;
mod client;
mod cluster;
mod complaints;
mod config;
mod drive;
mod dump;
mod failure;
mod fsck;
mod generate;
mod http;
mod json;
mod log;
mod members;
mod object;
mod output;
mod quantity;
mod roles;
mod serve;
mod stream;
mod top;
mod volume;

use std::error::Error as _;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use ithaca_env::real::{Allocator, keep_freed_memory};
use ithaca_log::pos::NodeId;

use cli::{Cli, ClusterCommand, Command, ConfigCommand, EndpointError, LogLevel};
use complaints::Complaints;
use failure::Failure;
use output::Output;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    keep_freed_memory();
    match run(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let file = config::load(arguments)?;
    let command = config::apply(cli::command(), &file);
    let matches = match command.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return told(&error),
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|error| usage(&error))?;
    start_tracing(cli.global.log_level);
    let mut out = Output::new(cli.global.format());
    match &cli.command {
        Command::Dev(arguments) => serve::dev(arguments, out),
        Command::Server(arguments) => serve::server(arguments, out),
        Command::Cluster(ClusterCommand::Status) => cluster::status(&cli.global, &mut out),
        Command::Cluster(ClusterCommand::Init(arguments)) => members::init(&cli.global, arguments, &mut out),
        Command::Cluster(ClusterCommand::Replace { node }) => members::replace(&cli.global, node, &mut out),
        Command::Cluster(ClusterCommand::Add { node }) => members::add(&cli.global, node, &mut out),
        Command::Cluster(ClusterCommand::Remove { node }) => {
            members::remove(&cli.global, NodeId(*node), &mut out)
        }
        Command::Cluster(ClusterCommand::GiveUp { nodes }) => members::give_up(&cli.global, nodes, &mut out),
        Command::Cluster(ClusterCommand::Set { min_replicas }) => {
            members::set(&cli.global, *min_replicas, &mut out)
        }
        Command::Cluster(ClusterCommand::Layout { history }) => {
            members::layout(&cli.global, *history, &mut out)
        }
        Command::Drive(command) => drive::run(&cli.global, command, &mut out),
        Command::Log(command) => log::run(&cli.global, command, &mut out),
        Command::Stream(command) => stream::run(&cli.global, command, &mut out),
        Command::Map(command) => object::map::run(&cli.global, command, &mut out),
        Command::Tx(arguments) => object::tx::run(&cli.global, arguments, &mut out),
        Command::Volume(command) => volume::run(&cli.global, command, out),
        Command::Top(arguments) => top::run(&cli.global, arguments, &mut out),
        Command::Bench(arguments) => bench::run(&cli.global, arguments, &mut out),
        Command::Fsck { paths } => fsck::run(paths, &mut out),
        Command::Dump { file } => dump::run(file, &mut out),
        Command::Config(ConfigCommand::Init { file }) => config::init(file, &mut out),
        Command::Config(ConfigCommand::Show { origin }) => config::show(&matches, &file, *origin, &mut out),
        Command::Completions { shell } => generate::completions(*shell, &mut out),
        Command::Man { dir } => generate::man(dir, &mut out),
        Command::Version => generate::version(&mut out),
    }
}

/// What clap answers in place of arguments: help and the version go to stdout, a name without an address is a node that is not
/// reached, anything else is wrong usage.
fn told(error: &clap::Error) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.print().map_err(output::failed),
        _ => match error.source().and_then(|source| source.downcast_ref()) {
            Some(unresolved @ EndpointError::Unresolved { .. }) => {
                Err(Failure::unreachable(unresolved.to_string()))
            }
            _ => Err(usage(error)),
        },
    }
}

/// The part of clap's message that says what is wrong, in one line.
fn usage(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing (see `--help`)");
    }
    let text = error.render().to_string();
    let parts = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let parts: Vec<&str> = parts.map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = parts.join(" ");
    Failure::usage(format!("{} (see `--help`)", line.strip_prefix("error: ").unwrap_or(&line)))
}

fn start_tracing(level: LogLevel) {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        // An event that cannot be written is left out; to complain of it on stderr too would end the process.
        .log_internal_errors(false)
        .finish()
        .with(Complaints::default())
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        config::apply(cli::command(), &config::File::default())
    }

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Example:\n"), "{}", command.get_name());
            command.get_subcommands().filter(|verb| verb.get_name() != "help").for_each(check);
        }
        check(&command());
    }

    #[test]
    fn global_flags_work_before_and_after_the_verb() {
        for line in ["ithaca --json --timeout 1s log check", "ithaca log check --timeout 1s --json"] {
            let matches = command().try_get_matches_from(line.split(' ')).expect(line);
            let cli = Cli::from_arg_matches(&matches).expect(line);
            assert_eq!(cli.global.timeout, std::time::Duration::from_secs(1), "{line}");
            assert_eq!(cli.global.format(), cli::Format::Json, "{line}");
        }
    }

    #[test]
    fn wrong_usage_is_one_line_that_says_what_is_wrong() {
        for (line, part) in [
            ("ithaca log append --bogus", "--bogus"),
            ("ithaca log read", "<POS>"),
            ("ithaca log read 1 --from 2", "cannot be used"),
            ("ithaca log", "missing"),
            ("ithaca dev --units 0", "--units"),
            ("ithaca log fill minus", "minus"),
            ("ithaca top --interval 1ms", "100ms to 1h"),
            ("ithaca bench append --size -1", "'-1' for '--size <SIZE>'"),
            ("ithaca tx - --retries -1", "'-1' for '--retries <N>'"),
            ("ithaca log read -1", "'-1' for '[POS]'"),
            ("ithaca log check --endpoint nowhere", "expected HOST:PORT"),
        ] {
            let error = command().try_get_matches_from(line.split(' ')).expect_err(line);
            let Err(Failure::Told { exit, line: told }) = told(&error) else { panic!("{line}") };
            assert_eq!(exit, failure::Exit::Usage, "{line}");
            assert!(told.contains(part) && !told.contains('\n'), "{line}: {told}");
        }
    }
}
