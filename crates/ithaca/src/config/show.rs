//! `ithaca config init` and `ithaca config show`.

use std::fmt::Write;
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{File, SETTINGS, Setting};
use crate::failure::Failure;
use crate::json::{Object, quoted};
use crate::output::Output;

/// Writes a settings file in which every setting stands commented with its default. Refuses to replace a file.
pub fn init(path: &Path, out: &mut Output) -> Result<(), Failure> {
    let text = default_file();
    if path == Path::new("-") {
        return out.all(&text);
    }
    if ithaca_env::real::files::exists(path) {
        return Err(Failure::usage(format!("{}: is there already", path.display())));
    }
    ithaca_env::real::files::write(path, text.as_bytes())
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    out.either(
        || format!("wrote {}", path.display()),
        || Object::new().string("file", &path.display().to_string()),
    )?;
    out.flush()
}

fn default_file() -> String {
    let mut text = String::from(
        "# Settings of Ithaca. A flag comes before an environment variable, that before this file, this before the default.\n\
         # Each setting is spelled alike everywhere: drive-size here, --drive-size, ITHACA_DRIVE_SIZE.\n",
    );
    for setting in SETTINGS {
        let value = match setting.default {
            _ if setting.list => {
                let values = setting.default.into_iter().flat_map(|default| default.split(','));
                format!("[{}]", values.map(quoted).collect::<Vec<_>>().join(", "))
            }
            default => quoted(default.unwrap_or_default()),
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "\n# {}\n# {} = {value}\n", setting.help, setting.key);
    }
    text
}

/// Prints every setting with its value, and where that comes from if `origin` is asked for.
pub fn show(matches: &ArgMatches, file: &File, origin: bool, out: &mut Output) -> Result<(), Failure> {
    let resolved: Vec<_> =
        SETTINGS.iter().map(|setting| (setting.key, resolve(setting, matches, file))).collect();
    for (key, (value, from)) in &resolved {
        out.either(
            || if origin { format!("{key:<11} {value:<20} {from}") } else { format!("{key:<11} {value}") },
            || {
                let object = Object::new().string("key", key).string("value", value);
                if origin { object.string("origin", from) } else { object }
            },
        )?;
    }
    out.flush()
}

/// A setting's value and where it comes from.
fn resolve(setting: &Setting, matches: &ArgMatches, file: &File) -> (String, String) {
    let id = setting.key.replace('-', "_");
    // Settings of other commands are no arguments of this one: for them there is no flag to look at.
    let known = matches.try_contains_id(&id).is_ok();
    if known && matches.value_source(&id) == Some(ValueSource::CommandLine) {
        let typed = matches.get_raw(&id).into_iter().flatten();
        let typed: Vec<_> = typed.map(|value| value.to_string_lossy().into_owned()).collect();
        return (typed.join(","), format!("flag --{}", setting.key));
    }
    if let Some(value) = std::env::var_os(setting.env) {
        return (value.to_string_lossy().into_owned(), format!("environment {}", setting.env));
    }
    if let Some(values) = file.values(setting.key) {
        let path = file.path.as_deref().unwrap_or(Path::new("")).display();
        let line = file.line(setting.key).unwrap_or(0);
        return (values.join(","), format!("file {path}:{line}"));
    }
    (setting.default.unwrap_or_default().to_owned(), "default".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;
    use crate::config::apply;

    #[test]
    fn the_file_that_init_writes_is_a_settings_file_and_stays_one_when_it_is_uncommented() {
        let text = default_file();
        let bare: String = text
            .lines()
            .skip(2)
            .filter(|line| line.contains(" = "))
            .map(|line| format!("{}\n", line.trim_start_matches("# ")))
            .collect();
        let file = File::parse(Path::new("a.toml"), &bare).expect("every default is valid");
        assert!(SETTINGS.iter().all(|setting| file.values(setting.key).is_some()), "{bare}");
        let matches = apply(Cli::command(), &file).try_get_matches_from(["ithaca", "dev"]);
        assert!(matches.is_ok(), "{matches:?}");
        assert_eq!(
            File::parse(Path::new("a.toml"), &text).map(|file| file.values("units").is_none()),
            Ok(true)
        );
    }
}
