//! The text of an answer while it is being sampled.
//! The scheduler pushes the bytes of each token and gets the text that is safe to show: whole characters, and
//! nothing that may still become a stop string. What is shown does not depend on how the bytes are cut.

/// Bytes in, safe text out.
#[derive(Debug, Default)]
pub(crate) struct TextStream {
    stops: Vec<String>,
    /// The start of a character.
    partial: Vec<u8>,
    /// Characters that may become a stop string.
    held: String,
}

/// What a push made visible.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Text to send.
    pub text: String,
    /// The stop string that ended the answer; nothing may be pushed after it.
    pub matched: Option<String>,
}

impl TextStream {
    /// Empty stop strings are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Self::default() }
    }

    /// Takes the bytes of one token.
    pub fn push(&mut self, bytes: &[u8]) -> Shown {
        self.partial.extend_from_slice(bytes);
        let mut whole = String::new();
        let mut used = 0;
        for chunk in self.partial.utf8_chunks() {
            whole.push_str(chunk.valid());
            used += chunk.valid().len();
            let at_end = used + chunk.invalid().len() == self.partial.len();
            if at_end && may_continue(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                whole.push(char::REPLACEMENT_CHARACTER);
                used += chunk.invalid().len();
            }
        }
        self.partial.drain(..used);
        self.show(&whole)
    }

    /// The rest, when the answer ends without a stop string; an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.held);
        rest.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.partial)));
        rest
    }

    /// Of all stop strings the one that is complete first ends the answer; of those the longest.
    fn show(&mut self, whole: &str) -> Shown {
        self.held.push_str(whole);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)));
        if let Some((_, start, stop)) = found.min_by_key(|(end, start, _)| (*end, *start)) {
            let text = self.held.get(..start).unwrap_or_default().to_owned();
            let matched = Some(stop.clone());
            self.held.clear();
            self.partial.clear();
            return Shown { text, matched };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Shown { text: std::mem::replace(&mut self.held, rest), matched: None }
    }
}

/// Bytes at the end of `text` that are a proper prefix of `stop`, at most.
fn overlap(text: &str, stop: &str) -> usize {
    let cuts = stop.char_indices().map(|(cut, _)| cut).rev();
    cuts.into_iter().find(|cut| stop.get(..*cut).is_some_and(|head| text.ends_with(head))).unwrap_or(0)
}

/// May these bytes be the start of a character?
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `bytes` cut at the ones of `cuts`; returns all text and the match.
    fn run(bytes: &[u8], stops: &[&str], cuts: u32) -> (String, Option<String>) {
        let mut stream = TextStream::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let (mut text, mut from) = (String::new(), 0);
        for at in 1..=bytes.len() {
            if at < bytes.len() && cuts & (1 << (at - 1)) == 0 {
                continue;
            }
            let shown = stream.push(&bytes[from..at]);
            from = at;
            text.push_str(&shown.text);
            assert!(stops.iter().all(|stop| !text.contains(stop)), "leaked: {text:?}");
            if shown.matched.is_some() {
                return (text, shown.matched);
            }
        }
        text.push_str(&stream.finish());
        (text, None)
    }

    #[test]
    fn every_chunking_shows_the_same_text() {
        type Case = (&'static [u8], &'static [&'static str], &'static str, Option<&'static str>);
        let cases: [Case; 7] = [
            ("añ€😀b".as_bytes(), &[], "añ€😀b", None),
            (b"one STOP two", &["STOP"], "one ", Some("STOP")),
            (b"xabcab", &["abcd", "cab"], "xab", Some("cab")),
            (b"xabc", &["abc", "b"], "xa", Some("b")),
            (b"abab", &["abc"], "abab", None),
            ("a€€b".as_bytes(), &["€b"], "a€", Some("€b")),
            (b"a\xff\xe2\x82", &[], "a\u{fffd}\u{fffd}", None),
        ];
        for (bytes, stops, text, matched) in cases {
            for cuts in 0..1u32 << (bytes.len() - 1) {
                assert_eq!(
                    run(bytes, stops, cuts),
                    (text.to_owned(), matched.map(str::to_owned)),
                    "{bytes:?} cut {cuts:b}"
                );
            }
        }
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_safe() {
        let mut stream = TextStream::new(vec!["\n\n".to_owned()]);
        assert_eq!(stream.push(b"hello").text, "hello");
        assert_eq!(stream.push(b"\n").text, "");
        assert_eq!(stream.push(b"x").text, "\nx");
        assert_eq!(stream.push(b"\n").text, "");
        assert_eq!(stream.finish(), "\n");
    }
}
