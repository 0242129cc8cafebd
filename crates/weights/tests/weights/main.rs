//! Tests of the crate as its users see it.

mod support;

mod boxes;
mod damaged_files;
mod damaged_folders;
mod ledger;
mod quantized;
mod writer;
