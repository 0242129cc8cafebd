//! Reading a program, and counting what is in it.

use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::read::{self, Limits};

use super::request::{Format, Request};
use super::rewrite::{Decision, Reason, Rewrite};
use super::summary::Summary;

/// Reads programs that run on several devices, counts what is in them, and passes all on.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountOnly;

impl Rewrite for CountOnly {
    fn rewrite(&self, request: &Request<'_>) -> Decision {
        match module_of_several(request) {
            Ok(module) => {
                let summary = Some(Summary::of(&module));
                Decision::PassedOn { reason: Reason::OnlyCounted, line: None, summary }
            }
            Err(decision) => *decision,
        }
    }
}

/// The module of a program that runs on several devices. Any other is passed on.
pub(crate) fn module_of_several(request: &Request<'_>) -> Result<HloModuleProto, Box<Decision>> {
    let Some(devices) = request.device_count() else { return Err(Decision::passed_on(Reason::Options).into()) };
    if let Format::Other(name) = &request.format {
        return Err(Decision::passed_on(Reason::Format(name.clone())).into());
    }
    let read = || read::read(request.code, &Limits::default()).map(|read| read.module);
    if devices == 1 {
        let summary = request.is_watched.then(read).and_then(Result::ok).map(|module| Summary::of(&module));
        return Err(Decision::PassedOn { reason: Reason::OneDevice, line: None, summary }.into());
    }
    read().map_err(|error| Decision::passed_on(Reason::Unreadable(error.to_string())).into())
}
