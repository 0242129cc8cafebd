//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::memory::placement::{Lifetime, Reusable, Takeover, heap_size, live_bytes, reuse};
pub use crate::pipelines::device_chain::DeviceChain;
