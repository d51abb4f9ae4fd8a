//! Background work: one learner per scenario, one trainer thread for all of them.

pub mod held_out;
pub mod learn_scenario;
pub mod run_step;
pub mod trainer_thread;
