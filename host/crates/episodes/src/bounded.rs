//! Texts of others, cut to a size: the beginning and the end stay, and what is missing is counted.

/// At most `bytes` bytes of the text and a line that says what was left out.
pub fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let head = floor(text, bytes / 2);
    let tail = ceiling(text, text.len() - (bytes - bytes / 2));
    let (first, last) = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
    format!("{first}\n[{} bytes left out]\n{last}", tail - head)
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceiling(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

/// Bytes that come one after the other, of which the first and the last are kept.
#[derive(Debug)]
pub struct Kept {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    half: usize,
    seen: usize,
}

impl Kept {
    /// Keeps about `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { head: Vec::new(), tail: std::collections::VecDeque::new(), half: bytes / 2, seen: 0 }
    }

    /// Takes more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.seen = self.seen.saturating_add(bytes.len());
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
    }

    /// What was kept, as text.
    pub fn text(&self) -> String {
        let left_out = self.seen - self.head.len() - self.tail.len();
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        if left_out == 0 { format!("{head}{tail}") } else { format!("{head}\n[{left_out} bytes left out]\n{tail}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_stay_and_characters_stay_whole() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefgh", 4), "ab\n[4 bytes left out]\ngh");
        assert_eq!(shortened("ääää", 3), "\n[6 bytes left out]\nä");
        assert_eq!(shortened("äöü", 0), "\n[6 bytes left out]\n");
    }

    #[test]
    fn a_stream_is_kept_as_far_as_it_fits() {
        let mut kept = Kept::new(4);
        for part in ["a", "bcd", "ef"] {
            kept.push(part.as_bytes());
        }
        assert_eq!(kept.text(), "ab\n[2 bytes left out]\nef");
        let mut kept = Kept::new(100);
        kept.push(b"all");
        assert_eq!(kept.text(), "all");
    }
}
