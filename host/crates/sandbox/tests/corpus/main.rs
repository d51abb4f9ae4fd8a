//! The corpus: components that were compiled once must load and answer for ever as they did then.
//! Reads every file of `tests/corpus` at the root of the repository; the format is in its README.
//! Expectations are only ever added, by `REEF_CORPUS_WRITE=1`, and never changed.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod script;
