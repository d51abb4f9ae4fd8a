//! Hostile and broken guests against the sandbox. The header of each case says the call, the expected end and the
//! time within which it must come; every case also shows that the next call of a good guest is not affected.

#[cfg(test)]
mod accounting;
#[cfg(test)]
mod binary;
#[cfg(test)]
mod bombs;
#[cfg(test)]
mod capabilities;
#[cfg(test)]
mod compile;
#[cfg(test)]
mod decoders;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod guest;
#[cfg(test)]
mod handles;
#[cfg(test)]
mod heard;
#[cfg(test)]
mod injection;
#[cfg(test)]
mod loading;
#[cfg(test)]
mod newer;
#[cfg(test)]
mod newer_calls;
#[cfg(test)]
mod newer_hooks;
#[cfg(test)]
mod newer_loading;
#[cfg(test)]
mod outputs;
#[cfg(test)]
mod pointers;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod reentry;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod runner;
#[cfg(test)]
mod system;
#[cfg(test)]
mod tenants;
#[cfg(test)]
mod wit_value;
