//! Attention of queries to keys that lie on other devices: keys and values travel around a ring.
//!
//! Every device holds a part of the sequence. In each round it attends from its queries to the keys that it holds, and
//! hands them on to the next device; the results of the rounds are merged by the logarithms of their sums. A round's
//! keys are sent while they are used, so the transfer can hide behind the round before. In the backward pass the
//! cotangents of keys and values travel with them, and one step further home.
//!
//! The first and the last round stand alone, and the rounds between them are a loop; so a ring of two has no loop.
//!
//! Source: Liu et al., "Ring Attention", arXiv 2310.01889.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Attention, AttentionForm, AttentionGradient};
use crate::ir::PortInfo;
use crate::ops::rules::*;
use crate::ops::{BinaryKind, CollectivePermute, Group, Scan, UnaryKind};

/// The operands of an attention that travel: key, value, segments and places of keys.
const TRAVELLING: [usize; 4] = [1, 2, 4, 6];

/// Computes the sums after a round, from the operands of the op and the sums so far. The first round has no sums before
/// it.
type Round<'a> = dyn Fn(&mut GraphBuilder, &[Value], Option<&[Value]>) -> Result<Vec<Value>, OpError> + 'a;

/// One pass around the ring. The values that stay on a device, those that travel, and those that are summed up are
/// lists.
struct RingWalk<'a> {
    group: Group,
    round: &'a Round<'a>,
    /// The number of sums that belong to the keys and travel with them. They are the last ones.
    travelling_sums: usize,
}

impl RingWalk<'_> {
    fn send(&self, builder: &mut GraphBuilder, values: &[Value]) -> Result<Vec<Value>, OpError> {
        let size = self.group.size as u32;
        let pairs: Box<[(u32, u32)]> = (0..size).map(|rank| (rank, (rank + 1) % size)).collect();
        let sent = |&value: &Value| {
            let op = CollectivePermute { group: self.group.clone(), pairs: pairs.clone() };
            builder.push1(op, &[value])
        };
        values.iter().map(sent).collect()
    }

    /// Sends on the sums that belong to the keys; returns all sums.
    fn send_sums(&self, builder: &mut GraphBuilder, mut sums: Vec<Value>) -> Result<Vec<Value>, OpError> {
        let own = sums.split_off(sums.len() - self.travelling_sums);
        sums.extend(self.send(builder, &own)?);
        Ok(sums)
    }

    fn run(&self, builder: &mut GraphBuilder, staying: &[Value], keys: &[Value]) -> Result<Vec<Value>, OpError> {
        let next = self.send(builder, keys)?;
        let sums = (self.round)(builder, &operands(staying, keys), None)?;
        let mut sums = self.send_sums(builder, sums)?;
        let mut keys = next;
        if self.group.size > 2 {
            (keys, sums) = self.middle(builder, staying, &keys, &sums)?;
        }
        sums = (self.round)(builder, &operands(staying, &keys), Some(&sums))?;
        self.send_sums(builder, sums)
    }

    /// All rounds but the first and the last, as a loop.
    fn middle(
        &self,
        builder: &mut GraphBuilder,
        staying: &[Value],
        keys: &[Value],
        sums: &[Value],
    ) -> Result<(Vec<Value>, Vec<Value>), OpError> {
        let mut body = GraphBuilder::new("ring");
        body.set_origin(builder.origin());
        let mut ports = |values: &[Value]| -> Vec<Value> {
            values.iter().map(|&value| body.input(builder.ty(value).clone(), PortInfo::default())).collect()
        };
        let (inner_staying, inner_keys, inner_sums) = (ports(staying), ports(keys), ports(sums));
        let next = self.send(&mut body, &inner_keys)?;
        let made = (self.round)(&mut body, &operands(&inner_staying, &inner_keys), Some(&inner_sums))?;
        let made = self.send_sums(&mut body, made)?;
        let carries = [keys, sums].concat();
        let scan = Scan {
            body: Arc::new(body.finish_body([next, made].concat())),
            length: self.group.size - 2,
            invariant_count: staying.len(),
            carry_count: carries.len(),
            reverse: false,
            parallel: false,
            unroll: 1,
        };
        let results = builder.push(scan, &[staying, &carries].concat())?;
        let (keys, sums) = results.split_at(keys.len());
        Ok((keys.to_vec(), sums.to_vec()))
    }
}

/// The operands of an op of attention, from those that stay and those that travel, each in the order of operands.
fn operands(staying: &[Value], travelling: &[Value]) -> Values {
    let (mut staying, mut travelling) = (staying.iter(), travelling.iter());
    let count = staying.len() + travelling.len();
    let operand = |index| if TRAVELLING.contains(&index) { travelling.next() } else { staying.next() };
    (0..count).filter_map(operand).copied().collect()
}

fn parted(context: &PartitionContext<'_>) -> (Vec<Value>, Vec<Value>) {
    let (travelling, staying): (Vec<usize>, Vec<usize>) =
        (0..context.operand_count()).partition(|index| TRAVELLING.contains(index));
    let values = |indices: Vec<usize>| indices.into_iter().map(|index| context.operand(index)).collect();
    (values(staying), values(travelling))
}

/// A round of the attention. The sums are the mixed values in the type of the logarithms, and the logarithms of the
/// queries' sums.
fn forward(
    form: AttentionForm,
    builder: &mut GraphBuilder,
    operands: &[Value],
    sums: Option<&[Value]>,
) -> Result<Vec<Value>, OpError> {
    let found = builder.push(Attention(form), operands)?;
    let (mixed, log_total) = (found[0], found[1]);
    let wide = builder.ty(log_total).dtype;
    let mixed = builder.convert(mixed, wide)?;
    let Some(&[before, log_before]) = sums else { return Ok(vec![mixed, log_total]) };
    // This is log(exp(a) + exp(b)), from the greater.
    let highest = builder.binary(BinaryKind::Maximum, log_before, log_total)?;
    let share = |builder: &mut GraphBuilder, log: Value| {
        let distance = builder.sub(log, highest)?;
        builder.unary(UnaryKind::Exponential, distance)
    };
    let (old, new) = (share(builder, log_before)?, share(builder, log_total)?);
    let total = builder.add(old, new)?;
    let dims = builder.ty(mixed).dims.clone();
    let leading: SmallVec<[usize; 6]> = (0..dims.len() - 1).collect();
    let mut weighted = |weight: Value, part: Value| {
        let weight = builder.div(weight, total)?;
        let weight = builder.broadcast(weight, &dims, &leading)?;
        builder.mul(part, weight)
    };
    let (old, new) = (weighted(old, before)?, weighted(new, mixed)?);
    let mixed = builder.add(old, new)?;
    let log_sum = builder.unary(UnaryKind::Log, total)?;
    let log_total = builder.add(highest, log_sum)?;
    Ok(vec![mixed, log_total])
}

/// The sums of all rounds of an op whose keys lie over the devices of a group.
fn around(
    context: &mut PartitionContext<'_>,
    group: Group,
    travelling_sums: usize,
    round: &Round<'_>,
) -> Result<Vec<Value>, OpError> {
    let (staying, travelling) = parted(context);
    RingWalk { group, round, travelling_sums }.run(context.builder, &staying, &travelling)
}

/// An attention whose keys lie over the devices of a group, on one of them.
pub(super) fn attention(form: AttentionForm, context: &mut PartitionContext<'_>, group: Group) -> Result<(), OpError> {
    let form = form.of_parts();
    let sums = around(context, group, 0, &|builder, operands, sums| forward(form, builder, operands, sums))?;
    let mixed = context.builder.convert(sums[0], context.operand_type(0).dtype)?;
    context.push_result(mixed);
    context.push_result(sums[1]);
    Ok(())
}

/// The gradient of an attention whose keys lie over the devices of a group, on one of them. The sums of a round are the
/// cotangents of queries, and of the keys and values that are here.
pub(super) fn gradient(form: AttentionForm, context: &mut PartitionContext<'_>, group: Group) -> Result<(), OpError> {
    let op = AttentionGradient(form.of_parts());
    let sums = around(context, group, 2, &|builder, operands, sums| {
        let found = builder.push(op.clone(), operands)?;
        let Some(sums) = sums else { return Ok(found.to_vec()) };
        found.iter().zip(sums).map(|(&new, &sum)| builder.add(sum, new)).collect()
    })?;
    sums.into_iter().for_each(|sum| context.push_result(sum));
    Ok(())
}
