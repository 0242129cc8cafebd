//! A global value spread over devices, and programs run on such values.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::buffer::{Buffer, HostCopy};
use super::client::Client;
use super::error::PjrtError;
use super::executable::{Executable, ExecuteOptions, check_count, check_type};
use super::layout::{ShardBox, ShardLayout, box_type, copy_in, copy_out, shared_runs};
use meshloom_hlo::{Literal, TensorType};

/// A part of this size is waited for before the next but one is made. Smaller ones are cheap to hold.
const LARGE_PART_BYTES: usize = 1 << 20;

/// A global type and where its parts lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// The type of the whole value.
    pub ty: TensorType,
    /// The box of each device.
    pub layout: ShardLayout,
}

/// A global value spread over devices, one buffer each. Cloning shares the buffers.
#[derive(Clone, Debug)]
pub struct Array {
    ty: TensorType,
    layout: ShardLayout,
    shards: Vec<Buffer>,
}

impl Array {
    /// Starts copying a literal to the client's first devices, to each its box.
    pub fn put(client: &Client, literal: &Literal, layout: &ShardLayout) -> Result<Array, PjrtError> {
        let devices: Vec<usize> = (0..layout.own_devices().len()).collect();
        Array::put_on(client, literal, layout, &devices)
    }

    /// As [`Array::put`], to the devices with these indices: an executable's [`devices`](super::Executable::devices),
    /// one for each of the layout's that this process has.
    pub fn put_on(
        client: &Client,
        literal: &Literal,
        layout: &ShardLayout,
        devices: &[usize],
    ) -> Result<Array, PjrtError> {
        let ty = literal.ty();
        check_dims(ty, layout)?;
        Array::put_parts(client, ty.clone(), layout, devices, |index| {
            let shard = layout.value_part(index);
            match box_type(ty.dtype, &shard) {
                whole if whole == *ty => Ok(literal.clone()),
                part => dense(part, copy_out(literal.bytes(), ty, &shard)),
            }
        })
    }

    /// As [`Array::put_on`], for a value that never exists as a whole: `part` returns the part in the layout's box with
    /// this index, without its [padding](ShardLayout::value_part). It is called once for equal boxes. The host holds
    /// two large parts at most: the one that it makes, and the one before, on its way.
    pub fn put_parts<E: From<PjrtError>>(
        client: &Client,
        ty: TensorType,
        layout: &ShardLayout,
        devices: &[usize],
        part: impl Fn(usize) -> Result<Literal, E>,
    ) -> Result<Array, E> {
        check_count(|| "devices to put shards on", layout.own_devices().len(), devices.len())?;
        let mut all_holders: HashMap<&ShardBox, Vec<usize>> = HashMap::new();
        for (holder, index) in layout.own_devices().enumerate() {
            all_holders.entry(&layout.boxes()[index]).or_default().push(holder);
        }
        let mut shards: Vec<Option<Buffer>> = vec![None; devices.len()];
        let mut under_way: Vec<Buffer> = Vec::new();
        for index in layout.own_devices() {
            let shard = &layout.boxes()[index];
            // At the first of its holders; at the others there is nothing.
            let Some(holders) = all_holders.remove(shard) else { continue };
            let part = padded(part(index)?, box_type(ty.dtype, shard))?;
            under_way.drain(..).try_for_each(|buffer| buffer.block_until_ready())?;
            for holder in holders {
                let buffer = Buffer::from_literal(client, &part, devices[holder])?;
                if part.bytes().len() >= LARGE_PART_BYTES {
                    under_way.push(buffer.clone());
                }
                shards[holder] = Some(buffer);
            }
        }
        Ok(Array::from_shards(ty, layout.clone(), shards.into_iter().flatten().collect())?)
    }

    /// An array from buffers that are on devices already, in the order of the layout's boxes; those of this process.
    pub fn from_shards(ty: TensorType, layout: ShardLayout, shards: Vec<Buffer>) -> Result<Array, PjrtError> {
        check_dims(&ty, &layout)?;
        check_count(|| "shards", layout.own_devices().len(), shards.len())?;
        for (index, shard) in layout.own_devices().zip(&shards) {
            check_type(|| format!("shard {index}"), layout.local_type(ty.dtype, index).as_ref(), shard.ty())?;
        }
        Ok(Array { ty, layout, shards })
    }

    /// The type of the whole value.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The box of each device.
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// Type and layout together, as [`Executable::run`](super::Executable::run) takes them.
    pub fn spec(&self) -> ArraySpec {
        ArraySpec { ty: self.ty.clone(), layout: self.layout.clone() }
    }

    /// The buffer of each device of this process.
    pub fn shards(&self) -> &[Buffer] {
        &self.shards
    }

    /// Waits for the whole value and assembles it on the host. Only one of several equal boxes is read.
    ///
    /// # Errors
    /// The plugin fails; or other processes hold parts that this one does not.
    pub fn get(&self) -> Result<Literal, PjrtError> {
        let devices = self.layout.covering_devices()?;
        if let &[device] = devices.as_slice() {
            return self.cut(self.shard(device)?);
        }
        let padded = TensorType::new(self.ty.dtype, self.layout.dims());
        // All copies run at once.
        let copies = devices.iter().map(|&device| Ok((device, self.start_copy(device)?)));
        let copies = copies.collect::<Result<Vec<_>, PjrtError>>()?;
        let mut bytes = vec![0; padded.byte_count()];
        for (device, copy) in copies {
            copy_in(&mut bytes, &padded, &self.layout.boxes()[device], copy.finish()?.bytes());
        }
        self.cut(dense(padded, bytes)?)
    }

    /// The same value, laid out otherwise. It goes by way of the host, which holds a part of one device at a time.
    ///
    /// # Errors
    /// The layout is of other dimensions, or the plugin fails.
    pub fn laid_out(&self, layout: &ShardLayout, devices: &[usize]) -> Result<Array, PjrtError> {
        let Some(client) = self.shards.first().map(Buffer::client) else { return Ok(self.clone()) };
        Array::put_parts(client, self.ty.clone(), layout, devices, |index| self.part(&layout.value_part(index)))
    }

    /// The part of the value in a box.
    fn part(&self, wanted: &ShardBox) -> Result<Literal, PjrtError> {
        let ty = box_type(self.ty.dtype, wanted);
        let mut bytes = vec![0; ty.byte_count()];
        for device in self.layout.covering_devices()? {
            let held = &self.layout.boxes()[device];
            let both =
                |(held, wanted): (&Range<usize>, &Range<usize>)| held.start.max(wanted.start)..held.end.min(wanted.end);
            let common: ShardBox = held.iter().zip(wanted).map(both).collect();
            if common.iter().any(Range::is_empty) {
                continue;
            }
            let within = |outer: &ShardBox| -> ShardBox {
                let moved =
                    |(own, outer): (&Range<usize>, &Range<usize>)| own.start - outer.start..own.end - outer.start;
                common.iter().zip(outer).map(moved).collect()
            };
            let shard = self.shard(device)?;
            for (from, to) in shared_runs((shard.ty(), &within(held)), (&ty, &within(wanted))) {
                bytes[to].copy_from_slice(&shard.bytes()[from]);
            }
        }
        dense(ty, bytes)
    }

    /// The value without its padding.
    fn cut(&self, padded: Literal) -> Result<Literal, PjrtError> {
        let Some(own) = self.layout.value_box() else { return Ok(padded) };
        dense(self.ty.clone(), copy_out(padded.bytes(), padded.ty(), &own))
    }

    /// Waits for what one device holds and copies it to the host.
    pub fn shard(&self, device: usize) -> Result<Literal, PjrtError> {
        self.start_copy(device)?.finish()
    }

    /// Whether all devices have their part.
    pub fn is_ready(&self) -> Result<bool, PjrtError> {
        for shard in &self.shards {
            if !shard.is_ready()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all devices have their part; returns the error of what should have made it.
    pub fn block_until_ready(&self) -> Result<(), PjrtError> {
        self.shards.iter().try_for_each(Buffer::block_until_ready)
    }

    /// As [`Array::block_until_ready`], but no longer than `limit` for all devices together.
    ///
    /// # Errors
    /// [`PjrtError::TimedOut`] names the program and the first device that was not done
    /// ([`Buffer::block_until_ready_within`] says what can be done then).
    pub fn block_until_ready_within(&self, limit: Duration) -> Result<(), PjrtError> {
        let start = Instant::now();
        self.shards.iter().try_for_each(|shard| shard.wait_since(start, limit))
    }

    /// Starts copying what one device holds to the host.
    pub fn start_copy(&self, device: usize) -> Result<HostCopy, PjrtError> {
        let own = self.layout.own_index(device).and_then(|index| self.shards.get(index));
        let shard = own.ok_or_else(|| {
            let expected = match self.layout.device_count() {
                count if device < count => "a device of this process".to_owned(),
                count => format!("less than {count}, the number of shards"),
            };
            PjrtError::option("shard", device, expected)
        })?;
        shard.check_usable(&format!("shard {device} of the array"))?;
        shard.start_copy()
    }
}

impl Executable {
    /// Executes on global arrays. Each is checked against its parameter. The outputs are arrays with the types and
    /// layouts stated.
    pub fn run(&self, arguments: &[&Array], outputs: &[ArraySpec]) -> Result<Vec<Array>, PjrtError> {
        self.run_with(arguments, outputs, &ExecuteOptions::default())
    }

    /// As [`Executable::run`], with options.
    pub fn run_with(
        &self,
        arguments: &[&Array],
        outputs: &[ArraySpec],
        options: &ExecuteOptions,
    ) -> Result<Vec<Array>, PjrtError> {
        let (device_count, output_types) = (self.devices().len(), self.output_types().unwrap_or_default());
        check_count(|| "outputs", self.output_count(), outputs.len())?;
        for (index, argument) in arguments.iter().enumerate() {
            check_count(|| format!("shards of {}", self.describe(index)), device_count, argument.shards().len())?;
            let global = self.parameters().get(index).and_then(|parameter| parameter.global_type.as_ref());
            let whole = TensorType::new(argument.ty().dtype, argument.layout().dims());
            check_type(|| format!("{} as a whole", self.describe(index)), global, &whole)?;
        }
        for (index, spec) in outputs.iter().enumerate() {
            check_count(|| format!("shards of output {index}"), device_count, spec.layout.own_devices().len())?;
            for device in spec.layout.own_devices() {
                let stated = spec.layout.local_type(spec.ty.dtype, device);
                let Some(Some(actual)) = output_types.get(index) else { continue };
                if let Some(stated) = stated {
                    check_type(|| format!("output {index} as stated, on device {device}"), Some(actual), &stated)?;
                }
            }
        }
        let lists: Vec<Vec<Buffer>> = (0..device_count)
            .map(|device| arguments.iter().map(|argument| argument.shards()[device].clone()).collect())
            .collect();
        let results = self.execute(&lists, options)?;
        let mut by_device: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
        outputs
            .iter()
            .map(|spec| {
                let shards = by_device.iter_mut().filter_map(Iterator::next).collect();
                Array::from_shards(spec.ty.clone(), spec.layout.clone(), shards)
            })
            .collect()
    }
}

/// The literal with zeros behind it in each dimension, as a larger type has them.
fn padded(literal: Literal, ty: TensorType) -> Result<Literal, PjrtError> {
    let dims = &literal.ty().dims;
    let fits = dims.len() == ty.dims.len() && dims.iter().zip(&ty.dims).all(|(own, most)| own <= most);
    if *literal.ty() == ty || literal.ty().dtype != ty.dtype || !fits {
        // The check of the shards says what is wrong with it.
        return Ok(literal);
    }
    let own: ShardBox = dims.iter().map(|&size| 0..size).collect();
    let mut bytes = vec![0; ty.byte_count()];
    copy_in(&mut bytes, &ty, &own, literal.bytes());
    dense(ty, bytes)
}

fn check_dims(ty: &TensorType, layout: &ShardLayout) -> Result<(), PjrtError> {
    let expected = TensorType::new(ty.dtype, layout.value_dims());
    check_type(|| "the value of a shard layout".into(), Some(&expected), ty)
}

/// A literal of these bytes, whose number must be that of the type.
fn dense(ty: TensorType, bytes: Vec<u8>) -> Result<Literal, PjrtError> {
    let (what, expected, actual) = (format!("bytes of {ty}"), ty.byte_count(), bytes.len());
    Literal::from_bytes(ty, bytes).map_err(|_| PjrtError::Count { what, expected, actual })
}
