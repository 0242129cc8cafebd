//! The places of devices in a mesh.
//!
//! The minor axes of a mesh are the fast ones: they are to run along the shortest links. So every axis is cut out of
//! the hardware: its DCN part ([`Mesh::with_dcn`]) out of the slices, the rest out of the box of coordinates that the
//! devices of a slice fill. Axes choose from minor to major. An axis takes whole dimensions of the box where their
//! product is its size, as many as possible, since each brings links of its own; else it cuts dimensions, and takes
//! neighbours.
//!
//! The idea of taking whole dimensions, and more of them first, is that of JAX's `mesh_utils.create_device_mesh`.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{Mesh, MeshError};

/// Where a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlace {
    /// The plugin's id for it.
    pub id: i32,
    /// The slice it belongs to: devices of one slice share the fast network.
    pub slice: i64,
    /// Where it is within its slice, the dimension with the fastest links first: core on its chip, x, y, z for a TPU;
    /// place in its host, host for a GPU. Empty where a plugin does not say, as for a CPU.
    pub coords: SmallVec<[i64; 4]>,
}

/// The ids of the devices in the order of the mesh, row-major. Without coordinates, and where coordinates do not fill a
/// box, the devices of a slice keep their order. A mesh without a DCN part over several slices has its most major axes
/// cross them.
///
/// # Errors
/// There are fewer devices than the mesh has, the slices are not of one size, or the number of DCN parts is not that of
/// the slices.
pub fn device_order(mesh: &Mesh, devices: &[DevicePlace]) -> Result<Vec<i32>, MeshError> {
    let count = mesh.device_count();
    let Some(devices) = devices.get(..count) else {
        return Err(MeshError::TooFewDevices { mesh: mesh.to_string(), needed: count, devices: devices.len() });
    };
    if devices.iter().all(|device| device.coords.is_empty()) && slices(devices).len() == 1 {
        return Ok(devices.iter().map(|device| device.id).collect());
    }
    let slices = equal_slices(devices)?;
    let dcn = dcn_sizes(mesh, slices.len())?;
    let sizes: Vec<usize> = mesh.axes().map(|axis| mesh.size(axis)).collect();
    let ici: Vec<usize> = sizes.iter().zip(&dcn).map(|(size, dcn)| size / dcn).collect();
    let slices: Vec<Vec<i32>> = slices.values().map(|slice| slice_order(&ici, slice)).collect();
    Ok((0..count)
        .map(|position| {
            let index = digits(position, &sizes);
            let slice = number(index.iter().zip(&ici).map(|(index, ici)| index / ici), &dcn);
            let within = number(index.iter().zip(&ici).map(|(index, ici)| index % ici), &ici);
            slices[slice][within]
        })
        .collect())
}

/// The box of coordinates that the devices of each slice fill: its sizes, but for those of 1, in the order of
/// [`DevicePlace::coords`]. Empty where they fill none, or slices differ.
pub fn slice_shape(devices: &[DevicePlace]) -> Vec<usize> {
    let mut shapes = slices(devices).into_values().map(|slice| device_box(&slice).map(|(shape, _)| shape));
    let shape = shapes.next().flatten().unwrap_or_default();
    let is_that_of_all = shapes.all(|other| other.as_ref() == Some(&shape));
    if is_that_of_all { shape.into_iter().filter(|&size| size > 1).collect() } else { Vec::new() }
}

/// The parts of each axis that lie along one dimension of a slice each, major to minor. Devices stand in the order of
/// [`device_order`], in slices of this [shape](slice_shape). An axis that crosses slices has no parts. The result is
/// `None` if the mesh is not made of such slices.
pub fn axes_along_slice(mesh: &Mesh, shape: &[usize]) -> Option<Vec<Vec<usize>>> {
    let devices = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size)).filter(|&count| count > 0)?;
    let dcn = dcn_sizes(mesh, mesh.device_count() / devices).ok()?;
    let ici: Vec<usize> = mesh.axes().zip(&dcn).map(|(axis, dcn)| mesh.size(axis) / dcn).collect();
    let parts = |pieces: &Vec<Piece>| pieces.iter().rev().map(|piece| piece.size).filter(|&size| size > 1).collect();
    let along = |(pieces, &dcn): (&Vec<Piece>, &usize)| if dcn > 1 { Vec::new() } else { parts(pieces) };
    Some(cut(&ici, shape)?.iter().zip(&dcn).map(along).collect())
}

fn slices(devices: &[DevicePlace]) -> BTreeMap<i64, Vec<&DevicePlace>> {
    let mut slices: BTreeMap<i64, Vec<&DevicePlace>> = BTreeMap::new();
    devices.iter().for_each(|device| slices.entry(device.slice).or_default().push(device));
    slices
}

fn equal_slices(devices: &[DevicePlace]) -> Result<BTreeMap<i64, Vec<&DevicePlace>>, MeshError> {
    let slices = slices(devices);
    let mut sizes = slices.iter().map(|(&slice, devices)| (slice, devices.len()));
    let first = sizes.next().unwrap_or_default();
    match sizes.find(|(_, size)| *size != first.1) {
        Some(other) => Err(MeshError::UnequalSlices { first, other }),
        None => Ok(slices),
    }
}

/// Finds the number of parts into which the borders of slices cut each axis.
///
/// # Errors
/// The mesh states other parts, or its axes cannot be cut into this number of parts.
pub fn dcn_sizes(mesh: &Mesh, slices: usize) -> Result<Vec<usize>, MeshError> {
    let stated: Vec<usize> = mesh.axes().map(|axis| mesh.dcn_size(axis)).collect();
    let crossed: usize = stated.iter().product();
    if crossed == slices {
        return Ok(stated);
    }
    let refuse = || MeshError::DcnSlices { mesh: mesh.to_string(), dcn: mesh.dcn_text(), crossed, slices };
    if crossed > 1 {
        return Err(refuse());
    }
    let mut left = slices;
    let dealt = mesh.axes().map(|axis| {
        let part = common_divisor(mesh.size(axis), left);
        left /= part;
        part
    });
    let dealt = dealt.collect();
    if left == 1 { Ok(dealt) } else { Err(refuse()) }
}

/// Returns the greatest common divisor of two numbers; the other one of 0 and a number.
pub fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The ids of a slice's devices in the order of the mesh's part within it.
fn slice_order(axes: &[usize], devices: &[&DevicePlace]) -> Vec<i32> {
    let found = device_box(devices).and_then(|(shape, ids)| Some((cut(axes, &shape)?, shape, ids)));
    let Some((cuts, shape, ids)) = found else {
        return devices.iter().map(|device| device.id).collect();
    };
    let position = |position: usize| {
        let mut coords = vec![0; shape.len()];
        for (mut index, pieces) in digits(position, axes).into_iter().zip(&cuts) {
            for (coord, piece) in coords.iter_mut().zip(pieces) {
                *coord += index % piece.size * piece.stride;
                index /= piece.size;
            }
        }
        number(coords.into_iter().rev(), &shape.iter().rev().copied().collect::<Vec<_>>())
    };
    (0..devices.len()).map(|index| ids[position(index)]).collect()
}

/// The box of coordinates: its sizes, and the ids by coordinates; the first coordinate varies fastest.
fn device_box(devices: &[&DevicePlace]) -> Option<(Vec<usize>, Vec<i32>)> {
    let rank = devices.first()?.coords.len();
    if rank == 0 || devices.iter().any(|device| device.coords.len() != rank) {
        return None;
    }
    // Coordinates may begin anywhere: what counts is their order.
    let known: Vec<Vec<i64>> = (0..rank)
        .map(|dim| {
            let mut all: Vec<i64> = devices.iter().map(|device| device.coords[dim]).collect();
            all.sort_unstable();
            all.dedup();
            all
        })
        .collect();
    let shape: Vec<usize> = known.iter().map(Vec::len).collect();
    if shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size)) != Some(devices.len()) {
        return None;
    }
    let mut ids = vec![None; devices.len()];
    for device in devices {
        let mut at = 0;
        for (coord, known) in device.coords.iter().zip(&known).rev() {
            at = at * known.len() + known.binary_search(coord).ok()?;
        }
        ids[at] = Some(device.id);
    }
    Some((shape, ids.into_iter().collect::<Option<_>>()?))
}

/// The part that an axis has of one dimension of a box of devices.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The number of steps that the axis makes along the dimension.
    pub size: usize,
    /// The distance between neighbours along the axis.
    pub stride: usize,
}

/// Finds for each axis what it has of each dimension of a box. Returns `None` unless the product of the axes is that of
/// the box.
pub fn cut(axes: &[usize], shape: &[usize]) -> Option<Vec<Vec<Piece>>> {
    let (mut left, mut strides) = (shape.to_vec(), vec![1; shape.len()]);
    let mut cuts = Vec::with_capacity(axes.len());
    for &axis in axes.iter().rev() {
        let sizes = choose(axis, &left)?;
        cuts.push(sizes.iter().zip(&strides).map(|(&size, &stride)| Piece { size, stride }).collect());
        for ((size, left), stride) in sizes.into_iter().zip(&mut left).zip(&mut strides) {
            *left /= size;
            *stride *= size;
        }
    }
    cuts.reverse();
    Some(cuts)
}

/// The best way to make an axis out of the rest of the dimensions: fewest dimensions cut, then most dimensions taken
/// whole, then those with faster links.
fn choose(axis: usize, left: &[usize]) -> Option<Vec<usize>> {
    let score = |sizes: &Vec<usize>| {
        let taken = || sizes.iter().zip(left).filter(|(size, _)| **size > 1);
        let whole = taken().filter(|(size, left)| size == left).count();
        (std::cmp::Reverse(taken().count() - whole), whole, sizes.clone())
    };
    ways(axis, left).into_iter().max_by_key(score)
}

/// All ways to write `axis` as a product of divisors, one of each dimension.
fn ways(axis: usize, left: &[usize]) -> Vec<Vec<usize>> {
    let Some((&first, rest)) = left.split_first() else {
        return if axis == 1 { vec![Vec::new()] } else { Vec::new() };
    };
    let divisors = (1..=first.min(axis)).filter(|size| first.is_multiple_of(*size) && axis.is_multiple_of(*size));
    let with =
        |size: usize| ways(axis / size, rest).into_iter().map(move |rest| std::iter::once(size).chain(rest).collect());
    divisors.flat_map(with).collect()
}

/// A row-major position as an index for each size.
fn digits(mut position: usize, sizes: &[usize]) -> Vec<usize> {
    let mut digits: Vec<usize> = sizes
        .iter()
        .rev()
        .map(|size| {
            let digit = position % size;
            position /= size;
            digit
        })
        .collect();
    digits.reverse();
    digits
}

/// The row-major position of an index.
fn number(index: impl Iterator<Item = usize>, sizes: &[usize]) -> usize {
    index.zip(sizes).fold(0, |number, (index, size)| number * size + index)
}
