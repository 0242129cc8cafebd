//! Training: configs, data, the decoder, the trainer, its files, and the program around it.

mod checkpoint;
mod checkpoint_kill;
mod chosen;
mod context_order;
mod data;
mod data_files;
mod data_in_out;
mod decoder;
mod decoder_hlo;
mod evaluation;
mod first_state;
mod host_memory;
mod interpreted;
mod metrics;
mod offered;
mod outputs;
mod overlap;
mod platforms;
mod precision;
mod profile;
mod program;
mod published;
mod robustness;
mod run_config;
mod runs;
mod search;
mod subwords;
mod units;
mod unused_keys;
mod vision_transformer;

use support::counts::Budget;

support::test_program!(Budget { steps: 84, modules: 16, processes: 95 });
