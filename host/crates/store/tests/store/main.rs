//! The store against real files: many writers, killed processes, full disks and damaged databases.

#[cfg(test)]
mod conservation;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod derived;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod durability;
#[cfg(test)]
mod erase;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod feedback;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod groups;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod inputs;
#[cfg(test)]
mod persistence;
#[cfg(test)]
mod place;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod recipe_uses;
#[cfg(test)]
mod records;
#[cfg(test)]
mod releases;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod rollouts;
#[cfg(test)]
mod scrub;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod surfaces;
#[cfg(test)]
mod transfer;
#[cfg(test)]
mod upgrade;
