//! One JSON object a line, keys in the order in which they are added.

use std::fmt::Write;

/// A JSON object that is being written.
#[derive(Clone, Debug)]
pub struct Object {
    text: String,
}

impl Object {
    /// `{}`.
    pub fn new() -> Self {
        Self { text: String::from("{") }
    }

    fn key(mut self, key: &str) -> Self {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        escape(&mut self.text, key);
        self.text.push(':');
        self
    }

    /// Adds a whole number.
    pub fn number(self, key: &str, value: u64) -> Self {
        self.raw(key, &value.to_string())
    }

    /// Adds a number with `digits` decimals; one that is not finite becomes `null`.
    pub fn decimal(self, key: &str, value: f64, digits: usize) -> Self {
        let text = if value.is_finite() { format!("{value:.digits$}") } else { "null".into() };
        self.raw(key, &text)
    }

    /// Adds a string.
    pub fn string(self, key: &str, value: &str) -> Self {
        let mut keyed = self.key(key);
        escape(&mut keyed.text, value);
        keyed
    }

    /// Adds `true` or `false`.
    pub fn boolean(self, key: &str, value: bool) -> Self {
        self.raw(key, if value { "true" } else { "false" })
    }

    /// Adds a value that is JSON already.
    pub fn raw(self, key: &str, value: &str) -> Self {
        let mut keyed = self.key(key);
        keyed.text.push_str(value);
        keyed
    }

    /// The object, without a newline.
    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// An array of values that are JSON already.
pub fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

/// A number, or `null`.
pub fn number_or_null(value: Option<u64>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}

/// `value` as a JSON string.
pub fn quoted(value: &str) -> String {
    let mut out = String::new();
    escape(&mut out, value);
    out
}

fn escape(out: &mut String, value: &str) {
    out.push('"');
    for letter in value.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_its_order_and_escapes_what_would_end_a_string() {
        let text = Object::new().number("pos", 7).string("a\"b", "c\\\n").boolean("ready", true).finish();
        assert_eq!(text, r#"{"pos":7,"a\"b":"c\\\u000a","ready":true}"#);
    }

    #[test]
    fn a_rate_that_could_not_be_measured_is_null() {
        assert_eq!(
            Object::new().decimal("ops", f64::NAN, 1).decimal("p50", 1.25, 1).finish(),
            r#"{"ops":null,"p50":1.2}"#
        );
        assert_eq!(array([quoted("a"), Object::new().finish()]), r#"["a",{}]"#);
    }
}
