//! What a frame's body turns out to be.
//!
//! The broker looks at a body three times: as a batch of records, as a bare command, and as a command in its envelope.
//! What none of these fits is answered differently, and only some of it ends the connection.

use cursus_wire::batch::MAGIC;

/// All first words that the broker knows. Some of them aren't carried out here (see `commands`), but none is malformed.
pub(crate) const WORDS: [&str; 49] = [
    "APPEND_STREAM",
    "AUTH",
    "BATCH_COMMIT",
    "BEGIN_TXN",
    "CATCHUP_SNAPSHOTS",
    "CLUSTER_STATUS",
    "COMMIT_OFFSET",
    "CONSUME",
    "CREATE",
    "DELETE",
    "DESCRIBE",
    "ELECT_LEADER",
    "END_TXN",
    "FETCH_OFFSET",
    "FETCH_SNAPSHOT",
    "FIND_COORDINATOR",
    "GROUP_STATUS",
    "HEARTBEAT",
    "HELP",
    "INIT_PRODUCER_ID",
    "INTERNAL_BATCH",
    "JOIN_GROUP",
    "LEAVE_GROUP",
    "LIST",
    "LIST_CLUSTER",
    "LIST_GROUPS",
    "LIST_OFFSETS",
    "LIST_SNAPSHOTS",
    "METADATA",
    "NEGOTIATE",
    "PROTOCOL_INFO",
    "PUBLISH",
    "RAFT_APPLY",
    "READ_SNAPSHOT",
    "READ_STREAM",
    "REGISTER_GROUP",
    "REPLICATE_MESSAGE",
    "REPLICATE_SNAPSHOT",
    "SAVE_SNAPSHOT",
    "SEND_OFFSETS_TO_TXN",
    "STREAM",
    "STREAM_VERSION",
    "SYNC_GROUP",
    "TXN_PUBLISH",
    "TXN_STATUS",
    // The names under which faults and the log of requests know what isn't a command.
    BATCH,
    MALFORMED,
    UNDECODABLE,
    UNKNOWN,
];

/// The name of a batch of records that a producer sends.
pub(crate) const BATCH: &str = "BATCH";
/// The name of a body that holds no command.
pub(crate) const MALFORMED: &str = "MALFORMED";
/// The name of a body that can't be opened.
pub(crate) const UNDECODABLE: &str = "UNDECODABLE";
/// The name of a known word that is written as no command is.
pub(crate) const UNKNOWN: &str = "UNKNOWN";

/// The commands that stand alone. LIST_OFFSETS and NEGOTIATE exist with and without arguments.
const ALONE: [&str; 8] =
    ["CLUSTER_STATUS", "HELP", "LIST", "LIST_CLUSTER", "LIST_GROUPS", "LIST_OFFSETS", "NEGOTIATE", "PROTOCOL_INFO"];

/// A frame's body, recognised.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming<'a> {
    /// A batch of records to append.
    Batch,
    /// A command's word and the text behind it.
    Command(&'static str, &'a [u8]),
    /// A known word, but not written as the command is: answered, and the connection stays.
    Unknown(&'a [u8]),
    /// No known word in the envelope: answered, then the connection closes.
    Malformed,
    /// No envelope: answered with this reason, and the connection stays.
    Undecodable(&'static str),
}

impl<'a> Incoming<'a> {
    /// Recognises a body.
    pub(crate) fn of(body: &'a [u8]) -> Self {
        if let [m0, m1, t0, t1, ..] = *body
            && [m0, m1] == MAGIC
            && body.len() >= 6
        {
            let topic = usize::from(u16::from_be_bytes([t0, t1]));
            if topic != 0 && topic + 2 <= body.len() {
                return Self::Batch;
            }
        }
        let bare = trim(body, false);
        if word(bare).is_some() {
            return Self::command(bare);
        }
        let Some((topic, rest)) = body.split_first_chunk::<2>() else { return Self::Undecodable("data too short") };
        let Some(payload) = rest.get(usize::from(u16::from_be_bytes(*topic))..) else {
            return Self::Undecodable("invalid topic length");
        };
        let payload = trim(payload, true);
        if word(payload).is_some() { Self::command(payload) } else { Self::Malformed }
    }

    fn command(text: &'a [u8]) -> Self {
        let Some(name) = word(text) else { return Self::Unknown(text) };
        match text[name.len()..].split_first() {
            // An argument follows a space and nothing else.
            Some((b' ', rest)) if !ALONE.contains(&name) || matches!(name, "LIST_OFFSETS" | "NEGOTIATE") => {
                Self::Command(name, rest)
            }
            None if ALONE.contains(&name) => Self::Command(name, &[]),
            _ => Self::Unknown(text),
        }
    }

    /// The name that faults and the log of requests use.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Batch => BATCH,
            Self::Command(name, _) => name,
            Self::Unknown(_) => UNKNOWN,
            Self::Malformed => MALFORMED,
            Self::Undecodable(_) => UNDECODABLE,
        }
    }
}

/// The text that a body holds, for the log of requests.
pub(crate) fn text(body: &[u8]) -> &[u8] {
    let bare = trim(body, false);
    if word(bare).is_some() { bare } else { trim(body.get(2..).unwrap_or_default(), true) }
}

/// The known word that a text begins with, in any case.
fn word(text: &[u8]) -> Option<&'static str> {
    let end = text.iter().position(|byte| b" \t\r\n".contains(byte)).unwrap_or(text.len());
    let name = std::str::from_utf8(&text[..end]).ok()?;
    command_named(name)
}

/// The command of this name, in any case.
pub(crate) fn command_named(name: &str) -> Option<&'static str> {
    let internal = [BATCH, MALFORMED, UNDECODABLE, UNKNOWN];
    WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(name)).filter(|word| !internal.contains(word))
}

fn trim(bytes: &[u8], nul: bool) -> &[u8] {
    let blank = |byte: &u8| b" \t\r\n".contains(byte) || (nul && *byte == 0);
    let start = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(start, |end| end + 1);
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_in_its_envelope_and_bare() {
        assert_eq!(Incoming::of(b"\0\0CONSUME topic=t"), Incoming::Command("CONSUME", b"topic=t"));
        assert_eq!(Incoming::of(b"\0\x03abc\0 consume topic=t\r\n\0"), Incoming::Command("CONSUME", b"topic=t"));
        assert_eq!(Incoming::of(b"LIST"), Incoming::Command("LIST", b""));
        assert_eq!(Incoming::of(b"\0\0LIST_OFFSETS"), Incoming::Command("LIST_OFFSETS", b""));
    }

    #[test]
    fn a_known_word_written_wrongly_is_unknown() {
        for text in [&b"LIST x"[..], b"CREATE", b"METADATA\ttopic=p"] {
            assert_eq!(Incoming::of(text), Incoming::Unknown(text), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn what_holds_no_command_is_malformed_or_undecodable() {
        assert_eq!(Incoming::of(b"\0\0BOGUS x=1"), Incoming::Malformed);
        assert_eq!(Incoming::of(b"\0\0BATCH"), Incoming::Malformed);
        assert_eq!(Incoming::of(b"\0\0"), Incoming::Malformed);
        assert_eq!(Incoming::of(b"BOGUS x=1"), Incoming::Undecodable("invalid topic length"));
        assert_eq!(Incoming::of(b""), Incoming::Undecodable("data too short"));
        assert_eq!(Incoming::of(b"\0"), Incoming::Undecodable("data too short"));
    }

    #[test]
    fn a_batch_needs_a_topic_that_fits() {
        assert_eq!(Incoming::of(b"\xba\x7c\0\x01t\0\0\0\0"), Incoming::Batch);
        assert_eq!(Incoming::of(b"\xba\x7c\0\0\0\0"), Incoming::Undecodable("invalid topic length"));
        assert_eq!(Incoming::of(b"\xba\x7c\xff\xff\0\0"), Incoming::Undecodable("invalid topic length"));
    }
}
