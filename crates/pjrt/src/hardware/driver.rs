//! NVIDIA's driver, asked for its version and its GPUs.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use libloading::{Library, Symbol};
use serde::Serialize;

use super::super::plugin::cause;

/// The driver's library, which comes with the driver alone.
const LIBRARY: &str = "libcuda.so.1";

/// A status of the driver's functions; 0 is success.
type Status = c_int;

/// NVIDIA's driver on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CudaDriver {
    /// The kernel module's version, such as `580.82.07`, where `/proc` says it.
    pub version: Option<String>,
    /// The newest CUDA that it runs, major and minor.
    pub cuda_version: (i32, i32),
    /// Its GPUs, by their numbers.
    pub devices: Vec<CudaDevice>,
}

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CudaDevice {
    /// Its name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

impl CudaDriver {
    /// Asks the driver.
    ///
    /// # Errors
    /// The driver is missing, or it fails; the text says which.
    pub fn read() -> Result<CudaDriver, String> {
        let library = load()?;
        let version = call(&library, "cuDriverGetVersion", |function: unsafe extern "C" fn(*mut c_int) -> Status| {
            let mut version = 0;
            // SAFETY: the function writes one number, and needs no initialisation.
            (unsafe { function(&mut version) }, version)
        })?;
        initialize(&library)?;
        let count = count(&library)?;
        Ok(CudaDriver {
            version: kernel_version(),
            cuda_version: (version / 1000, version % 1000 / 10),
            devices: (0..count).map(|number| device(&library, number)).collect::<Result<_, _>>()?,
        })
    }
}

/// Whether there is a driver, and a GPU that it drives.
pub(super) fn check() -> Result<(), String> {
    let library = load()?;
    initialize(&library)?;
    match count(&library)? {
        0 => Err("NVIDIA's driver has no GPU".to_owned()),
        _ => Ok(()),
    }
}

/// Whether there is a driver.
pub(super) fn is_there() -> bool {
    load().is_ok()
}

fn load() -> Result<Library, String> {
    // SAFETY: this runs the initialisers of NVIDIA's library, which every CUDA program does.
    let library = unsafe { Library::new(LIBRARY) };
    library.map_err(|error| format!("this machine has no NVIDIA driver: {}", cause(&error)))
}

fn initialize(library: &Library) -> Result<(), String> {
    call(library, "cuInit", |function: unsafe extern "C" fn(u32) -> Status| {
        // SAFETY: zero is the only flag that exists.
        (unsafe { function(0) }, ())
    })
}

fn count(library: &Library) -> Result<c_int, String> {
    call(library, "cuDeviceGetCount", |function: unsafe extern "C" fn(*mut c_int) -> Status| {
        let mut count = 0;
        // SAFETY: the function writes one number.
        (unsafe { function(&mut count) }, count)
    })
}

fn device(library: &Library, number: c_int) -> Result<CudaDevice, String> {
    let handle = call(library, "cuDeviceGet", |function: unsafe extern "C" fn(*mut c_int, c_int) -> Status| {
        let mut handle = 0;
        // SAFETY: the function writes one number.
        (unsafe { function(&mut handle, number) }, handle)
    })?;
    type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status;
    let name = call(library, "cuDeviceGetName", |function: GetName| {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the function writes at most as many letters as it is told, and ends them with a zero.
        let status = unsafe { function(name.as_mut_ptr(), name.len() as c_int, handle) };
        let bytes: Vec<u8> = name.iter().map(|&letter| letter as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned());
        (status, text.unwrap_or_default())
    })?;
    let memory_bytes =
        call(library, "cuDeviceTotalMem_v2", |function: unsafe extern "C" fn(*mut usize, c_int) -> Status| {
            let mut bytes = 0;
            // SAFETY: the function writes one number.
            (unsafe { function(&mut bytes, handle) }, bytes as u64)
        })?;
    Ok(CudaDevice { name, memory_bytes })
}

/// Calls a function of the driver, whose type the caller knows, by a closure that returns its status and its result.
fn call<F: Copy, R>(library: &Library, name: &str, run: impl FnOnce(F) -> (Status, R)) -> Result<R, String> {
    // SAFETY: the callers give each name the type that NVIDIA's documentation of the driver API does.
    let function: Symbol<'_, F> =
        unsafe { library.get(name) }.map_err(|_| format!("NVIDIA's driver has no function {name}"))?;
    match run(*function) {
        (0, result) => Ok(result),
        (100, _) => Err(format!("NVIDIA's driver has no GPU ({name} says CUDA_ERROR_NO_DEVICE)")),
        (status, _) => Err(format!("NVIDIA's driver fails: {name} returns error {status}")),
    }
}

/// The version of the kernel module: the first word of its line that begins with a digit.
fn kernel_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let mut words = text.lines().next()?.split_whitespace();
    words.find(|word| word.starts_with(|letter: char| letter.is_ascii_digit())).map(str::to_owned)
}
