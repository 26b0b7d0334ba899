//! The settings file: flat TOML, every key known, every value checked before anything starts.

use std::path::{Path, PathBuf};

use thiserror::Error;
use toml::de::{DeTable, DeValue};

use super::{SETTINGS, Setting};

/// Bytes of a settings file at the most.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Why a settings file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {message}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        message: String,
    },
    /// It is not TOML.
    #[error("{path}:{line}: {message}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// No setting has this name.
    #[error("{path}:{line}: unknown setting `{key}`{hint}", path = path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The name.
        key: String,
        /// A name that is like it, in words; may be empty.
        hint: String,
    },
    /// The setting does not take this value.
    #[error("{path}:{line}: `{key}`: {message}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The setting.
        key: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// What a settings file says; by default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Where it is; `None` if there is none.
    pub path: Option<PathBuf>,
    /// Setting, line and values.
    entries: Vec<(&'static str, usize, Vec<String>)>,
}

impl File {
    /// Reads and checks a settings file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = ithaca_env::real::files::read_at_most(path, FILE_MAX_BYTES)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other))
            .map_err(|error| ConfigError::Unreadable { path: path.into(), message: error.to_string() })?;
        Self::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.into(),
            line: line_of(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut entries = Vec::new();
        for (key, value) in table.get_ref() {
            let line = line_of(key.span().start);
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key.get_ref().as_ref()) else {
                let key = key.get_ref().to_string();
                return Err(ConfigError::UnknownKey { path: path.into(), line, hint: hint(&key), key });
            };
            let values = values(setting, value.get_ref()).map_err(|message| ConfigError::Value {
                path: path.into(),
                line,
                key: setting.key,
                message,
            })?;
            entries.push((setting.key, line, values));
        }
        Ok(Self { path: Some(path.into()), entries })
    }

    /// The values of a setting, `None` if the file does not state it.
    pub fn values(&self, key: &str) -> Option<&[String]> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, _, values)| &values[..])
    }

    /// The line that states a setting.
    pub fn line(&self, key: &str) -> Option<usize> {
        self.entries.iter().find(|(name, ..)| *name == key).map(|(_, line, _)| *line)
    }
}

/// The values as they would be written on the command line, each checked.
fn values(setting: &Setting, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let values = match value {
        DeValue::Array(items) if setting.list => {
            items.iter().map(|item| scalar(item.get_ref())).collect::<Result<Vec<_>, _>>()?
        }
        DeValue::Array(_) => return Err("expected one value, found an array".into()),
        single => vec![scalar(single)?],
    };
    for value in &values {
        (setting.check)(value)?;
    }
    Ok(values)
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        other => Err(format!("expected a string or a whole number, found a {}", other.type_str())),
    }
}

/// Names the setting that was probably meant.
fn hint(key: &str) -> String {
    let dashed = key.replace('_', "-");
    let exact = SETTINGS.iter().find(|setting| setting.key == dashed);
    let like = |setting: &&Setting| setting.key.starts_with(&*dashed) || dashed.starts_with(setting.key);
    // Of `drive` and `drive-size`, the one that has most of `drive-sizee`.
    let common = |setting: &&Setting| setting.key.len().min(dashed.len());
    let meant = exact.or_else(|| SETTINGS.iter().rev().filter(like).max_by_key(common));
    meant.map_or_else(String::new, |setting| format!(", did you mean `{}`?", setting.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, String> {
        File::parse(Path::new("a.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_back_as_they_would_be_typed() {
        let file = parse("# a comment\ntimeout = \"200ms\"\nunits = 3\nendpoint = [\"a:1\", \"b:2\"]\n");
        let file = file.expect("it is well formed");
        assert_eq!(file.values("timeout"), Some(&["200ms".to_owned()][..]));
        assert_eq!(file.values("units"), Some(&["3".to_owned()][..]));
        assert_eq!(file.values("endpoint").map(<[String]>::len), Some(2));
        assert_eq!((file.line("units"), file.values("listen")), (Some(3), None));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_file_and_line() {
        let error = parse("\n\ndrive_size = \"1G\"\n").expect_err("the key has a dash");
        assert_eq!(error, "a.toml:3: unknown setting `drive_size`, did you mean `drive-size`?");
        let error = parse("drive-sizee = \"1G\"").expect_err("one letter too many");
        assert_eq!(error, "a.toml:1: unknown setting `drive-sizee`, did you mean `drive-size`?");
        assert_eq!(parse("zebra = 1"), Err("a.toml:1: unknown setting `zebra`".into()));
    }

    #[test]
    fn a_value_that_cannot_be_is_refused_before_anything_starts() {
        assert!(parse("units = true").is_err_and(|line| line.starts_with("a.toml:1: `units`: expected")));
        assert!(parse("timeout = \"soon\"").is_err_and(|line| line.starts_with("a.toml:1: `timeout`: ")));
        assert!(parse("units = [1]").is_err());
        assert!(parse("units = ").is_err_and(|line| line.starts_with("a.toml:1: ")));
    }
}
