//! The `key=value` words of commands, replies and errors: one scanner, used by all three.

use thiserror::Error;

/// What a text lacks or holds that its kind doesn't allow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// A field that must be there is not.
    #[error("{0}= is missing")]
    Missing(&'static str),
    /// A field is there and can't be read.
    #[error("{name}={value:?} is not {expected}")]
    Invalid {
        /// The field's name.
        name: String,
        /// What stood there.
        value: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// A quote or a bracket is opened and never closed.
    #[error("the {what} opened at byte {at} is never closed")]
    Unclosed {
        /// `quote` or `bracket`.
        what: &'static str,
        /// Where it was opened, from the start of the fields.
        at: usize,
    },
}

/// The words of a text, in order: `key=value`, or a bare word without a key.
///
/// A value ends at the next white space, unless it begins with `"` (then at the closing quote; Go's escapes are undone)
/// or with `[` (then at the closing bracket: the broker writes `assignments=[0 1 2]`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) pairs: Vec<(String, String)>,
    pub(crate) bare: Vec<String>,
}

impl Fields {
    pub(crate) fn parse(text: &str) -> Result<Self, FieldError> {
        let mut fields = Self::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let word_end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let Some(equals) = rest[..word_end].find('=') else {
                fields.bare.push(rest[..word_end].to_owned());
                rest = rest[word_end..].trim_start();
                continue;
            };
            let key = &rest[..equals];
            let after = &rest[equals + 1..];
            let at = text.len() - after.len();
            let (value, length) = match after.as_bytes().first() {
                Some(b'"') => unquote(after).ok_or(FieldError::Unclosed { what: "quote", at })?,
                Some(b'[') => {
                    let end = after.find(']').ok_or(FieldError::Unclosed { what: "bracket", at })?;
                    (after[..=end].to_owned(), end + 1)
                }
                _ => {
                    let end = after.find(char::is_whitespace).unwrap_or(after.len());
                    (after[..end].to_owned(), end)
                }
            };
            fields.pairs.push((key.to_owned(), value));
            rest = after[length..].trim_start();
        }
        Ok(fields)
    }

    /// The last value under a key, as the broker itself reads it.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub(crate) fn require(&self, key: &'static str) -> Result<&str, FieldError> {
        self.get(key).ok_or(FieldError::Missing(key))
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, key: &'static str) -> Result<T, FieldError> {
        number(key, self.require(key)?)
    }
}

/// A number out of a field's text.
pub(crate) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, FieldError> {
    // `+1` would parse, and no side ever writes it.
    if value.starts_with('+') {
        return Err(FieldError::Invalid { name: name.to_owned(), value: value.to_owned(), expected: "a number" });
    }
    value.parse().map_err(|_| FieldError::Invalid {
        name: name.to_owned(),
        value: excerpt(value),
        expected: "a number",
    })
}

/// The start of a text, short enough for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 120;
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let end = (0..=LONGEST).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Undoes the quoting of a value that begins with `"`: the text, and how many bytes the quoted form took.
fn unquote(quoted: &str) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut characters = quoted.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((out, at + 1)),
            '\\' => {
                let (_, escaped) = characters.next()?;
                match escaped {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    'x' | 'u' | 'U' => {
                        let digits = match escaped {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let mut code = 0u32;
                        for _ in 0..digits {
                            code = (code << 4) | characters.next()?.1.to_digit(16)?;
                        }
                        out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => out.push(other),
                }
            }
            other => out.push(other),
        }
    }
    None
}

/// Quotes a value as the broker does.
pub(crate) fn quote(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_be_plain_quoted_or_in_brackets() {
        let fields = Fields::parse(r#" a=1 reason="two words \"x\" \u00e9" list=[0 1 2] bare e= "#).unwrap();
        assert_eq!(fields.get("a"), Some("1"));
        assert_eq!(fields.get("reason"), Some("two words \"x\" é"));
        assert_eq!(fields.get("list"), Some("[0 1 2]"));
        assert_eq!(fields.get("e"), Some(""));
        assert_eq!(fields.bare, ["bare"]);
    }

    #[test]
    fn what_is_never_closed_is_said_with_its_place() {
        assert_eq!(Fields::parse("a=1 b=\"x").unwrap_err(), FieldError::Unclosed { what: "quote", at: 6 });
        assert_eq!(Fields::parse("b=[0 1").unwrap_err(), FieldError::Unclosed { what: "bracket", at: 2 });
        assert_eq!(Fields::parse("b=\"\\").unwrap_err(), FieldError::Unclosed { what: "quote", at: 2 });
    }

    #[test]
    fn a_number_is_digits_in_range() {
        assert_eq!(number::<u32>("n", "7"), Ok(7));
        for bad in ["", "-1", "+1", "4294967296", "1 ", "0x1", "١"] {
            assert!(number::<u32>("n", bad).is_err(), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn quoting_is_undone(value in ".*") {
            let text = format!("k={} z=1", quote(&value));
            let fields = Fields::parse(&text).unwrap();
            proptest::prop_assert_eq!(fields.get("k"), Some(value.as_str()));
            proptest::prop_assert_eq!(fields.get("z"), Some("1"));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = Fields::parse(&text);
        }
    }
}
