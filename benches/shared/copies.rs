//! Measures collectives on devices that are threads of one process: loops around one collective, as HLO text.

use anyhow::Context;
use meshloom::hlo::parse::parse;
use meshloom::ir::DType::F32;
use meshloom::ir::Literal;
use meshloom::pjrt::{Buffer, Client, CompileOptions, ExecuteOptions};
use meshloom::trace::TensorSpec;
use prost::Message;

use crate::ITERATIONS;

/// A collective of as many numbers of each device as it reads or writes, whichever is more.
#[derive(Clone, Copy, Debug)]
pub enum Copies {
    /// Reads and writes as much.
    AllReduce,
    /// Writes as much.
    AllGather,
    /// Reads as much.
    ReduceScatter,
}

impl Copies {
    /// The collectives that decoders have.
    pub const ALL: [Copies; 3] = [Copies::AllReduce, Copies::AllGather, Copies::ReduceScatter];

    /// Seconds of one in groups of so many of the client's devices.
    pub fn seconds(self, client: &Client, members: usize, numbers: usize) -> anyhow::Result<f64> {
        // The size of each device's part, and the lines that apply the collective to `x`.
        let part = numbers / members;
        let own = if matches!(self, Copies::AllGather) { part } else { numbers };
        let device_count = client.devices().len();
        let groups = (0..device_count).step_by(members).map(|first| {
            let devices: Vec<String> = (first..first + members).map(|device| device.to_string()).collect();
            format!("{{{}}}", devices.join(","))
        });
        let groups = groups.collect::<Vec<_>>().join(",");
        let how = format!("channel_id=1, use_global_device_ids=true, replica_groups={{{groups}}}");
        let lines = match self {
            Copies::AllReduce => format!("z = f32[{own}] all-reduce(x), {how}, to_apply=sum"),
            Copies::AllGather => format!(
                "g = f32[{numbers}] all-gather(x), {how}, dimensions={{0}}\n  z = f32[{own}] slice(g), slice={{[0:{own}]}}"
            ),
            Copies::ReduceScatter => format!(
                "s = f32[{part}] reduce-scatter(x), {how}, dimensions={{0}}, to_apply=sum\n  \
                 b = f32[{members},{part}] broadcast(s), dimensions={{1}}\n  z = f32[{own}] reshape(b)"
            ),
        };
        let seconds = |lines: &str| -> anyhow::Result<f64> {
            let of = |iterations| run_seconds(client, &program([device_count, own, iterations], lines), own);
            Ok((of(ITERATIONS)? - of(1)?) / (ITERATIONS - 1) as f64)
        };
        Ok(seconds(&lines)? - seconds(&format!("z = f32[{own}] copy(x)"))?)
    }
}

/// On so many devices, a loop over so many numbers of each, of so many iterations; its lines make `z` of `x`.
fn program([devices, numbers, iterations]: [usize; 3], lines: &str) -> String {
    format!(
        "HloModule copies, num_partitions={devices}, entry_computation_layout={{(f32[{numbers}]{{0}})->f32[{numbers}]{{0}}}}

sum {{
  left = f32[] parameter(0)
  right = f32[] parameter(1)
  ROOT total = f32[] add(left, right)
}}

body {{
  state = (s32[], f32[{numbers}]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[{numbers}] get-tuple-element(state), index=1
  {lines}
  eighth = f32[] constant(0.125)
  eighths = f32[{numbers}] broadcast(eighth), dimensions={{}}
  y = f32[{numbers}] multiply(z, eighths)
  ROOT after = (s32[], f32[{numbers}]) tuple(next, y)
}}

condition {{
  before = (s32[], f32[{numbers}]) parameter(0)
  done = s32[] get-tuple-element(before), index=0
  count = s32[] constant({iterations})
  ROOT more = pred[] compare(done, count), direction=LT
}}

ENTRY main {{
  given = f32[{numbers}] parameter(0)
  zero = s32[] constant(0)
  first = (s32[], f32[{numbers}]) tuple(zero, given)
  last = (s32[], f32[{numbers}]) while(first), condition=condition, body=body
  ROOT result = f32[{numbers}] get-tuple-element(last), index=1
}}
"
    )
}

/// Seconds of a program of so many numbers of each device.
fn run_seconds(client: &Client, text: &str, numbers: usize) -> anyhow::Result<f64> {
    let module = parse(text).with_context(|| text.to_owned())?.hlo_module.context("the text has no module")?;
    let device_count = client.devices().len();
    let program = client.compile(&module.encode_to_vec(), &CompileOptions::partitioned(device_count))?;
    let literal = Literal::from_fn(TensorSpec::new(F32, [numbers]).ty, |index| (index % 97) as f64 / 97.0);
    let argument = |device| Ok(vec![Buffer::from_literal(client, &literal, device)?]);
    let arguments = (0..device_count).map(argument).collect::<anyhow::Result<Vec<_>>>()?;
    crate::fastest(|| {
        let outputs = program.execute(&arguments, &ExecuteOptions::default())?;
        Ok(outputs.iter().flatten().try_for_each(Buffer::block_until_ready)?)
    })
}
