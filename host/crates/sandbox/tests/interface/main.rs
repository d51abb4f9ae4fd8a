//! The interface of recipes as files: what was released stays, and what follows is compatible.

#[cfg(test)]
mod gate;
