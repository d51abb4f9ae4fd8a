//! Archive search against random restarts on circle packing, at an equal number of evaluations of one objective and
//! with one local optimiser. No model is asked: children come from scripted mutations, so that what differs between
//! the arms is only whether and how they reuse what was found.

pub mod arms;
mod lbfgs;
mod local;
mod mutate;
mod objective;
pub mod report;

pub use local::{Optimizer, feasible};
