//! The crate `meshloom-mosaic`: kernels of TPUs, interpreted.

mod attention;
mod base64;
mod grouped;
mod interpret;
mod numbers;
