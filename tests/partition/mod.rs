//! Partitioned programs compute what those of one device do.

mod branches;
mod collective_matmul;
mod decoder_cases;
mod experts;
mod foreign;
mod random_programs;
mod head_loss;
mod local_form;
mod local_rewrites;
mod programs;
mod several_operands;
mod stated;
mod snapshots;
mod train_steps;
mod verify;
