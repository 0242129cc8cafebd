//! The program `hlo-dump` and the output of its commands, mostly within the process of the tests.

mod advise;
mod answers;
mod bisect;
mod command;
mod commands;
mod corpus;
mod json_page;
mod lock;
mod mcp;
mod options;
mod overlap;
mod portable;
mod process;
mod quoted;
mod redact;
mod report;
mod schema;
mod traffic;
mod units;
mod unpartitioned;
mod validate;
