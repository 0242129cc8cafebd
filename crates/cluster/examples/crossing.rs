//! Every collective between the processes that mpiexec has started, of two devices each, called by a compiled program.
//! `crossing LIBRARY_OF_MPI`; `MESHLOOM_CPU_PLUGIN` names the plugin.
use std::path::Path;
use std::time::Instant;

use meshloom_cluster::{Combine, Crossing, CrossingKind, CrossingSite, forget_sites};
use meshloom_hlo::Literal;
use meshloom_hlo::parse::parse;
use meshloom_mpi::Communicator;
use meshloom_pjrt::{Buffer, Client, ClientOptions, CompileOptions, ExecuteOptions, PlatformKind, Plugin};
use prost::Message;

const DEVICES: usize = 2;

type Failure = Box<dyn std::error::Error>;

/// A sum over the devices of the process, by XLA, and a collective between processes of that.
fn module(site: i32, input: &str, output: &str) -> Result<Vec<u8>, Failure> {
    let text = format!(
        "HloModule crossing, num_partitions={DEVICES}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: {input}) -> {output} {{
  %x = {input} parameter(0), sharding={{manual}}
  %local = {input} all-reduce(%x), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=%add, sharding={{manual}}
  %device = u32[] partition-id(), sharding={{manual}}
  %number = s32[] convert(%device), sharding={{manual}}
  %place = s32[1] reshape(%number), sharding={{manual}}
  %site = s32[1] constant({{{site}}}), sharding={{manual}}
  %header = s32[2] concatenate(%site, %place), dimensions={{0}}, sharding={{manual}}
  ROOT %y = {output} custom-call(%local, %header), custom_call_target=\"meshloom_crossing\", custom_call_has_side_effect=true, api_version=API_VERSION_TYPED_FFI, sharding={{manual}}
}}
"
    );
    Ok(parse(&text)?.hlo_module.ok_or("no module")?.encode_to_vec())
}

fn main() -> Result<(), Failure> {
    let library = std::env::args().nth(1).ok_or("which library of MPI?")?;
    let world = Communicator::world(Path::new(&library))?;
    let (rank, size) = (world.rank(), world.size());
    let plugin = Plugin::load(Path::new(&std::env::var("MESHLOOM_CPU_PLUGIN")?))?;
    plugin.register::<Crossing>()?;
    let client =
        Client::new(&plugin, &ClientOptions { device_count: Some(DEVICES), ..ClientOptions::of(PlatformKind::Cpu) })?;
    let groups: Vec<Vec<usize>> =
        (0..DEVICES).map(|place| (0..size).map(|process| process * DEVICES + place).collect()).collect();
    let rows = size;
    // What device `place` of process `process` has at a place; the sum over the devices of a process.
    let value = |process: usize, place: usize, at: usize| (1000 * process + 100 * place + at) as f32;
    let local = |process: usize, at: usize| (0..DEVICES).map(|place| value(process, place, at)).sum::<f32>();
    let input = format!("f32[{rows},3]");
    let count = 3 * rows;
    let total = |at: usize| (0..size).map(|process| local(process, at)).sum::<f32>();
    let cases: Vec<(CrossingKind, String, Vec<f32>)> = vec![
        (CrossingKind::AllReduce(Combine::Sum), input.clone(), (0..count).map(total).collect()),
        (CrossingKind::AllReduce(Combine::Max), input.clone(), (0..count).map(|at| local(size - 1, at)).collect()),
        (CrossingKind::ReduceScatter(Combine::Sum), "f32[1,3]".into(), (3 * rank..3 * rank + 3).map(total).collect()),
        (
            CrossingKind::AllGather,
            format!("f32[{size},{rows},3]"),
            (0..size).flat_map(|process| (0..count).map(move |at| local(process, at))).collect(),
        ),
        (
            CrossingKind::AllToAll,
            input.clone(),
            (0..size).flat_map(|process| (3 * rank..3 * rank + 3).map(move |at| local(process, at))).collect(),
        ),
        (
            CrossingKind::Permute((1..size).map(|target| (target - 1, target)).collect()),
            input.clone(),
            (0..count).map(|at| rank.checked_sub(1).map_or(0.0, |from| local(from, at))).collect(),
        ),
    ];
    for (kind, output, expected) in cases {
        let site = CrossingSite { kind: kind.clone(), groups: groups.clone() }.register(&world, DEVICES)?;
        let executable = client.compile(&module(site, &input, &output)?, &CompileOptions::partitioned(DEVICES))?;
        let arguments = (0..DEVICES).map(|place| {
            let values: Vec<f32> = (0..count).map(|at| value(rank, place, at)).collect();
            let literal = Literal::from_slice(&[rows, 3], &values)?;
            Ok(vec![Buffer::from_literal(&client, &literal, place)?])
        });
        let arguments = arguments.collect::<Result<Vec<_>, Failure>>()?;
        for _ in 0..20 {
            for of_device in executable.execute(&arguments, &ExecuteOptions::default())? {
                let found = of_device[0].to_literal()?.to_vec::<f32>().ok_or("no f32")?;
                assert_eq!(found, expected, "{kind:?} on process {rank}");
            }
        }
    }
    let site = CrossingSite { kind: CrossingKind::AllReduce(Combine::Sum), groups }.register(&world, DEVICES)?;
    let large = 1 << 19;
    let shape = format!("f32[{large}]");
    let executable = client.compile(&module(site, &shape, &shape)?, &CompileOptions::partitioned(DEVICES))?;
    let literal = Literal::from_slice(&[large], &vec![1f32; large])?;
    let arguments: Vec<_> = (0..DEVICES)
        .map(|place| Ok(vec![Buffer::from_literal(&client, &literal, place)?]))
        .collect::<Result<_, Failure>>()?;
    let mut seconds = Vec::new();
    for _ in 0..8 {
        let start = Instant::now();
        let outputs = executable.execute(&arguments, &ExecuteOptions::default())?;
        outputs.iter().try_for_each(|output| output[0].block_until_ready())?;
        seconds.push(start.elapsed());
    }
    seconds.sort_unstable();
    if rank == 0 {
        println!(
            "{size} processes of {DEVICES} devices: all right; a step of 2 MiB for each device takes {:?}",
            seconds[4]
        );
    }
    world.barrier()?;
    drop(executable);
    forget_sites();
    Ok(())
}
