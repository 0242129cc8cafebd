//! The numbered examples: `cargo run --release --example 01_trace_and_run`. Each is a program of its own; this library
//! is empty.
