//! The crate `meshloom-weights`: published checkpoints, read, checked and written.

mod boxes;
mod damaged_files;
mod damaged_folders;
mod decode;
mod files;
mod ledger;
mod natural;
mod positioned;
mod quantized;
mod region;
mod support;
mod writer;
