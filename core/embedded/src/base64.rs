//! Base64, for bytes that a line of JSON can't hold.

/// Reads base64 of the usual alphabet, with or without the padding at its end; nothing where it is none.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2
        || digits.len() % 4 == 1
        || (digits.len() < text.len() && !text.len().is_multiple_of(4))
    {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    // What is left over of the last digit must say nothing.
    (held == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_with_and_without_padding() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zg", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("AP/+/w==", b"\0\xff\xfe\xff"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg=", "Zg===", "====", "Zm9v=", "Zm 9", "Zh==", "_w==", "Zm9vY"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
