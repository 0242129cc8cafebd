//! The compiler before anything is sharded: tracing, control flow, gradients, batching, passes.

mod autodiff;
mod attention;
mod control_flow;
mod cudnn;
mod errors;
mod filetests;
mod first_use;
mod forward_mode;
mod functions;
mod kernels;
mod library;
mod numbers;
mod parts;
mod passes;
mod properties;
mod random_graphs;
mod remat;
mod second_order;
mod split_backward;
mod structure;
mod trace;
mod vmap;

use support::counts::Budget;

support::test_program!(Budget { steps: 1000, modules: 10000, processes: 1000 });
