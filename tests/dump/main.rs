//! The program `hlo-dump`, as its users run it.

mod command;
mod commands;
mod report;
mod traffic;
mod unpartitioned;
