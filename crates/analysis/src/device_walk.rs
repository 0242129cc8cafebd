//! A walk, and how often each device runs each place of it. Where the number of a device decides which branch it takes,
//! as in a pipeline whose stages branch, only that branch counts.

use std::sync::Arc;

use super::devices::Devices;
use super::executions::DeviceExecutions;
use super::walk::Walk;
use meshloom_hlo::proto::HloModuleProto;

/// All that a module runs, and how often each device runs it.
pub struct DeviceWalk<'a> {
    /// With [`DeviceWalk::of`], a place has the executions of the device that runs it most; with
    /// [`DeviceWalk::undecided`], those of a branch that may or may not be taken.
    walk: Walk<'a>,
    executions: Arc<DeviceExecutions>,
}

impl<'a> DeviceWalk<'a> {
    /// Walks a module on these devices. Where devices differ, the executions of a place are the most of any.
    pub fn of(module: &'a HloModuleProto, devices: Devices) -> DeviceWalk<'a> {
        let mut walk = Walk::of(module);
        let executions = walk.given(&[], devices);
        for (number, place) in walk.places_mut().iter_mut().enumerate() {
            if let Some((undecided, times)) = executions.of_place(number) {
                place.executions = times;
                place.assumed_executions = times.bound().unwrap_or(place.assumed_executions);
                place.undecided = undecided;
            }
        }
        DeviceWalk { walk, executions: Arc::new(executions) }
    }

    /// Leaves every branch of a walk open, whichever one these devices take.
    pub fn undecided(walk: Walk<'a>, devices: Devices) -> DeviceWalk<'a> {
        let executions = Arc::new(walk.whichever(devices));
        DeviceWalk { walk, executions }
    }

    /// The walk.
    pub fn walk(&self) -> &Walk<'a> {
        &self.walk
    }

    /// How often each place runs on each device.
    pub(super) fn executions(&self) -> &Arc<DeviceExecutions> {
        &self.executions
    }
}
