//! The cycles that a compiler estimates for its kernels.

use meshloom_hlo::proto::HloInstructionProto;

/// Returns the cycles that the compiler estimates for one execution, if it gives an estimate.
pub(super) fn estimated(instruction: &HloInstructionProto) -> Option<u64> {
    const KEY: &[u8] = b"estimated_cycles";
    let text = &instruction.backend_config;
    // Most configurations have none, and are not worth parsing.
    if !text.windows(KEY.len()).any(|part| part == KEY) {
        return None;
    }
    let config: serde_json::Value = serde_json::from_slice(text).ok()?;
    // Numbers are texts, as in the JSON form of protobuf.
    let cycles: i64 = config["window_config"]["estimated_cycles"].as_str()?.parse().ok()?;
    // The largest number stands for an unknown one.
    u64::try_from(cycles).ok().filter(|&cycles| cycles < i64::MAX as u64)
}
