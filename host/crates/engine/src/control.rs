//! The model's control tokens, found in text.
//! Chat templates use it twice: `guard` breaks spellings inside of a message, `split` cuts rendered text at those
//! that the template wrote. Both are linear in the text, whatever it holds.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, BuildError, MatchKind};

/// Control tokens and two searches for their spellings.
#[derive(Debug)]
pub(crate) struct Control {
    spellings: Vec<String>,
    /// Ids, in the order of `spellings`.
    ids: Vec<u32>,
    /// Every occurrence, overlapping ones too.
    every: AhoCorasick,
    /// The leftmost occurrence, of those the longest.
    longest: AhoCorasick,
}

/// A part of rendered text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Control(u32),
    Text(&'a str),
}

impl Control {
    /// From ids by spelling; empty spellings are never found.
    pub fn new(tokens: &BTreeMap<String, u32>) -> Result<Self, BuildError> {
        let (spellings, ids): (Vec<String>, Vec<u32>) =
            tokens.iter().filter(|(token, _)| !token.is_empty()).map(|(token, id)| (token.clone(), *id)).unzip();
        let every = AhoCorasick::new(&spellings)?;
        let longest = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&spellings)?;
        Ok(Self { spellings, ids, every, longest })
    }

    /// Breaks every spelling of a control token in `content`, also one that starts or ends outside of it.
    pub fn guard(&self, content: &str, marker: char) -> String {
        let first = |token: &str| token.chars().next().map_or(0, char::len_utf8);
        let spelling = |index: usize| self.spellings.get(index).map_or("", String::as_str);
        let found = self.every.find_overlapping_iter(content);
        let mut breaks: Vec<usize> = found.map(|m| m.start() + first(spelling(m.pattern().as_usize()))).collect();
        // Templates trim messages: what is joined to the text around may be what stands inside the white space.
        let (from_start, to_end) = (content.trim_start(), content.trim_end());
        for token in &self.spellings {
            for (cut, _) in token.char_indices().skip(1) {
                let (head, tail) = token.split_at(cut);
                if to_end.ends_with(head) {
                    breaks.push(to_end.len() - head.len() + first(token));
                }
                if from_start.starts_with(tail) {
                    let last = tail.chars().next_back().map_or(0, char::len_utf8);
                    breaks.push(content.len() - from_start.len() + tail.len() - last);
                }
            }
        }
        breaks.sort_unstable();
        breaks.dedup();
        insert(content, &breaks, marker)
    }

    /// Cuts rendered text at control tokens; the longest spelling wins at each place.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut from = 0;
        let push_text = |pieces: &mut Vec<Piece<'a>>, from: usize, to: usize| {
            pieces.extend(text.get(from..to).filter(|part| !part.is_empty()).map(Piece::Text));
        };
        for found in self.longest.find_iter(text) {
            push_text(&mut pieces, from, found.start());
            pieces.extend(self.ids.get(found.pattern().as_usize()).copied().map(Piece::Control));
            from = found.end();
        }
        push_text(&mut pieces, from, text.len());
        pieces
    }
}

/// `content` with `marker` at each of the sorted places.
fn insert(content: &str, places: &[usize], marker: char) -> String {
    let mut marked = String::with_capacity(content.len() + places.len() * marker.len_utf8());
    let mut from = 0;
    for at in places {
        marked.push_str(content.get(from..*at).unwrap_or_default());
        marked.push(marker);
        from = *at;
    }
    marked.push_str(content.get(from..).unwrap_or_default());
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> Control {
        let tokens = [("<|end|>", 2), ("<|end|>x", 3), ("", 4)].map(|(token, id)| (token.to_owned(), id));
        Control::new(&BTreeMap::from(tokens)).expect("built")
    }

    #[test]
    fn guarded_text_holds_no_control_token_and_loses_nothing() {
        for content in ["a <|end|> b", "<|end|><|end|>x", "plain", "ends with <|en ", " end|> starts", ""] {
            let guarded = control().guard(content, '\u{e000}');
            for (before, after) in [("", ""), ("<|", ""), ("", "d|>"), ("<", ">")] {
                let text = format!("{before}{guarded}{after}");
                assert!(control().split(&text).iter().all(|piece| matches!(piece, Piece::Text(_))), "{text:?}");
            }
            assert_eq!(guarded.replace('\u{e000}', ""), content);
        }
    }

    #[test]
    fn the_longest_spelling_wins() {
        assert_eq!(
            control().split("a<|end|>xb<|end|>"),
            [Piece::Text("a"), Piece::Control(3), Piece::Text("b"), Piece::Control(2)]
        );
    }

    #[test]
    fn many_control_tokens_take_one_pass() {
        let text = format!("{}<|end|>", "<".repeat(1000)).repeat(10_000);
        // One pass over 10 MB; a search of the whole rest for each token would make 10,000 and not come to an end.
        assert_eq!(control().split(&text).len(), 20_000);
    }
}
