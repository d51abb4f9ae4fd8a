//! The store against real files: what is durable, what is counted once, what is refused.

mod conservation;
mod crash;
mod faults;
mod fixture;
mod pool;
mod records;
mod releases;
mod reports;
mod scenarios;
mod speed;
mod steps;
mod writing;
