//! The program `hlo-dump`, as its users run it.

mod answers;
mod bisect;
mod command;
mod commands;
mod options;
mod quoted;
mod report;
mod traffic;
mod unpartitioned;
