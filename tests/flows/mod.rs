//! What several parts do together: learn, roll back, survive, be traced.

mod chain;
mod composite;
mod crash;
mod evolve;
mod evolvers;
mod exchange;
mod faults;
mod harness;
mod hooks;
mod kill;
mod learn;
mod own_loss;
mod recipes;
mod replay;
mod rollout;
mod shutdown;
mod swap;
mod trace;
mod workers;
