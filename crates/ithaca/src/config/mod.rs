//! Settings: one spelling as flag, environment variable and TOML key, in that precedence, then a default.
//!
//! [`SETTINGS`] is the only place that states names, defaults and meanings; flags, `config init` and `config show` are
//! made of it.

mod file;
mod show;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::cli::{self, CacheKeeps, Cleaning, Format, LogLevel, Placement, Role};
use crate::failure::Failure;
use crate::quantity;

pub use file::File;
pub use show::{init, show};

/// The settings file that is read where none is named.
const DEFAULT_FILE: &str = "ithaca.toml";

/// Commands that take no settings of servers: what a cluster is formed with is said where it is formed, once, and which node's drives are
/// meant where they are changed.
const WITHOUT_SETTINGS: &[&str] = &["init", "drive"];

/// Something that can be set.
pub struct Setting {
    /// Flag (with `--` before it) and TOML key.
    pub key: &'static str,
    /// Environment variable.
    pub env: &'static str,
    /// The default, as it would be written; `None` for none.
    pub default: Option<&'static str>,
    /// Whether it holds several values: a TOML array, or parts separated by commas.
    pub list: bool,
    /// Says what is wrong with a value.
    check: fn(&str) -> Result<(), String>,
    /// What it means, in one line.
    pub help: &'static str,
}

/// Every setting.
pub const SETTINGS: &[Setting] = &[
    Setting {
        key: "endpoint",
        env: "ITHACA_ENDPOINT",
        default: Some("127.0.0.1:7420"),
        list: true,
        check: |text| text.split(',').try_for_each(|endpoint| said(cli::check_endpoint(endpoint))),
        help: "Nodes that client commands connect to.",
    },
    Setting {
        key: "timeout",
        env: "ITHACA_TIMEOUT",
        default: Some("5s"),
        list: false,
        check: |text| said(quantity::duration(text)),
        help: "Bound on every remote call, tries again included: 200ms, 5s, 1m.",
    },
    Setting {
        key: "output",
        env: "ITHACA_OUTPUT",
        default: Some("table"),
        list: false,
        check: |text| Format::from_str(text, false).map(drop),
        help: "How results are printed: table or json.",
    },
    Setting {
        key: "log-level",
        env: "ITHACA_LOG",
        default: Some("warn"),
        list: false,
        check: |text| LogLevel::from_str(text, false).map(drop),
        help: "What is told on stderr: off, error, warn, info, debug or trace.",
    },
    Setting {
        key: "data",
        env: "ITHACA_DATA",
        default: Some("./ithaca-data"),
        list: false,
        check: |text| {
            if text.is_empty() { Err("expected a directory, found nothing".into()) } else { Ok(()) }
        },
        help: "Where dev and server keep their data; the same directory resumes.",
    },
    Setting {
        key: "listen",
        env: "ITHACA_LISTEN",
        default: Some("127.0.0.1:7420"),
        list: false,
        check: |text| said(text.parse::<SocketAddr>()),
        help: "Where dev and server take clients; port 0 picks a free one.",
    },
    Setting {
        key: "http",
        env: "ITHACA_HTTP",
        default: Some("127.0.0.1:7422"),
        list: false,
        check: |text| said(text.parse::<SocketAddr>()),
        help: "Where dev and server show metrics and health; port 0 picks a free one.",
    },
    Setting {
        key: "node",
        env: "ITHACA_NODE",
        default: Some("0"),
        list: false,
        check: |text| said(text.parse::<u64>()),
        help: "Id of this server among the nodes of a cluster of servers, from 1; 0 makes it a cluster of its own.",
    },
    Setting {
        key: "roles",
        env: "ITHACA_ROLES",
        default: Some("layout,sequencer,unit,views,http"),
        list: true,
        check: |text| text.split(',').try_for_each(|role| Role::from_str(role, false).map(drop)),
        help: "What a server does. Only a node of several servers may leave out layout, sequencer and unit; it keeps what it began with.",
    },
    Setting {
        key: "units",
        env: "ITHACA_UNITS",
        default: Some("1"),
        list: false,
        check: |text| within(text, 1..=cli::UNITS_MAX),
        help: "Log units of dev and server. A directory keeps the number that it began with.",
    },
    Setting {
        key: "replicas",
        env: "ITHACA_REPLICAS",
        default: Some("1"),
        list: false,
        check: |text| within(text, 1..=cli::REPLICAS_MAX),
        help: "Copies of each entry.",
    },
    Setting {
        key: "drive",
        env: "ITHACA_DRIVE",
        default: None,
        list: true,
        check: any,
        help: "Files or block devices for data, in chain order; without any, those that the units had last, and at first files in the data directory.",
    },
    Setting {
        key: "drive-size",
        env: "ITHACA_DRIVE_SIZE",
        default: Some("1G"),
        list: false,
        check: |text| said(quantity::drive_bytes(text)),
        help: "Size at which a new drive file begins; it grows as the log does.",
    },
    Setting {
        key: "quota",
        env: "ITHACA_QUOTA",
        default: Some("16G"),
        list: false,
        check: |text| said(quantity::size_bytes(text)),
        help: "Size to which each drive file may grow: what a unit uses of it, with what is kept free for trims and cleaning.",
    },
    Setting {
        key: "cache",
        env: "ITHACA_CACHE",
        default: None,
        list: false,
        check: any,
        help: "File or block device that caches what left memory, for all units; without one, reads of that go to their drives.",
    },
    Setting {
        key: "cache-size",
        env: "ITHACA_CACHE_SIZE",
        default: Some("4G"),
        list: false,
        check: |text| said(quantity::size_bytes(text)),
        help: "Bytes of the cache that are used, at the most.",
    },
    Setting {
        key: "cache-keeps",
        env: "ITHACA_CACHE_KEEPS",
        default: Some("tail"),
        list: false,
        check: |text| CacheKeeps::from_str(text, false).map(drop),
        help: "What the cache keeps: tail, the drive that is being written; or all, what is read from others too.",
    },
    Setting {
        key: "metadata",
        env: "ITHACA_METADATA",
        default: None,
        list: false,
        check: any,
        help: "File or block device that mirrors what lies where, for all units, so that a start reads that from one drive.",
    },
    Setting {
        key: "placement",
        env: "ITHACA_PLACEMENT",
        default: Some("fill"),
        list: false,
        check: |text| Placement::from_str(text, false).map(drop),
        help: "Which drive the log goes on on when a segment is full: fill, one after the other is filled; or round-robin.",
    },
    Setting {
        key: "cleaning",
        env: "ITHACA_CLEANING",
        default: Some("tail"),
        list: false,
        check: |text| Cleaning::from_str(text, false).map(drop),
        help: "Where entries go that are left of a segment in which others were trimmed: tail, body or off.",
    },
    Setting {
        key: "scrub-rate",
        env: "ITHACA_SCRUB_RATE",
        default: Some("4M"),
        list: false,
        check: |text| said(quantity::size_bytes(text)),
        help: "Bytes a second of each drive that are read to find harm, once a day; 0 for none.",
    },
    Setting {
        key: "sleep-after",
        env: "ITHACA_SLEEP_AFTER",
        default: Some("0s"),
        list: false,
        check: |text| said(quantity::duration(text)),
        help: "Time without writes after which all sides of a mirrored drive but one are left alone; 0s for never.",
    },
    Setting {
        key: "rebuild-rate",
        env: "ITHACA_REBUILD_RATE",
        default: Some("32M"),
        list: false,
        check: |text| said(quantity::some_bytes(text)),
        help: "Bytes a second that a node of several servers copies of what it lacks.",
    },
    Setting {
        key: "rebuild-after",
        env: "ITHACA_REBUILD_AFTER",
        default: Some("10s"),
        list: false,
        check: |text| said(quantity::duration(text)),
        help: "Time for which another node may be away before this one copies what that held.",
    },
];

/// Whether a setting's default is such a one.
pub fn is_default(key: &str, is_such: impl Fn(&str) -> bool) -> bool {
    let defaults = SETTINGS.iter().filter(|setting| setting.key == key).filter_map(|setting| setting.default);
    defaults.into_iter().any(is_such)
}

fn any(_: &str) -> Result<(), String> {
    Ok(())
}

fn within(text: &str, allowed: RangeInclusive<u32>) -> Result<(), String> {
    match text.parse() {
        Ok(number) if allowed.contains(&number) => Ok(()),
        _ => Err(format!("expected {} to {}, found {text}", allowed.start(), allowed.end())),
    }
}

fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// Reads the settings file that the command line, the environment or the working directory names; an empty one if none
/// does. A file that is named must be there.
pub fn load(arguments: &[OsString]) -> Result<File, Failure> {
    let named = crate::cli::config_argument(arguments)
        .or_else(|| std::env::var_os("ITHACA_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from));
    let path = match named {
        Some(path) => path,
        None if Path::new(DEFAULT_FILE).is_file() => DEFAULT_FILE.into(),
        None => return Ok(File::default()),
    };
    File::read(&path).map_err(|error| Failure::usage(error.to_string()))
}

/// Gives every argument that is a setting its environment variable, and the file's value or the default.
pub fn apply(command: clap::Command, file: &File) -> clap::Command {
    let command = command.mut_args(|argument| {
        let Some(setting) = SETTINGS.iter().find(|setting| argument.get_long() == Some(setting.key)) else {
            return argument;
        };
        let argument = argument.required(false).env(setting.env);
        match (file.values(setting.key), setting.default) {
            // As `config init` writes it: nothing, which no path is.
            (Some(values), None) if values.iter().all(String::is_empty) => argument,
            (Some(values), _) => argument.default_values(values.to_vec()),
            (None, Some(default)) if setting.list => argument.default_values(default.split(',')),
            (None, Some(default)) => argument.default_value(default),
            (None, None) => argument,
        }
    });
    let takes_settings = |verb: &clap::Command| !WITHOUT_SETTINGS.contains(&verb.get_name());
    command.mut_subcommands(|verb| if takes_settings(&verb) { apply(verb, file) } else { verb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_passes_its_own_check() {
        for setting in SETTINGS {
            assert_eq!(
                setting.default.map(setting.check),
                setting.default.map(|_| Ok(())),
                "{}",
                setting.key
            );
        }
    }

    #[test]
    fn a_setting_is_spelled_alike_everywhere_but_for_the_log_level() {
        // `ITHACA_LOG` is what users of other programs try first.
        for setting in SETTINGS.iter().filter(|setting| setting.key != "log-level") {
            assert_eq!(setting.env, format!("ITHACA_{}", setting.key.to_uppercase().replace('-', "_")));
        }
    }
}
