//! Routes, one file each.

mod auth;
mod chat;
mod releases;
mod report;
mod scenarios;
mod stream;
