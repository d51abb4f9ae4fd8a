//! Fuzz targets: seeded loops that mutate components, answers and manifests, and check that every input ends in a value
//! that obeys the rules or in a typed error. `REEF_FUZZ_SECONDS` sets how long each runs (3), `REEF_FUZZ_SEED` repeats
//! a run. The first failing input is written to `target/fuzz-failures` and ends the target.

#[cfg(test)]
#[path = "../attacks/binary.rs"]
#[expect(dead_code, reason = "the attacks use the rest")]
mod binary;
#[cfg(test)]
mod cases;
#[cfg(test)]
#[path = "../attacks/guest.rs"]
#[expect(dead_code, reason = "the attacks use the rest")]
mod guest;
#[cfg(test)]
mod lifting;
#[cfg(test)]
mod loader;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod mutation;
#[cfg(test)]
#[path = "../attacks/newer.rs"]
#[expect(dead_code, reason = "the attacks use the rest")]
mod newer;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod rules;
#[cfg(test)]
#[path = "../attacks/runner.rs"]
#[expect(dead_code, reason = "the attacks use the rest")]
mod runner;
#[cfg(test)]
#[path = "../attacks/wit_value.rs"]
mod wit_value;
