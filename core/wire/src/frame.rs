//! Frames: a 4-byte big-endian length, then that many bytes. Text commands travel in an envelope inside: a u16 topic
//! length (0 here), then the text.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

/// The largest body the broker sends or accepts: 16 MiB. A longer prefix makes it close the connection without a word.
pub const MAX_BODY: usize = 16 << 20;

/// Bytes of the length prefix.
pub const HEADER: usize = 4;

/// What can be wrong with a frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length prefix names more than [`MAX_BODY`] bytes.
    #[error("a frame of {0} bytes is over the limit of {MAX_BODY}")]
    TooLong(usize),
    /// A command's body is shorter than its envelope says.
    #[error("an envelope of {available} bytes can't hold a topic of {topic} bytes")]
    ShortEnvelope {
        /// Bytes that the envelope says its topic has.
        topic: usize,
        /// Bytes there are behind the topic's length.
        available: usize,
    },
    /// A command's text isn't UTF-8.
    #[error("the command is not UTF-8 from byte {0} on")]
    NotText(usize),
}

/// The body's length from a frame's header.
pub fn body_length(header: [u8; HEADER]) -> Result<usize, FrameError> {
    let length = u32::from_be_bytes(header) as usize;
    if length > MAX_BODY { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

/// A whole frame around `body`, to be written in one call.
pub fn encode(body: &[u8]) -> Result<Bytes, FrameError> {
    let mut frame = BytesMut::with_capacity(HEADER + body.len());
    put(&mut frame, body)?;
    Ok(frame.freeze())
}

/// Appends a frame around `body`.
pub fn put(out: &mut BytesMut, body: &[u8]) -> Result<(), FrameError> {
    if body.len() > MAX_BODY {
        return Err(FrameError::TooLong(body.len()));
    }
    out.reserve(HEADER + body.len());
    out.put_u32(body.len() as u32);
    out.put_slice(body);
    Ok(())
}

/// A whole frame around a text command: length, empty topic, text.
pub fn encode_text(text: &str) -> Result<Bytes, FrameError> {
    let length = text.len() + 2;
    if length > MAX_BODY {
        return Err(FrameError::TooLong(length));
    }
    let mut frame = BytesMut::with_capacity(HEADER + length);
    frame.put_u32(length as u32);
    frame.put_u16(0);
    frame.put_slice(text.as_bytes());
    Ok(frame.freeze())
}

/// The topic and the text in the envelope of a command's body.
pub fn open_envelope(body: &[u8]) -> Result<(&str, &str), FrameError> {
    let Some((length, rest)) = body.split_first_chunk::<2>() else {
        return Err(FrameError::ShortEnvelope { topic: 0, available: 0 });
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let Some((topic, text)) = rest.split_at_checked(length) else {
        return Err(FrameError::ShortEnvelope { topic: length, available: rest.len() });
    };
    let read = |bytes, before| std::str::from_utf8(bytes).map_err(|e| FrameError::NotText(before + e.valid_up_to()));
    Ok((read(topic, 2)?, read(text, 2 + length)?))
}

/// Takes the next whole frame's body off the front of `buffer`, or nothing while it is incomplete.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let length = body_length(*header)?;
    if buffer.len() < HEADER + length {
        return Ok(None);
    }
    let mut frame = buffer.split_to(HEADER + length);
    Ok(Some(frame.split_off(HEADER).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_command_is_one_frame_with_an_empty_topic() {
        let frame = encode_text("LIST").unwrap();
        assert_eq!(&frame[..], b"\x00\x00\x00\x06\x00\x00LIST");
        assert_eq!(open_envelope(&frame[HEADER..]).unwrap(), ("", "LIST"));
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let mut wire = BytesMut::new();
        put(&mut wire, b"one").unwrap();
        put(&mut wire, b"").unwrap();
        put(&mut wire, b"three").unwrap();
        let (mut buffer, mut bodies) = (BytesMut::new(), Vec::new());
        for byte in wire {
            buffer.put_u8(byte);
            while let Some(body) = take(&mut buffer).unwrap() {
                bodies.push(body);
            }
        }
        assert_eq!(bodies, [&b"one"[..], b"", b"three"]);
    }

    #[test]
    fn the_limit_is_sixteen_mebibytes_both_ways() {
        assert_eq!(body_length((MAX_BODY as u32).to_be_bytes()), Ok(MAX_BODY));
        assert_eq!(body_length((MAX_BODY as u32 + 1).to_be_bytes()), Err(FrameError::TooLong(MAX_BODY + 1)));
        assert_eq!(encode(&vec![0; MAX_BODY + 1]), Err(FrameError::TooLong(MAX_BODY + 1)));
        let longest = "x".repeat(MAX_BODY - 2);
        assert_eq!(encode_text(&longest).map(|frame| frame.len()), Ok(HEADER + MAX_BODY));
        assert_eq!(encode_text(&(longest + "x")), Err(FrameError::TooLong(MAX_BODY + 1)));
        let mut buffer = BytesMut::from(&[0xff; 8][..]);
        assert_eq!(take(&mut buffer), Err(FrameError::TooLong(u32::MAX as usize)));
    }

    #[test]
    fn an_envelope_that_lies_is_an_error() {
        assert_eq!(open_envelope(b"\x00"), Err(FrameError::ShortEnvelope { topic: 0, available: 0 }));
        assert_eq!(open_envelope(b"\x00\x09abc"), Err(FrameError::ShortEnvelope { topic: 9, available: 3 }));
        assert_eq!(open_envelope(b"\x00\x00ok\xff"), Err(FrameError::NotText(4)));
    }
}
