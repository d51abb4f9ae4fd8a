//! The leakage scan: does a text repeat what the agent is trained or tested on? Called by admission for the texts of
//! changed entries.
//!
//! Rule. A text is its words: lower case, runs of letters and digits, each CJK character a word of its own. It leaks
//! when it shares with a known text a run of `RUN_WORDS` words; or, when the known text is shorter, all of its words, if
//! they are at least `WORDS_MIN`; or a known answer of at least `ANSWER_CHARS_MIN` characters. Runs that the exempt texts
//! hold (the tree as it was, the format contract) do not count.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

/// Shared words that make a leak.
pub const RUN_WORDS: usize = 8;
/// Words of a known text below which it says nothing.
pub const WORDS_MIN: usize = 3;
/// Characters of a known answer below which it says nothing: "30" is in many texts.
pub const ANSWER_CHARS_MIN: usize = 4;
/// Runs of all known texts together; 16 bytes each.
const RUNS_MAX: usize = 8 << 20;

/// Known texts: those that the agent is trained and tested on.
#[derive(Debug, Default)]
pub struct Corpus {
    /// Names of the texts.
    sources: Vec<String>,
    /// Hash of a run to the text that holds it. 64 bits: among 2^23 known runs and 2^16 new ones, two are equal by chance
    /// once in 2^25 scans.
    runs: HashMap<u64, u32>,
    /// Lengths of the runs, in words.
    lengths: BTreeSet<usize>,
}

/// The known texts are too many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the texts that the scan for leaks knows hold more than {RUNS_MAX} runs of words; give it fewer")]
pub struct CorpusError;

/// What a text repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Name of the known text.
    pub source: String,
    /// The shared words.
    pub words: String,
}

impl Corpus {
    /// Adds a text under a name that errors may show.
    pub fn add_text(&mut self, source: &str, text: &str) -> Result<(), CorpusError> {
        let words = words(text);
        if words.len() >= WORDS_MIN {
            self.add(source, &words, words.len().min(RUN_WORDS))?;
        }
        Ok(())
    }

    /// Adds an answer.
    pub fn add_answer(&mut self, source: &str, answer: &str) -> Result<(), CorpusError> {
        let words = words(answer);
        if words.iter().map(|word| word.chars().count()).sum::<usize>() >= ANSWER_CHARS_MIN {
            self.add(source, &words, words.len().min(RUN_WORDS))?;
        }
        Ok(())
    }

    fn add(&mut self, source: &str, words: &[String], length: usize) -> Result<(), CorpusError> {
        let index = u32::try_from(self.sources.len()).map_err(|_| CorpusError)?;
        if self.runs.len() + words.len() > RUNS_MAX {
            return Err(CorpusError);
        }
        self.sources.push(source.to_owned());
        self.lengths.insert(length);
        for run in words.windows(length) {
            self.runs.entry(hash(run)).or_insert(index);
        }
        Ok(())
    }

    /// The first thing that the text repeats and no exempt text holds.
    pub fn find(&self, text: &str, exempt: &Exempt) -> Option<Leak> {
        let words = words(text);
        for length in self.lengths.iter().rev() {
            for run in words.windows(*length) {
                let hash = hash(run);
                if let Some(index) = self.runs.get(&hash)
                    && !exempt.runs.contains(&hash)
                {
                    let source = usize::try_from(*index).ok().and_then(|index| self.sources.get(index));
                    return Some(Leak { source: source.cloned().unwrap_or_default(), words: run.join(" ") });
                }
            }
        }
        None
    }

    /// Collects what these texts hold of the runs that are known.
    pub fn exempt<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Exempt {
        let mut runs = HashSet::new();
        for text in texts {
            let words = words(text);
            for length in &self.lengths {
                runs.extend(words.windows(*length).map(hash).filter(|hash| self.runs.contains_key(hash)));
            }
        }
        Exempt { runs }
    }
}

/// Known runs that may be repeated.
#[derive(Debug, Default)]
pub struct Exempt {
    runs: HashSet<u64>,
}

fn hash(run: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher);
    hasher.finish()
}

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() && !is_cjk(c) {
            word.extend(c.to_lowercase());
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            words.push(c.to_string());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Scripts that are written without spaces: Kana, Han, Hangul.
fn is_cjk(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TASK: &str = "How many primes are there below one hundred thousand? Reply with the number.";

    fn corpus() -> Corpus {
        let mut corpus = Corpus::default();
        corpus.add_text("task sieve", TASK).expect("room");
        corpus.add_text("task short", "Reverse the word stone").expect("room");
        corpus.add_text("task tiny", "Say hi").expect("room");
        corpus.add_answer("answer of sieve", "9592").expect("room");
        corpus.add_answer("answer of csv", "30").expect("room");
        corpus.add_text("task cjk", "请把这个句子翻译成英文吧").expect("room");
        corpus
    }

    fn found(text: &str) -> Option<String> {
        corpus().find(text, &Exempt::default()).map(|leak| leak.source)
    }

    #[test]
    fn a_shared_run_of_eight_words_is_a_leak_and_seven_are_not() {
        assert_eq!(found("If asked how MANY primes are, there: below one hundred!"), Some("task sieve".to_owned()));
        assert_eq!(found("how many primes are there below one"), None);
        assert_eq!(found("reverse the word stone by swapping"), Some("task short".to_owned()));
        assert_eq!(found("reverse the word"), None);
        assert_eq!(found("say hi, 30 times"), None);
        assert_eq!(found("It is 9592."), Some("answer of sieve".to_owned()));
        assert_eq!(found("It is 95920."), None);
        assert_eq!(found("规则:请把这个句子翻译成法文"), Some("task cjk".to_owned()));
    }

    #[test]
    fn what_the_tree_held_before_is_exempt() {
        let corpus = corpus();
        let exempt = corpus.exempt(["Known: 9592"]);
        assert_eq!(corpus.find("still 9592", &exempt), None);
        assert!(corpus.find(TASK, &exempt).is_some());
    }

    proptest! {
        #[test]
        fn a_copied_run_is_found_wherever_it_stands(before in "[a-z ]{0,40}", after in "[a-z ]{0,40}", start in 0..5_usize) {
            let words: Vec<&str> = TASK.split(' ').collect();
            let run = words.get(start..start + RUN_WORDS).expect("long enough").join("  ");
            let text = format!("{before} {run}, {after}");
            prop_assert!(found(&text).is_some());
        }

        #[test]
        fn any_text_is_answered(text in any::<String>()) {
            prop_assert_eq!(found(&text), found(&text));
        }
    }
}
