//! Reading of an upstream's server-sent events, by the algorithm of the HTML standard (section 9.2.6).
//! Providers feed it the bytes as they arrive; how they are cut makes no difference. It holds one unfinished event
//! at most, bounded by the caller's number; `id` and `retry` are not kept, since an answer is never resumed.

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// `event:`; `None` where the stream names none.
    pub event: Option<String>,
    /// `data:`, its lines joined by line feeds.
    pub data: String,
}

/// An event is longer than the reader was told to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {bytes_max} bytes")]
pub struct SseTooLong {
    /// What the reader may hold.
    pub bytes_max: usize,
}

/// Turns bytes into events.
#[derive(Debug)]
pub struct SseReader {
    bytes_max: usize,
    line: Vec<u8>,
    name: String,
    /// Ends with a line feed unless it is empty.
    data: String,
    /// The last byte was a carriage return: a line feed after it belongs to it.
    after_cr: bool,
    /// A byte order mark may stand only at the beginning.
    first_line: bool,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl SseReader {
    /// A reader that holds at most `bytes_max` bytes of an event that has not ended.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            name: String::new(),
            data: String::new(),
            after_cr: false,
            first_line: true,
        }
    }

    /// The events that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, SseTooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ => self.hold(byte)?,
            }
        }
        Ok(events)
    }

    /// The end of the stream. The standard drops an event without its blank line; upstreams that close right after
    /// their last line mean it, so it counts here, and one that was cut is found out by whoever parses its data.
    pub fn finish(mut self) -> Vec<SseEvent> {
        let mut events: Vec<SseEvent> = self.end_line().into_iter().collect();
        events.extend(self.dispatch());
        events
    }

    fn hold(&mut self, byte: u8) -> Result<(), SseTooLong> {
        if self.line.len() + self.data.len() + self.name.len() >= self.bytes_max {
            return Err(SseTooLong { bytes_max: self.bytes_max });
        }
        self.line.push(byte);
        Ok(())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let bytes = std::mem::take(&mut self.line);
        let first = std::mem::replace(&mut self.first_line, false);
        let bytes = if first { bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes) } else { &bytes };
        if bytes.is_empty() {
            return self.dispatch();
        }
        let line = String::from_utf8_lossy(bytes);
        // A comment is a field without a name.
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        let mut data = std::mem::take(&mut self.data);
        data.pop()?;
        Some(SseEvent { event: (!name.is_empty()).then_some(name), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(chunks: &[&[u8]]) -> Vec<SseEvent> {
        let mut reader = SseReader::new(1 << 20);
        let mut events: Vec<SseEvent> =
            chunks.iter().flat_map(|chunk| reader.push(chunk).expect("short enough")).collect();
        events.extend(reader.finish());
        events
    }

    fn event(name: Option<&str>, data: &str) -> SseEvent {
        SseEvent { event: name.map(str::to_owned), data: data.to_owned() }
    }

    #[test]
    fn examples_of_the_standard_read_as_it_says() {
        let cases: [(&str, Vec<SseEvent>); 12] = [
            ("data: YHOO\ndata: +2\ndata: 10\n\n", vec![event(None, "YHOO\n+2\n10")]),
            (
                ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
                vec![event(None, "first event"), event(None, "second event"), event(None, " third event")],
            ),
            ("data\n\ndata\ndata\n\n", vec![event(None, ""), event(None, "\n")]),
            ("data:test\n\ndata: test\n\n", vec![event(None, "test"), event(None, "test")]),
            ("event: add\ndata: 1\n\ndata: 2\n\n", vec![event(Some("add"), "1"), event(None, "2")]),
            ("event: nothing\n\ndata: 2\n\n", vec![event(None, "2")]),
            (
                "\u{feff}data: a\r\n\r\ndata: b\r\rdata: c\n\n",
                vec![event(None, "a"), event(None, "b"), event(None, "c")],
            ),
            ("data: a\u{2028}b\u{85}c\n\n", vec![event(None, "a\u{2028}b\u{85}c")]),
            ("data: {\"a\":\ndata: 1}\n\n", vec![event(None, "{\"a\":\n1}")]),
            ("retry: 3\nother: x\n data: x\ndata : x\n\n", vec![]),
            ("data: last, without a blank line\n", vec![event(None, "last, without a blank line")]),
            ("data: last, without an end", vec![event(None, "last, without an end")]),
        ];
        for (stream, expected) in cases {
            assert_eq!(read(&[stream.as_bytes()]), expected, "{stream:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_counts_only_at_the_beginning() {
        assert_eq!(read(&["\u{feff}\u{feff}data: a\n\n".as_bytes()]), []);
        assert_eq!(read(&["data: a\n\n\u{feff}data: b\n\n".as_bytes()]), [event(None, "a")]);
    }

    #[test]
    fn bytes_that_are_no_utf_8_become_the_replacement_character() {
        assert_eq!(read(&[b"data: \xffa\n\n"]), [event(None, "\u{fffd}a")]);
    }

    #[test]
    fn an_event_over_the_bound_is_an_error_however_it_is_cut() {
        for stream in
            ["data: 0123456789012345".to_owned(), "data: 0\n".repeat(9), "event: 0123456789\ndata: 01".to_owned()]
        {
            let mut reader = SseReader::new(16);
            let ended = stream.bytes().map(|byte| reader.push(&[byte])).find(Result::is_err);
            assert_eq!(ended, Some(Err(SseTooLong { bytes_max: 16 })), "{stream:?}");
            assert!(SseReader::new(16).push(stream.as_bytes()).is_err(), "{stream:?}");
        }
        assert_eq!(SseReader::new(16).push("data: 0123456789\n\n".repeat(99).as_bytes()).map(|e| e.len()), Ok(99));
    }

    proptest! {
        #[test]
        fn every_cut_reads_the_same(
            lines in prop::collection::vec(
                (
                    prop_oneof!["", "data: ?[a-zé😀:\u{2028} ]{0,6}", "event: ?[a-z]{0,4}", ":[a-z]{0,4}", "data", "\u{feff}data:x"],
                    prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
                ),
                0..12,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let stream: Vec<u8> = lines.iter().flat_map(|(line, end)| [line.as_bytes(), end.as_bytes()].concat()).collect();
            let whole = read(&[&stream]);
            let single: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(read(&single), whole.clone());
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&chunks), whole);
        }
    }
}
