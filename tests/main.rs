//! One binary for every test that needs more than one crate: HTTP routes, whole flows, clients, commands.
//! A server with the real model and the real recipe is started once and shared; tests that restart or
//! break a server start their own.

mod clients;
mod commands;
mod flows;
mod golden;
mod http;
mod support;
mod tidy;
