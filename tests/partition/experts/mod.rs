//! Routed experts, latent attention and the batch-split layer: against formulations in plain tensors, against JAX, and
//! on many devices against one.

mod capacity;
mod config;
mod golden;
mod grouped;
mod halves;
mod masked;
mod meshes;
mod stages;
mod traffic;
