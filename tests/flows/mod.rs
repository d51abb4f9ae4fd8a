//! What several parts do together: learn, roll back, survive, be traced.

mod crash;
mod faults;
mod learn;
mod replay;
mod swap;
mod trace;
