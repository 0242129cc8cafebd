//! A mesh over several processes: each has the same number of devices, which follow each other in the mesh. So the
//! major axes cross processes, and the minor ones stay within one.

use super::{Mesh, MeshAxis, MeshError};

impl Mesh {
    /// The distance between neighbours along an axis, in the numbers of devices.
    pub fn stride(&self, axis: MeshAxis) -> usize {
        self.axes.iter().skip(axis.index() + 1).map(|(_, size)| size).product()
    }

    /// Whether the devices along an axis lie in different processes. The axes of the mesh must be cut by
    /// [`Mesh::at_processes`]: otherwise a part of an axis may cross processes.
    pub fn crosses(&self, axis: MeshAxis, processes: usize) -> bool {
        self.size(axis) > 1 && self.stride(axis) >= self.device_count() / processes.max(1)
    }

    /// Into what each axis must be cut so that it lies within processes or crosses them, for [`Mesh::cut_into`].
    ///
    /// # Errors
    /// The devices cannot be in this number of processes, or those of a process are not a part of the mesh.
    pub fn at_processes(&self, processes: usize) -> Result<Vec<Vec<usize>>, MeshError> {
        let total = self.device_count();
        let refuse = |axis: Option<MeshAxis>| {
            let axis = axis.map(|axis| (self.name(axis).to_owned(), self.size(axis)));
            MeshError::Processes { mesh: self.to_string(), processes, devices: total, axis }
        };
        if processes == 0 || !total.is_multiple_of(processes) {
            return Err(refuse(None));
        }
        let of_process = total / processes;
        let cut = |axis: MeshAxis| {
            let (stride, size) = (self.stride(axis), self.size(axis));
            if stride >= of_process || stride * size <= of_process {
                return Ok(vec![size]);
            }
            let within = of_process / stride;
            let fits = of_process.is_multiple_of(stride) && size.is_multiple_of(within);
            if fits { Ok(vec![size / within, within]) } else { Err(refuse(Some(axis))) }
        };
        self.axes().map(cut).collect()
    }

    /// The part of the mesh that one process has: axes that cross processes have size 1. The mesh must be cut by
    /// [`Mesh::at_processes`].
    pub fn within_process(&self, processes: usize) -> Mesh {
        let size = |axis: MeshAxis| if self.crosses(axis, processes) { 1 } else { self.size(axis) };
        self.with_axes(self.axes().map(|axis| (self.name(axis).to_owned(), size(axis))).collect())
    }
}
