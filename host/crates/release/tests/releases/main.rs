//! The release repository against real folders, threads, killed processes and the git client.

#[cfg(test)]
mod clients;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod diff;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod folder;
#[cfg(test)]
mod heads;
#[cfg(test)]
mod network;
#[cfg(test)]
mod prune;
#[cfg(test)]
mod remotes;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod server;
#[cfg(test)]
mod signatures;
#[cfg(test)]
mod surfaces;
#[cfg(test)]
mod verify;
#[cfg(test)]
mod volume;
