//! Element types by PJRT's numbers.

use super::sys::*;
use meshloom_hlo::DType;

/// Returns PJRT's number of an element type.
pub(super) fn raw_dtype(dtype: DType) -> PJRT_Buffer_Type {
    match dtype {
        DType::Pred => PJRT_Buffer_Type_PRED,
        DType::S4 => PJRT_Buffer_Type_S4,
        DType::U4 => PJRT_Buffer_Type_U4,
        DType::F8E4M3FN => PJRT_Buffer_Type_F8E4M3FN,
        DType::F8E5M2 => PJRT_Buffer_Type_F8E5M2,
        DType::S8 => PJRT_Buffer_Type_S8,
        DType::S16 => PJRT_Buffer_Type_S16,
        DType::S32 => PJRT_Buffer_Type_S32,
        DType::S64 => PJRT_Buffer_Type_S64,
        DType::U8 => PJRT_Buffer_Type_U8,
        DType::U16 => PJRT_Buffer_Type_U16,
        DType::U32 => PJRT_Buffer_Type_U32,
        DType::U64 => PJRT_Buffer_Type_U64,
        DType::BF16 => PJRT_Buffer_Type_BF16,
        DType::F16 => PJRT_Buffer_Type_F16,
        DType::F32 => PJRT_Buffer_Type_F32,
        DType::F64 => PJRT_Buffer_Type_F64,
    }
}

/// Returns our element type for PJRT's; `None` when it has no host form here.
pub(super) fn dtype_from_raw(raw: PJRT_Buffer_Type) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| raw_dtype(dtype) == raw)
}
