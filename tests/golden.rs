//! The engine against a reference implementation.
