//! The store in a real Postgres: the tests of `../store` that do not look at files, and those of the lease.

#[cfg(test)]
#[path = "../store/conservation.rs"]
mod conservation;
#[cfg(test)]
#[path = "../store/crash.rs"]
mod crash;
#[cfg(test)]
#[path = "../store/derived.rs"]
mod derived;
#[cfg(test)]
#[path = "../store/erase.rs"]
mod erase;
#[cfg(test)]
#[path = "../store/feedback.rs"]
mod feedback;
#[cfg(test)]
#[path = "../store/fixture.rs"]
mod fixture;
#[cfg(test)]
#[path = "../store/groups.rs"]
mod groups;
#[cfg(test)]
#[path = "../store/harness.rs"]
mod harness;
#[cfg(test)]
#[path = "../store/inputs.rs"]
mod inputs;
#[cfg(test)]
mod lease;
#[cfg(test)]
#[path = "../store/persistence.rs"]
mod persistence;
#[cfg(test)]
mod place;
#[cfg(test)]
#[path = "../store/pool.rs"]
mod pool;
#[cfg(test)]
#[path = "../store/recipe_uses.rs"]
mod recipe_uses;
#[cfg(test)]
#[path = "../store/records.rs"]
mod records;
#[cfg(test)]
#[path = "../store/releases.rs"]
mod releases;
#[cfg(test)]
#[path = "../store/reports.rs"]
mod reports;
#[cfg(test)]
mod restart;
#[cfg(test)]
#[path = "../store/retention.rs"]
mod retention;
#[cfg(test)]
#[path = "../store/rollouts.rs"]
mod rollouts;
#[cfg(test)]
mod server;
#[cfg(test)]
#[path = "../store/steps.rs"]
mod steps;
#[cfg(test)]
#[path = "../store/surfaces.rs"]
mod surfaces;
#[cfg(test)]
#[path = "../store/transfer.rs"]
mod transfer;
