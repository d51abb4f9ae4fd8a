//! One binary for every test that needs more than one crate: HTTP routes, whole flows, clients, commands.
//! A server with the real model and the real recipe is started once and shared; tests that restart or
//! break a server start their own.

#[cfg(test)]
mod clients;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod flows;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod http;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tidy;
