//! Transforms: pipelines, weights prefetched for them, and training with replicas that seldom meet.

mod diloco;
mod diloco_interpreted;
mod diloco_reference;
mod diloco_schedule;
mod diloco_small;
mod diloco_stack;
mod diloco_traffic;
mod optimizers;
mod pairs;
mod pipeline;
mod pipeline_decoder;
mod pipeline_errors;
mod pipeline_executed;
mod pipeline_options;
mod pipeline_packed;
mod pipeline_phases;
mod pipeline_prediction;
mod pipeline_replay;
mod pipeline_tables;
mod pipeline_traffic;
mod pipelines;
mod psdp;
mod tied_table;
mod timeline;
mod train_steps;
