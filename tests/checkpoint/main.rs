//! Checkpoints: what is saved comes back to the bit, on any mesh and in any form; what is damaged is refused; and the directory is
//! never left without the newest complete one.

// A test says what it found by panicking.
#![allow(clippy::panic)]

#[path = "../eight_devices/mod.rs"]
mod eight_devices;

mod damage;
mod directory;
mod forms;
mod fuzz;
mod runs;
mod state;
