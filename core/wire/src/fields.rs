//! The `key=value` words of commands, replies and errors: one scanner, used by all three.

use std::borrow::Cow;
use std::str::FromStr;

use thiserror::Error;

/// What a text lacks or holds that its kind doesn't allow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// The text doesn't begin as its kind does.
    #[error("it doesn't begin with {0}")]
    Start(&'static str),
    /// A field that must be there is not.
    #[error("{0}= is missing")]
    Missing(&'static str),
    /// A field is there and can't be read.
    #[error("{name}={value:?} is not {expected}")]
    Invalid {
        /// The field's name.
        name: String,
        /// What stood there, cut where it is long.
        value: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// A quote or a bracket is opened and never closed.
    #[error("the {what} opened at byte {at} is never closed")]
    Unclosed {
        /// `quote` or `bracket`.
        what: &'static str,
        /// Where it was opened, from the start of the text.
        at: usize,
    },
    /// A JSON object that isn't what it should be; the problem names line and column.
    #[error("its JSON is wrong: {0}")]
    Json(String),
}

/// A word of a text: `key=value`, or a bare word without a key.
pub(crate) type Word<'a> = (Option<&'a str>, Cow<'a, str>);

/// The words of a text, read again at each look: nothing is copied, however many words a hostile text has.
///
/// A value ends at the next white space, unless it begins with `"` (then at the closing quote; Go's escapes are undone)
/// or with `[` (then at the closing bracket: the broker writes `assignments=[0 1 2]`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    text: &'a str,
    /// Where the fields begin, behind `OK` or the error's code.
    from: usize,
}

impl<'a> Fields<'a> {
    /// The words of `text` from byte `from` on, once every quote and bracket is found to be closed.
    pub(crate) fn parse(text: &'a str, from: usize) -> Result<Self, FieldError> {
        let fields = Self { text, from };
        fields.words().try_for_each(|word| word.map(drop))?;
        Ok(fields)
    }

    /// The words in order. It ends at the first error.
    pub(crate) fn words(&self) -> impl Iterator<Item = Result<Word<'a>, FieldError>> + use<'a> {
        let Self { text, from } = *self;
        let mut at = from;
        std::iter::from_fn(move || {
            at += text[at..].len() - text[at..].trim_start().len();
            if at == text.len() {
                return None;
            }
            let word = next_word(text, at);
            at = word.as_ref().map_or(text.len(), |(_, end)| *end);
            Some(word.map(|(word, _)| word))
        })
    }

    /// The last value under a key, as the broker itself reads it.
    pub(crate) fn get(&self, key: &str) -> Option<Cow<'a, str>> {
        self.words().flatten().filter(|(k, _)| *k == Some(key)).last().map(|(_, value)| value)
    }

    pub(crate) fn require(&self, key: &'static str) -> Result<Cow<'a, str>, FieldError> {
        self.get(key).ok_or(FieldError::Missing(key))
    }

    pub(crate) fn number<T: FromStr>(&self, key: &'static str) -> Result<T, FieldError> {
        number(key, &self.require(key)?)
    }
}

/// The word that begins at `at`, and where it ends.
fn next_word(text: &str, at: usize) -> Result<(Word<'_>, usize), FieldError> {
    let rest = &text[at..];
    let word = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
    let Some((key, plain)) = word.split_once('=') else {
        return Ok(((None, word.into()), at + word.len()));
    };
    let start = at + key.len() + 1;
    let after = &text[start..];
    let (value, length) = match after.as_bytes().first() {
        Some(b'"') => {
            let (value, length) = unquote(after).ok_or(FieldError::Unclosed { what: "quote", at: start })?;
            (value.into(), length)
        }
        Some(b'[') => {
            let end = after.find(']').ok_or(FieldError::Unclosed { what: "bracket", at: start })?;
            (after[..=end].into(), end + 1)
        }
        _ => (plain.into(), plain.len()),
    };
    Ok(((Some(key), value), start + length))
}

/// A number out of a field's text.
pub(crate) fn number<T: FromStr>(name: &str, value: &str) -> Result<T, FieldError> {
    // `+1` would parse, and no side ever writes it.
    let parsed = if value.starts_with('+') { None } else { value.parse().ok() };
    parsed.ok_or_else(|| invalid(name, value, "a number in range"))
}

/// A field that can't be read.
pub(crate) fn invalid(name: &str, value: &str, expected: &'static str) -> FieldError {
    FieldError::Invalid { name: name.to_owned(), value: excerpt(value), expected }
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
                let digits = match escaped {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => {
                        let control = CONTROLS.iter().find(|(letter, _)| *letter == escaped);
                        out.push(control.map_or(escaped, |(_, control)| *control));
                        continue;
                    }
                };
                let mut code = 0u32;
                for _ in 0..digits {
                    code = (code << 4) | characters.next()?.1.to_digit(16)?;
                }
                // Go writes a byte that is not UTF-8 as \xff.
                let code = if digits == 2 && code > 0x7f { None } else { char::from_u32(code) };
                out.push(code.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            other => out.push(other),
        }
    }
    None
}

/// Go's one-letter escapes.
const CONTROLS: [(char, char); 7] =
    [('a', '\x07'), ('b', '\x08'), ('f', '\x0c'), ('n', '\n'), ('r', '\r'), ('t', '\t'), ('v', '\x0b')];

/// A value as it can stand behind `key=`: quoted where it isn't one plain word.
pub(crate) fn word(value: &str) -> Cow<'_, str> {
    let special = |c: char| c.is_whitespace() || c.is_control() || c == '"';
    if value.contains(special) || value.starts_with('[') { quote(value).into() } else { value.into() }
}

/// Quotes a value as the broker does.
pub(crate) fn quote(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => match CONTROLS.iter().find(|(_, control)| *control == c) {
                Some((letter, _)) => out.extend(['\\', *letter]),
                None if c.is_ascii() => out.push_str(&format!("\\x{:02x}", c as u32)),
                None => out.push_str(&format!("\\u{:04x}", c as u32)),
            },
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
        let text = r#"OK a=1 reason="two words \"x\" \u00e9\x07\x7f\x80\xff\v" list=[0 1 2] bare e= a=2 "#;
        let fields = Fields::parse(text, 2).unwrap();
        assert_eq!(fields.get("a").as_deref(), Some("2"), "the last one counts");
        assert_eq!(fields.get("reason").as_deref(), Some("two words \"x\" é\x07\x7f\u{fffd}\u{fffd}\x0b"));
        assert_eq!(fields.get("list").as_deref(), Some("[0 1 2]"));
        assert_eq!(fields.get("e").as_deref(), Some(""));
        let bare: Vec<_> = fields.words().flatten().filter(|(key, _)| key.is_none()).map(|(_, word)| word).collect();
        assert_eq!(bare, ["bare"]);
    }

    #[test]
    fn what_is_never_closed_is_said_with_its_place() {
        let error = |text| Fields::parse(text, 0).unwrap_err();
        assert_eq!(error("a=1 b=\"x"), FieldError::Unclosed { what: "quote", at: 6 });
        assert_eq!(error("b=[0 1"), FieldError::Unclosed { what: "bracket", at: 2 });
        assert_eq!(error("b=\"\\"), FieldError::Unclosed { what: "quote", at: 2 });
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
            let fields = Fields::parse(&text, 0).unwrap();
            proptest::prop_assert_eq!(fields.get("k").unwrap(), value);
            proptest::prop_assert_eq!(fields.get("z").unwrap(), "1");
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = Fields::parse(&text, 0);
        }
    }
}
