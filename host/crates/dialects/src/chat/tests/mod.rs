//! Tests of the dialect: bodies, examples of answers, and answers at random.

mod answers;
mod bodies;
mod streams;
