//! Ops that move values between a program and its host, or between two programs.

use smallvec::smallvec;

use super::body::Sites;
use super::{Conversion, Rule, one_or_tuple};
use crate::parse::{Result, array, tuple};
use crate::proto::{FrontendAttributes, HloInstructionProto, PrimitiveType, ShapeProto};

pub(super) const RULES: &[(&str, Rule)] =
    &[("stablehlo.send", send), ("stablehlo.recv", recv), ("stablehlo.infeed", infeed), ("stablehlo.outfeed", outfeed)];

fn token() -> ShapeProto {
    ShapeProto { element_type: PrimitiveType::Token.into(), ..ShapeProto::default() }
}

/// The value that is on its way, a context and a token: what XLA makes of a transfer that has begun.
fn on_the_way(value: ShapeProto) -> ShapeProto {
    tuple(vec![value, array(PrimitiveType::U32, Vec::new()), token()])
}

/// The statements of both halves of a transfer.
struct Transfer {
    channel: i64,
    is_host_transfer: bool,
    pairs: Option<String>,
}

impl Transfer {
    fn of(op: &mut Conversion<'_, '_, '_>) -> Result<Transfer> {
        let channel = match op.operation.attributes.get("channel_handle") {
            Some(_) => op.numbers("channel_handle")?.one("handle"),
            None => op.operation.optional_integer("channel_id")?.unwrap_or(0),
        };
        let pairs = match op.operation.attributes.get("source_target_pairs") {
            Some(_) => op.integers(&["source_target_pairs"])?,
            None => Vec::new(),
        };
        let pair = |pair: &[i64]| format!("{{{}}}", pair.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
        let text = pairs.chunks(2).map(pair).collect::<Vec<String>>().join(",");
        let pairs = (!text.is_empty()).then(|| format!("{{{text}}}"));
        Ok(Transfer { channel, is_host_transfer: op.operation.flag("is_host_transfer")?, pairs })
    }

    fn set(&self, instruction: &mut HloInstructionProto) {
        if self.channel > 0 {
            instruction.channel_id = self.channel;
        }
        if self.is_host_transfer {
            instruction.is_host_transfer = true;
        }
        if let Some(pairs) = &self.pairs {
            let entry = ("_xla_send_recv_source_target_pairs".to_owned(), pairs.clone());
            let attributes = instruction.frontend_attributes.get_or_insert_with(FrontendAttributes::default);
            attributes.map.extend([entry]);
        }
    }
}

/// The operands are the values, and a token last. HLO begins and ends a transfer by an instruction each.
fn send(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (transfer, operands) = (Transfer::of(op)?, op.operands()?);
    let Some((&order, values)) = operands.split_last() else { return op.operation.fault("expected a token") };
    let value = op.body.joined(values);
    let mut begun = op.body.instruction("send", on_the_way(op.body.shape(value)), &[value, order]);
    transfer.set(&mut begun);
    let begun = op.body.push(begun);
    op.over("send-done", &[begun], |instruction| transfer.set(instruction))
}

/// The results are the values, and a token last.
fn recv(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (transfer, order) = (Transfer::of(op)?, op.operand()?);
    let mut shapes = op.operation.result_shapes()?;
    if shapes.pop().is_none() {
        return op.operation.fault("expected a token as the last result");
    }
    let count = shapes.len();
    let value = one_or_tuple(shapes);
    let mut begun = op.body.instruction("recv", on_the_way(value.clone()), &[order]);
    transfer.set(&mut begun);
    let begun = op.body.push(begun);
    let mut done = op.body.instruction("recv-done", tuple(vec![value, token()]), &[begun]);
    transfer.set(&mut done);
    let done = op.body.push(done);
    let [value, order] = op.body.elements(done)[..] else { return Ok(smallvec![done]) };
    let mut results = op.body.results(value, count);
    results.push(order);
    Ok(results)
}

/// The results are the values, which HLO has in a tuple even if there is one, and a token last.
fn infeed(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (config, order) = (config(op, "infeed_config")?, op.operand()?);
    let mut shapes = op.operation.result_shapes()?;
    if shapes.pop().is_none() {
        return op.operation.fault("expected a token as the last result");
    }
    let mut instruction = op.body.instruction("infeed", tuple(vec![tuple(shapes), token()]), &[order]);
    if !config.is_empty() {
        instruction.infeed_config = config;
    }
    let place = op.body.push(instruction);
    let [values, order] = op.body.elements(place)[..] else { return Ok(smallvec![place]) };
    let mut results = op.body.elements(values);
    results.push(order);
    Ok(results)
}

/// The operands are the values, and a token last.
fn outfeed(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (config, operands) = (config(op, "outfeed_config")?, op.operands()?);
    let Some((&order, values)) = operands.split_last() else { return op.operation.fault("expected a token") };
    let values = op.body.tuple(values);
    let shape = op.body.shape(values);
    op.over("outfeed", &[values, order], |instruction| {
        if !config.is_empty() {
            instruction.outfeed_config = config;
        }
        instruction.outfeed_shape = Some(shape.into());
    })
}

fn config(op: &Conversion<'_, '_, '_>, name: &str) -> Result<Vec<u8>> {
    op.operation.attributes.get(name).map_or(Ok(Vec::new()), |config| config.bytes(name).map(<[u8]>::to_vec))
}
