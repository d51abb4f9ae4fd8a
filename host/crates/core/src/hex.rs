//! Hex digits: how keys, signatures and digests are written where people see them.

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes from lower-case hex digits.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, &[high, low]) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

/// Hex digits as a file of their own that says what they are.
pub fn framed(kind: &str, hex: &str) -> String {
    format!("-----BEGIN {kind}-----\n{hex}\n-----END {kind}-----\n")
}

/// The hex digits of such a file, or bare ones; none if the file is of another kind.
pub fn unframed<'a>(kind: &str, text: &'a str) -> Option<&'a str> {
    let text = text.trim();
    if !text.starts_with('-') {
        return Some(text);
    }
    let inner = text.strip_prefix(&format!("-----BEGIN {kind}-----"))?;
    Some(inner.strip_suffix(&format!("-----END {kind}-----"))?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_names_its_kind_and_bare_digits_need_none() {
        assert_eq!(unframed("KEY", &framed("KEY", "00ab")), Some("00ab"));
        assert_eq!(unframed("KEY", " 00ab\n"), Some("00ab"));
        assert_eq!(unframed("OTHER", &framed("KEY", "00ab")), None);
    }

    #[test]
    fn digits_are_read_as_they_were_written_and_in_no_other_form() {
        assert_eq!(unhex::<3>(&hex(&[0, 171, 255])), Some([0, 171, 255]));
        for bad in ["", "00abf", "00abfff", "00ABFF", "00abfg", "+0abff", "0äff"] {
            assert_eq!(unhex::<3>(bad), None, "{bad}");
        }
    }
}
