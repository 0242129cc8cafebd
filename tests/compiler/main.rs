//! The compiler before anything is sharded: tracing, control flow, gradients, batching, passes.

mod attention;
mod autodiff;
mod control_flow;
mod cudnn;
mod edges;
mod errors;
mod filetests;
mod first_use;
mod flops;
mod forward_mode;
mod functions;
mod internal_errors;
mod kernels;
mod library;
mod max_flow;
mod numbers;
mod parts;
mod passes;
mod properties;
mod random_graphs;
mod remat;
mod rotary;
mod scatter_form;
mod second_order;
mod split_backward;
mod structure;
mod token_order;
mod trace;
mod verify;
mod vmap;

use support::counts::Budget;

support::test_program!(Budget { steps: 10, modules: 34, processes: 6 });
