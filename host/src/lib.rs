//! Reef: a server that makes agents learn from their own use.
//! This crate is the binary that knows every other crate: configuration, HTTP, background jobs, commands.

pub mod auth;
pub mod bench;
pub mod cli;
pub mod client;
pub mod clock;
pub mod component_file;
pub mod config;
pub mod demo;
pub mod episodes;
pub mod error;
pub mod harness_source;
pub mod host;
pub mod html;
pub mod http;
pub mod jobs;
pub mod lab;
pub mod leave;
pub mod provider;
pub mod receipts;
pub mod recipe_files;
pub mod recipes;
pub mod release_keys;
pub mod scenarios;
pub mod store_place;
pub mod telemetry;
pub mod tls;
pub mod verifiers;
pub mod weights;
