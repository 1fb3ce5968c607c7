//! The arguments of a text command, read as the broker reads them.
//!
//! `cursus_wire::Command::parse` is stricter: it refuses names that our own client would never send, and gives one error
//! where the broker checks argument by argument in an order of its own. A broker's quirks are the point here.

use std::collections::BTreeMap;

/// The words of a command behind its name. The last of several under one key wins; keys are case-sensitive; there is no
/// quoting; an empty value counts as missing.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pairs: BTreeMap<String, String>,
    /// Everything behind the first `message=`, white space off both ends; bytes, as a payload needn't be text.
    message: Option<Vec<u8>>,
    last_word: String,
}

/// The key that swallows the rest of a command, even as the tail of another key.
const MESSAGE: &[u8] = b"message=";

impl Arguments {
    /// Reads the text behind a command's name.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let at = text.windows(MESSAGE.len()).position(|window| window == MESSAGE);
        let (words, message) = match at {
            Some(at) => (&text[..at], Some(trim(&text[at + MESSAGE.len()..]).to_vec())),
            None => (text, None),
        };
        let words = String::from_utf8_lossy(words);
        let mut pairs = BTreeMap::new();
        for word in words.split_whitespace() {
            if let Some((key, value)) = word.split_once('=') {
                pairs.insert(key.to_owned(), value.to_owned());
            }
        }
        // The pairs of a batch commit are whatever follows the last space: of `P0:1, P1:2` only the second.
        let whole = String::from_utf8_lossy(text);
        let last_word = whole.trim_end().rsplit(' ').next().unwrap_or_default().to_owned();
        Self { pairs, message, last_word }
    }

    /// A value that isn't empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a key was given at all, with or without a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.pairs.contains_key(key)
    }

    /// A value that must be there, or the broker's text for its absence.
    pub(crate) fn require(&self, key: &str, command: &str) -> Result<&str, String> {
        let code = match key {
            "producerId" => "producer_id",
            other => other,
        };
        self.get(key).ok_or_else(|| format!("missing_{code} command={command}"))
    }

    /// The message; nothing where it is missing or empty.
    pub(crate) fn message(&self) -> Option<&[u8]> {
        self.message.as_deref().filter(|message| !message.is_empty())
    }

    /// What follows the command's last space.
    pub(crate) fn last_word(&self) -> &str {
        &self.last_word
    }
}

fn trim(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.trim().as_bytes(),
        Err(_) => bytes.trim_ascii(),
    }
}

/// A signed number as Go's `Atoi` reads it: a sign, then digits, nothing else.
pub(crate) fn signed(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// An unsigned number as Go's `ParseUint` reads it: digits, nothing else.
pub(crate) fn unsigned(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A value quoted as Go's `%q` does it.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => out.push_str(&format!("\\u{:04x}", c as u32)),
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
    fn the_last_of_a_key_wins_and_words_without_one_are_dropped() {
        let arguments = Arguments::parse(b"topic=a junk topic=b=c Topic=x empty= group=g");
        assert_eq!(arguments.get("topic"), Some("b=c"));
        assert_eq!(arguments.get("empty"), None);
        assert!(arguments.has("empty"));
        assert_eq!(arguments.require("member", "SYNC_GROUP").unwrap_err(), "missing_member command=SYNC_GROUP");
        assert_eq!(arguments.message(), None);
    }

    #[test]
    fn a_message_takes_all_that_follows_even_as_the_tail_of_another_key() {
        let arguments = Arguments::parse(b"topic=a xmessage=  b topic=c \xff \t");
        assert_eq!(arguments.get("topic"), Some("a"));
        assert_eq!(arguments.message(), Some(&b"b topic=c \xff"[..]));
        assert_eq!(Arguments::parse(b"message=  ").message(), None);
    }

    #[test]
    fn only_the_last_word_is_the_pairs_of_a_batch_commit() {
        assert_eq!(Arguments::parse(b"topic=t P0:1, P1:2  ").last_word(), "P1:2");
        assert_eq!(Arguments::parse(b"generation=1").last_word(), "generation=1");
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        assert_eq!((signed("+3"), signed("-3"), signed("3")), (Some(3), Some(-3), Some(3)));
        assert_eq!((unsigned("+3"), unsigned("-3"), unsigned("3")), (None, None, Some(3)));
        for bad in ["", "+", "0x1", "1 ", "1.0", "99999999999999999999"] {
            assert_eq!((signed(bad), unsigned(bad)), (None, None), "{bad:?}");
        }
    }

    #[test]
    fn quoting_is_gos() {
        assert_eq!(quote("a \"b\"\\\n\0\u{a0}é"), r#""a \"b\"\\\n\x00\u00a0é""#);
    }
}
