//! Checkpoints: what is saved comes back to the bit, on any mesh and in any form; what is damaged is refused; and the
//! directory is never left without the newest complete one.

mod damage;
mod directory;
mod forms;
mod fuzz;
mod runs;
mod state;
mod strangers;
