//! Names that become words of a command. A command is words between spaces and `key=value` between those, so a name that
//! holds a space, an `=`, a quote or a line break could become another argument, or another command. It is refused here,
//! before there is anything to send. Commas and brackets separate entries in replies, and are refused with them.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The longest name, in bytes of UTF-8.
pub const MAX_NAME: usize = 255;

/// A name that can't go into a command.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// It has no characters.
    #[error("{kind} is empty")]
    Empty {
        /// What the name is of: `topic`, `group`, `member`, ….
        kind: &'static str,
    },
    /// It is longer than [`MAX_NAME`] bytes.
    #[error("{kind} of {length} bytes is over the limit of {MAX_NAME}")]
    TooLong {
        /// What the name is of.
        kind: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// It holds a character that separates words or values.
    #[error(
        "{kind} {value:?} has {character:?} at byte {at}: spaces, '=', quotes, commas, brackets and control characters are not allowed"
    )]
    Character {
        /// What the name is of.
        kind: &'static str,
        /// The refused name.
        value: String,
        /// The first character that isn't allowed.
        character: char,
        /// Where it stands.
        at: usize,
    },
    /// The same, of a name that is a secret and so isn't shown.
    #[error(
        "{kind} has a character that is not allowed at byte {at}: no spaces, '=', quotes, commas, brackets or control characters"
    )]
    Secret {
        /// What the name is of.
        kind: &'static str,
        /// Where the first character that isn't allowed stands.
        at: usize,
    },
}

/// Where and what the first character is that can't stand in a word of a command.
fn forbidden(value: &str) -> Option<(usize, char)> {
    value.char_indices().find(|(_, c)| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '=' | '"' | '\'' | '`' | ',' | '[' | ']' | '\u{feff}' | '\u{2028}' | '\u{2029}')
    })
}

fn check(kind: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.is_empty() {
        return Err(InvalidName::Empty { kind });
    }
    if value.len() > MAX_NAME {
        return Err(InvalidName::TooLong { kind, length: value.len() });
    }
    match forbidden(value) {
        Some((at, character)) => Err(InvalidName::Character { kind, value: value.to_owned(), character, at }),
        None => Ok(()),
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the name: 1 to 255 bytes, no spaces, `=`, quotes, commas, brackets or control characters.
            pub fn new(value: impl AsRef<str>) -> Result<Self, InvalidName> {
                let value = value.as_ref();
                check($kind, value)?;
                Ok(Self(value.into()))
            }

            /// The name's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;
            fn from_str(value: &str) -> Result<Self, InvalidName> {
                Self::new(value)
            }
        }
    )*};
}

names! {
    /// A topic's name.
    Topic = "topic";
    /// A consumer group's name.
    Group = "group";
    /// A member's id: what the application chose, with the suffix that the broker adds.
    Member = "member";
    /// Any other word of a command: a producer id, a transactional id, a principal.
    Text = "value";
}

/// A credential: checked like a name, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Checks that the credential is one word of a command.
    pub fn new(kind: &'static str, value: impl AsRef<str>) -> Result<Self, InvalidName> {
        let value = value.as_ref();
        match check(kind, value) {
            Err(InvalidName::Character { kind, at, .. }) => Err(InvalidName::Secret { kind, at }),
            other => other.map(|()| Self(value.into())),
        }
    }

    /// The credential itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_become_another_word_is_refused_and_named() {
        for bad in [
            "a b",
            "a\tb",
            "a\nb",
            "a\rb",
            "a=b",
            "a\"b",
            "a'b",
            "a`b",
            "a\0b",
            "a\u{7f}",
            "a\u{a0}b",
            "a\u{2028}b",
            "a,b",
            "[a",
            "a]",
            "\u{85}",
        ] {
            let error = Topic::new(bad).unwrap_err();
            assert!(
                matches!(&error, InvalidName::Character { kind: "topic", value, .. } if value == bad),
                "{bad:?}: {error}"
            );
        }
        assert_eq!(Group::new("").unwrap_err().to_string(), "group is empty");
        assert_eq!(
            Member::new("a b").unwrap_err().to_string(),
            "member \"a b\" has ' ' at byte 1: spaces, '=', quotes, commas, brackets and control characters are not allowed"
        );
        assert!(matches!(Topic::new("x".repeat(256)), Err(InvalidName::TooLong { length: 256, .. })));
    }

    #[test]
    fn ordinary_names_and_other_scripts_pass() {
        for good in ["orders", "a.b_c-d", "zákazníci", "주문", "m-0397", "billing~m-1", "x".repeat(255).as_str()] {
            assert_eq!(Topic::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_secret_is_in_no_message() {
        let error = Secret::new("auth_token", "hunter2 x").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"));
        assert_eq!(format!("{:?}", Secret::new("auth_token", "hunter2").unwrap()), "<secret>");
    }
}
