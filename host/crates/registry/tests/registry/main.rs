//! The registry crate against a registry that lies, against a real one, and its shelf on a real disk.

#[cfg(test)]
mod evil;
#[cfg(test)]
mod lies;
#[cfg(test)]
mod places;
#[cfg(test)]
mod real;
#[cfg(test)]
mod server;
#[cfg(test)]
mod shelf;
#[cfg(test)]
mod signatures;
#[cfg(test)]
mod site;
