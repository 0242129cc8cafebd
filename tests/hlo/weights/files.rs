//! Buffers for tensors.

use meshloom_models::internals::buffer;

#[test]
fn more_than_memory_holds() {
    assert_eq!(
        buffer::<f32>("x", usize::MAX / 8).unwrap_err().to_string(),
        format!("there is no memory for {} bytes of tensor \"x\"; read it in smaller boxes", usize::MAX / 8 * 4)
    );
}
