//! Collectives between processes over MPI, loaded at run time: any library with the standard ABI of MPI 5.0, such as
//! MPICH's `libmpi_abi.so`. No header and no compiler of MPI is needed.
//!
//! MPI moves bytes here and computes nothing: [`Communicator::reduce_scatter`] exchanges parts and combines them in the
//! order of the ranks. So sums are of any type, the same in every run, and the same on every process. What each process
//! sends is what MPI's own reductions send, `(n - 1) / n` of the operand, or twice that for an all-reduce.
//!
//! Calls may come from any thread, but the processes of a communicator must make the same calls in the same order on
//! it: a thread that is not in order with others has a communicator of its own ([`Communicator::duplicate`]).
#![allow(unsafe_code)]

mod abi;

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::{BYTE, COMM_WORLD, ERRORS_RETURN, Functions, Handle, LONGEST_ERROR, PROC_NULL, THREAD_MULTIPLE, handle};

/// Why MPI did not do what it was asked.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// The library cannot be loaded, or is without the standard ABI.
    #[error(
        "{} cannot be used as MPI: {reason}; expected a library with the standard ABI of MPI 5.0, such as libmpi_abi.so of MPICH",
        path.display()
    )]
    Library {
        /// The library.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It does not allow calls from several threads.
    #[error(
        "this MPI allows no calls from several threads at once (MPI_THREAD_MULTIPLE), which collectives of several devices need"
    )]
    Threads,
    /// A call has failed.
    #[error("{call} of MPI has failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// What MPI says.
        reason: String,
    },
    /// A buffer is not as long as it must be.
    #[error("{call} of MPI: {what} has {found} bytes, expected {expected}")]
    Length {
        /// The function.
        call: &'static str,
        /// Which buffer.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// The bytes that it must have.
        expected: usize,
    },
}

meshloom_hlo::debug_is_message!(MpiError);

/// Whether a file, or a name that the loader knows, is a library with the standard ABI. It is loaded for that, and
/// stays loaded: MPI's libraries are not made to be unloaded.
///
/// # Errors
/// It cannot be loaded, or is without a function of the ABI.
pub fn check(library: &Path) -> Result<(), MpiError> {
    Functions::load(library).map(std::mem::forget)
}

/// An initialized MPI. It is finalized when the last communicator of it is gone.
struct Mpi(Functions);

impl Mpi {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0u8; LONGEST_ERROR];
        let mut length = 0;
        // SAFETY: the text has room for the longest.
        let said = unsafe { (self.0.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
        let reason = match (said, usize::try_from(length)) {
            (0, Ok(length)) => String::from_utf8_lossy(&text[..length.min(LONGEST_ERROR)]).into_owned(),
            _ => format!("error {code}"),
        };
        Err(MpiError::Call { call, reason })
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // SAFETY: it was initialized, and no communicator is left. What it says to that helps nobody any more.
        let _ = unsafe { (self.0.finalize)() };
    }
}

/// Processes that communicate.
pub struct Communicator {
    raw: Handle,
    rank: usize,
    size: usize,
    /// Whether it is ours to free.
    owned: bool,
    mpi: Arc<Mpi>,
}

// SAFETY: the library was initialized for calls from any thread.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// All processes, of a library of MPI that is initialized with this. Once in a process.
    ///
    /// # Errors
    /// The library cannot be loaded, or initialized, or is for one thread alone.
    pub fn world(library: &Path) -> Result<Communicator, MpiError> {
        let functions = Functions::load(library)?;
        let mut provided = 0;
        // SAFETY: MPI takes null for the arguments of the process.
        let code = unsafe {
            (functions.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_MULTIPLE, &raw mut provided)
        };
        let mpi = Arc::new(Mpi(functions));
        mpi.check("MPI_Init_thread", code)?;
        if provided < THREAD_MULTIPLE {
            return Err(MpiError::Threads);
        }
        Communicator::of(mpi, handle(COMM_WORLD), false)
    }

    fn of(mpi: Arc<Mpi>, raw: Handle, owned: bool) -> Result<Communicator, MpiError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the handle is a communicator of this library.
        let codes = unsafe {
            [
                ("MPI_Comm_set_errhandler", (mpi.0.comm_set_errhandler)(raw, handle(ERRORS_RETURN))),
                ("MPI_Comm_rank", (mpi.0.comm_rank)(raw, &raw mut rank)),
                ("MPI_Comm_size", (mpi.0.comm_size)(raw, &raw mut size)),
            ]
        };
        codes.into_iter().try_for_each(|(call, code)| mpi.check(call, code))?;
        let number = |number: c_int| usize::try_from(number).unwrap_or(0);
        Ok(Communicator { raw, rank: number(rank), size: number(size), owned, mpi })
    }

    /// The number of this process in it.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes it has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same processes, whose messages do not meet those of others. All of them call it.
    ///
    /// # Errors
    /// MPI says so.
    pub fn duplicate(&self) -> Result<Communicator, MpiError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is a communicator.
        self.mpi.check("MPI_Comm_dup", unsafe { (self.mpi.0.comm_dup)(self.raw, &raw mut raw) })?;
        Communicator::of(self.mpi.clone(), raw, true)
    }

    /// The processes that give the same colour, in the order of their keys. All processes call it.
    ///
    /// # Errors
    /// MPI says so.
    pub fn split(&self, color: u16, key: u16) -> Result<Communicator, MpiError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is a communicator.
        let code = unsafe { (self.mpi.0.comm_split)(self.raw, color.into(), key.into(), &raw mut raw) };
        self.mpi.check("MPI_Comm_split", code)?;
        Communicator::of(self.mpi.clone(), raw, true)
    }

    /// Returns when all processes have called it.
    ///
    /// # Errors
    /// MPI says so.
    pub fn barrier(&self) -> Result<(), MpiError> {
        // SAFETY: the handle is a communicator.
        self.mpi.check("MPI_Barrier", unsafe { (self.mpi.0.barrier)(self.raw) })
    }

    /// The inputs of all processes, in the order of the ranks.
    ///
    /// # Errors
    /// The output has not `size` times the bytes of the input; MPI says so.
    pub fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Allgather";
        length(CALL, "the output", output.len(), input.len() * self.size)?;
        let (count, bytes) = (input.len().cast_signed() as i64, handle(BYTE));
        // SAFETY: the buffers have these lengths.
        let code = unsafe {
            (self.mpi.0.all_gather)(
                input.as_ptr().cast(),
                count,
                bytes,
                output.as_mut_ptr().cast(),
                count,
                bytes,
                self.raw,
            )
        };
        self.mpi.check(CALL, code)
    }

    /// Part `r` of the input goes to rank `r`; part `r` of the output comes from there.
    ///
    /// # Errors
    /// The lengths differ, or are no multiples of `size`; MPI says so.
    pub fn all_to_all(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Alltoall";
        length(CALL, "the output", output.len(), input.len())?;
        length(CALL, "the input", input.len(), input.len().next_multiple_of(self.size))?;
        let (count, bytes) = ((input.len() / self.size).cast_signed() as i64, handle(BYTE));
        // SAFETY: the buffers have `size` parts of these lengths.
        let code = unsafe {
            (self.mpi.0.all_to_all)(
                input.as_ptr().cast(),
                count,
                bytes,
                output.as_mut_ptr().cast(),
                count,
                bytes,
                self.raw,
            )
        };
        self.mpi.check(CALL, code)
    }

    /// Sends the input to a process and receives the output from one. Where nobody sends, the output becomes zeros, as
    /// HLO's permute has it.
    ///
    /// # Errors
    /// The lengths differ; MPI says so.
    pub fn permute(
        &self,
        input: &[u8],
        output: &mut [u8],
        to: Option<usize>,
        from: Option<usize>,
    ) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Sendrecv";
        length(CALL, "the output", output.len(), input.len())?;
        let rank = |rank: Option<usize>| rank.and_then(|rank| c_int::try_from(rank).ok()).unwrap_or(PROC_NULL);
        let (count, bytes) = (input.len().cast_signed() as i64, handle(BYTE));
        // SAFETY: the buffers have these lengths, and MPI takes null for a status that nobody reads.
        let code = unsafe {
            (self.mpi.0.send_receive)(
                input.as_ptr().cast(),
                count,
                bytes,
                rank(to),
                0,
                output.as_mut_ptr().cast(),
                count,
                bytes,
                rank(from),
                0,
                self.raw,
                std::ptr::null_mut(),
            )
        };
        self.mpi.check(CALL, code)?;
        if from.is_none() {
            output.fill(0);
        }
        Ok(())
    }

    /// Part `rank` of the inputs of all processes, combined in the order of the ranks: `combine(sum, next)` adds to the
    /// first. `scratch` is kept between calls.
    ///
    /// # Errors
    /// The input has not `size` times the bytes of the output; MPI says so.
    pub fn reduce_scatter(
        &self,
        input: &[u8],
        output: &mut [u8],
        scratch: &mut Vec<u8>,
        combine: impl Fn(&mut [u8], &[u8]),
    ) -> Result<(), MpiError> {
        length("reduce-scatter", "the input", input.len(), output.len() * self.size)?;
        scratch.resize(input.len(), 0);
        self.all_to_all(input, scratch)?;
        if output.is_empty() {
            return Ok(());
        }
        let mut parts = scratch.chunks_exact(output.len());
        if let Some(first) = parts.next() {
            output.copy_from_slice(first);
        }
        parts.for_each(|part| combine(output, part));
        Ok(())
    }

    /// The inputs of all processes, combined in the order of the ranks. `element` is the bytes of one: a part begins
    /// with a whole one.
    ///
    /// # Errors
    /// The lengths differ; MPI says so.
    pub fn all_reduce(
        &self,
        input: &[u8],
        output: &mut [u8],
        element: usize,
        scratch: &mut [Vec<u8>; 2],
        combine: impl Fn(&mut [u8], &[u8]),
    ) -> Result<(), MpiError> {
        length("all-reduce", "the output", output.len(), input.len())?;
        let part = input.len().div_ceil(self.size).next_multiple_of(element.max(1));
        let [padded, exchanged] = scratch;
        padded.clear();
        padded.extend_from_slice(input);
        padded.resize(part * self.size, 0);
        let mut own = vec![0; part];
        self.reduce_scatter(padded, &mut own, exchanged, combine)?;
        self.all_gather(&own, padded)?;
        output.copy_from_slice(&padded[..input.len()]);
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: it is ours, and nobody uses it any more. What MPI says to that helps nobody.
            let _ = unsafe { (self.mpi.0.comm_free)(&raw mut self.raw) };
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} of {})", self.rank, self.size)
    }
}

fn length(call: &'static str, what: &'static str, found: usize, expected: usize) -> Result<(), MpiError> {
    if found == expected { Ok(()) } else { Err(MpiError::Length { call, what, found, expected }) }
}
