//! The plugin boundary: the runtime, and compiling ahead of time.

mod ahead_of_time;
mod fetching;
mod foreign_calls;
mod key_values;
mod libraries;
mod messages;
mod options;
mod presets;
mod program_cache;
mod runtime;
mod threads;
mod topologies;
mod tpus;
mod worker_logs;
mod wrapper;
