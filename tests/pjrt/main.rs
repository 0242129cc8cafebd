//! The plugin boundary: the runtime, and compiling ahead of time.

mod ahead_of_time;
mod foreign_calls;
mod options;
mod runtime;
mod threads;
