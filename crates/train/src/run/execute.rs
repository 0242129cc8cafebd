//! Running a compiled program of a run.

use std::time::Duration;

use crate::error::{Error, Execution};
use meshloom::compile::Program;
use meshloom::pjrt::{Array, ArraySpec, ExecuteOptions};

/// Runs a program of a run for at most `train.time_limit` seconds, or without limit for 0.
pub(crate) fn execute(
    what: Execution,
    program: &Program,
    arguments: &[&Array],
    time_limit: f64,
) -> Result<Vec<Array>, Error> {
    let time_limit = (time_limit > 0.0).then(|| Duration::try_from_secs_f64(time_limit).unwrap_or(Duration::MAX));
    let options = ExecuteOptions { time_limit, ..ExecuteOptions::default() };
    program.run_with(arguments, &options).map_err(|source| Error::Execution { what, source: Box::new(source) })
}

/// A program's first arguments as it takes them. Where rules allow uneven parts, programs may pad other dimensions than
/// those that the arguments were made with.
pub(crate) fn laid_out_for(program: &Program, arrays: Vec<Array>) -> Result<Vec<Array>, Error> {
    let laid_out = |(array, spec): (Array, &ArraySpec)| match array.layout() == &spec.layout {
        true => Ok(array),
        false => Ok(array.laid_out(&spec.layout, program.executable().devices())?),
    };
    arrays.into_iter().zip(program.inputs()).map(laid_out).collect()
}
