//! The weights of `meshloom-models`, which reads, checks and writes published checkpoints.

mod boxes;
mod damaged_files;
mod damaged_folders;
mod decode;
mod files;
mod ledger;
mod natural;
mod quantized;
mod region;
mod support;
mod writer;
