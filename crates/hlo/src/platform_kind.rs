//! The platforms that programs are compiled for.

use serde::{Deserialize, Serialize};

use crate::words;

words! {
    /// A platform: which compiler of XLA's family takes the module, and which kind of devices runs it.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PlatformKind {
        /// Virtual devices on the host's processor, by XLA's compiler for CPUs.
        #[default]
        Cpu = "cpu",
        /// NVIDIA GPUs, by XLA's compiler for them.
        Cuda = "cuda",
        /// Google TPUs, by libtpu.
        Tpu = "tpu",
    }
}
