//! Tests of the parts of the program, one by one.

mod bars;
mod bytes;
mod chart;
mod command_line;
mod costs;
mod folder;
mod html;
mod lanes;
mod output;
mod scopes;
mod series;
