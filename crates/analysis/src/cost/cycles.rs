//! The cycles that a compiler estimates for its kernels.

use serde::Deserialize;

use meshloom_hlo::proto::HloInstructionProto;

/// The part of libtpu's configuration of a kernel that says how long the kernel takes. Numbers are texts, as in the
/// JSON form of protobuf.
#[derive(Deserialize)]
struct Config<'a> {
    #[serde(borrow)]
    window_config: Option<Window<'a>>,
}

#[derive(Deserialize)]
struct Window<'a> {
    estimated_cycles: Option<&'a str>,
}

/// Returns the cycles that the compiler estimates for one execution, if it gives an estimate.
pub(super) fn estimated(instruction: &HloInstructionProto) -> Option<u64> {
    const KEY: &[u8] = b"estimated_cycles";
    let text = &instruction.backend_config;
    // Most configurations have none, and are not worth parsing.
    if !text.windows(KEY.len()).any(|part| part == KEY) {
        return None;
    }
    let config: Config<'_> = serde_json::from_slice(text).ok()?;
    let cycles: i64 = config.window_config?.estimated_cycles?.parse().ok()?;
    // The largest number stands for an unknown one.
    u64::try_from(cycles).ok().filter(|&cycles| cycles < i64::MAX as u64)
}
