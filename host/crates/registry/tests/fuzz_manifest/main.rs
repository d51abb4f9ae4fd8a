//! Hostile texts of a registry, seeded and mutated: every one ends in a value or a typed error.

#[cfg(test)]
mod texts;
