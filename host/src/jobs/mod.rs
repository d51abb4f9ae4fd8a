//! Background work: one learner per scenario, one trainer thread for all of them; and steps done again.

pub mod backtest;
pub mod bound_models;
pub mod decide_canaries;
pub mod environment;
pub mod exchange_recipe;
pub mod gate_candidate;
pub mod guest_reads;
pub mod held_out;
pub mod ingest_live;
pub mod keep_within;
pub mod learn_scenario;
pub mod named_policies;
pub mod propose_harness;
pub mod recheck_head;
pub mod replay_step;
pub mod rerun;
pub mod run_step;
pub mod stream_pool;
pub mod trainer_thread;
pub mod training_terms;
pub mod transcript;
