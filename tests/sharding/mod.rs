//! Shardings: where they come from, where they go, what they cost, and who else understands them.

mod annotate;
mod device_order;
mod errors;
mod explain;
mod ledger;
mod names;
mod presets;
mod reshard;
mod rule_files;
mod rules;
mod shardy;
mod traffic;
mod uneven;
