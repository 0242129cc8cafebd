//! The compiler before anything is sharded: tracing, control flow, gradients, batching, passes.

mod autodiff;
mod control_flow;
mod forward_mode;
mod functions;
mod library;
mod passes;
mod passes_loops;
mod passes_rules;
mod random_graphs;
mod remat;
mod second_order;
mod structure;
mod trace;
mod vmap;
