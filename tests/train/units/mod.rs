//! The parts of the library, one by one.

mod arrange;
mod bisect_flags;
mod bisect_inputs;
mod bisect_program;
mod bisect_symptoms;
mod continued_text;
mod search_orders;
mod search_products;
mod tensorboard;
mod watch;
