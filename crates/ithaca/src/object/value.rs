//! Keys and values of any type, as the shell writes and reads them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ithaca_object::remote::any::Any;

use crate::json::{array, quoted};

/// The keys that a word may mean, the likeliest first: text, or a whole number.
pub fn keys(word: &str) -> Vec<Any> {
    let text = Any::Text(word.into());
    let number = word.parse::<u64>().map(Any::Number).or_else(|_| word.parse().map(Any::Negative)).ok();
    // `007` and `+7` are words: a number is as it is printed.
    [text].into_iter().chain(number.filter(|number| json(number) == word)).collect()
}

/// As people read it: text as it is, everything else as JSON.
pub fn text(value: &Any) -> String {
    match value {
        Any::Text(text) => text.to_string(),
        value => json(value),
    }
}

/// As JSON. Bytes are an object with `base64`; names that are no text are the JSON of what they are, as text.
pub fn json(value: &Any) -> String {
    match value {
        Any::Nil => "null".to_owned(),
        Any::Bool(value) => value.to_string(),
        Any::Negative(value) => value.to_string(),
        Any::Number(value) => value.to_string(),
        Any::Single(bits) => fraction(f32::from_bits(*bits), f32::is_finite),
        Any::Double(bits) => fraction(f64::from_bits(*bits), f64::is_finite),
        Any::Text(text) => quoted(text),
        Any::Bytes(bytes) => format!("{{\"base64\":{}}}", quoted(&STANDARD.encode(bytes))),
        Any::List(items) => array(items.iter().map(json)),
        Any::Map(entries) => {
            let entry = |(name, value): &(Any, Any)| format!("{}:{}", quoted(&text(name)), json(value));
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(","))
        }
    }
}

/// JSON has no word for what is no number or has no end.
fn fraction<F: std::fmt::Debug + Copy>(value: F, is_finite: impl Fn(F) -> bool) -> String {
    if is_finite(value) { format!("{value:?}") } else { quoted(&format!("{value:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_type_are_json_and_text_is_as_it_is() {
        let value = Any::Map(vec![
            (Any::Text("a\"b".into()), Any::List(vec![Any::Nil, Any::Bool(true), Any::Negative(-7)])),
            (Any::Number(3), Any::Bytes(vec![0, 255].into())),
            (Any::Text("f".into()), Any::Double(1.5f64.to_bits())),
            (Any::Text("n".into()), Any::Single(f32::NAN.to_bits())),
        ]);
        let expected = r#"{"a\"b":[null,true,-7],"3":{"base64":"AP8="},"f":1.5,"n":"NaN"}"#;
        assert_eq!((json(&value).as_str(), text(&value).as_str()), (expected, expected));
        let word = Any::Text("a\tb".into());
        assert_eq!((text(&word).as_str(), json(&word).as_str()), ("a\tb", r#""a\u0009b""#));
    }

    #[test]
    fn a_word_may_be_a_number() {
        let text = |word: &str| Any::Text(word.into());
        assert_eq!(keys("7"), [text("7"), Any::Number(7)]);
        assert_eq!(keys("-7"), [text("-7"), Any::Negative(-7)]);
        assert_eq!(
            (keys("07"), keys("+7"), keys("seven")),
            (vec![text("07")], vec![text("+7")], vec![text("seven")])
        );
    }
}
