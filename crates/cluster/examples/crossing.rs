//! Runs every collective between the processes that mpiexec has started, with two devices each, from a compiled
//! program: for several element types, within a process, across processes and mixed. Usage: `crossing LIBRARY_OF_MPI`;
//! `MESHLOOM_CPU_PLUGIN` names the plugin.
use std::path::Path;
use std::time::Instant;

use meshloom_cluster::mpi::World;
use meshloom_cluster::{Crossing, Links};
use meshloom_hlo::ReduceKind;
use meshloom_hlo::crossing::{self, CrossingKind};
use meshloom_hlo::parse::parse;
use meshloom_hlo::{DType, Literal, PlatformKind, TensorType};
use meshloom_pjrt::{Buffer, Client, ClientOptions, CompileOptions, ExecuteOptions, Plugin};
use prost::Message;

const DEVICES: usize = 2;

type Failure = Box<dyn std::error::Error>;

/// Makes a program of two collectives between processes, one after the other, and a sum within each process.
fn module(crossing: &crossing::Crossing, input: &str, output: &str) -> Result<Vec<u8>, Failure> {
    let (target, config) = (crossing::TARGET, crossing.backend_config());
    let ready =
        crossing::Crossing { kind: CrossingKind::AllReduce(ReduceKind::Sum), ..crossing.clone() }.backend_config();
    let text = format!(
        "HloModule crossing, num_partitions={DEVICES}

%add (a: u32[], b: u32[]) -> u32[] {{
  %a = u32[] parameter(0)
  %b = u32[] parameter(1)
  ROOT %sum = u32[] add(%a, %b)
}}

ENTRY %main (x: {input}, place: u32[]) -> ({output}, u32[], u32[]) {{
  %x = {input} parameter(0)
  %place = u32[] parameter(1)
  %first = ({output}, u32[]) custom-call(%x, %place), custom_call_target=\"{target}\", api_version=API_VERSION_TYPED_FFI, backend_config={config}
  %y = {output} get-tuple-element(%first), index=0
  %then = u32[] get-tuple-element(%first), index=1
  %second = (u32[], u32[]) custom-call(%place, %then), custom_call_target=\"{target}\", api_version=API_VERSION_TYPED_FFI, backend_config={ready}
  %total = u32[] get-tuple-element(%second), index=0
  %local = u32[] all-reduce(%place), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=%add
  ROOT %all = ({output}, u32[], u32[]) tuple(%y, %total, %local)
}}
"
    );
    Ok(parse(&text)?.hlo_module.ok_or("no module")?.encode_to_vec())
}

struct Processes {
    client: Client,
    rank: usize,
    size: usize,
}

impl Processes {
    /// Runs a collective over some axes of a mesh of `processes x 2` twenty times, and compares the results.
    fn check(&self, kind: &CrossingKind, axes: &[usize], dtype: DType) -> Result<(), Failure> {
        let (rank, size) = (self.rank, self.size);
        let crossing =
            crossing::Crossing { kind: kind.clone(), axes: axes.to_vec(), mesh: vec![size, DEVICES], processes: size };
        let members = crossing.group(0).0.len();
        // The values are 0 and 1, whose sums and products are exact in every type.
        let value = |device: usize, at: usize| f64::from(u8::from((device * 5 + at * 3).is_multiple_of(4)));
        let dims: &[usize] = &[members, 3];
        let count = members * 3;
        let output_dims: Vec<usize> = match kind {
            CrossingKind::AllGather => vec![members, members, 3],
            CrossingKind::ReduceScatter(_) => vec![3],
            _ => dims.to_vec(),
        };
        let text = |dims: &[usize]| TensorType::new(dtype, dims).to_string();
        let module = module(&crossing, &text(dims), &text(&output_dims))?;
        let options = CompileOptions { use_shardy_partitioner: true, ..CompileOptions::partitioned(DEVICES) };
        let executable = self.client.compile(&module, &options)?;
        let put = |literal: &Literal, place: usize| Buffer::from_literal(&self.client, literal, place);
        let arguments = (0..DEVICES).map(|place| {
            let device = rank * DEVICES + place;
            let literal = Literal::from_fn(TensorType::new(dtype, dims), |at| value(device, at));
            let number = Literal::from_fn(TensorType::scalar(DType::U32), |_| device as f64);
            Ok(vec![put(&literal, place)?, put(&number, place)?])
        });
        let arguments = arguments.collect::<Result<Vec<_>, Failure>>()?;
        let combined = |devices: &[usize], at: usize, how: ReduceKind| {
            let values = devices.iter().map(|&device| value(device, at));
            let truth = dtype == DType::Pred;
            match how {
                ReduceKind::Sum if truth => values.fold(0.0, f64::max),
                ReduceKind::Sum => values.sum(),
                ReduceKind::Max | ReduceKind::Or => values.fold(0.0, f64::max),
                ReduceKind::Min | ReduceKind::And | ReduceKind::Prod => values.fold(1.0, f64::min),
            }
        };
        for _ in 0..20 {
            let outputs = executable.execute(&arguments, &ExecuteOptions::default())?;
            for (place, of_device) in outputs.iter().enumerate() {
                let device = rank * DEVICES + place;
                let (group, own) = crossing.group(device);
                let expected: Vec<f64> = match kind {
                    CrossingKind::AllReduce(how) => (0..count).map(|at| combined(&group, at, *how)).collect(),
                    CrossingKind::ReduceScatter(how) => {
                        (3 * own..3 * own + 3).map(|at| combined(&group, at, *how)).collect()
                    }
                    CrossingKind::AllGather => {
                        group.iter().flat_map(|&other| (0..count).map(move |at| value(other, at))).collect()
                    }
                    CrossingKind::AllToAll => {
                        let part = 3 * own..3 * own + 3;
                        group.iter().flat_map(|&other| part.clone().map(move |at| value(other, at))).collect()
                    }
                    CrossingKind::CollectivePermute(pairs) => {
                        let from = pairs.iter().find(|(_, to)| *to as usize == own).map(|(from, _)| *from as usize);
                        (0..count).map(|at| from.map_or(0.0, |from| value(group[from], at))).collect()
                    }
                };
                let found = of_device[0].to_literal()?.to_f64_vec();
                assert_eq!(found, expected, "{crossing} of {dtype:?} on device {device}");
                let sum: usize = group.iter().sum();
                assert_eq!(of_device[1].to_literal()?.to_f64_vec(), [sum as f64], "{crossing}: what follows");
                let local = 2 * rank * DEVICES + 1;
                assert_eq!(of_device[2].to_literal()?.to_f64_vec(), [local as f64], "{crossing}: within the process");
            }
        }
        Ok(())
    }

    fn check_all(&self) -> Result<(), Failure> {
        use DType::{BF16, F16, F32, F64, Pred, S8, S16, S32, S64, U8, U16, U32, U64};
        let count = |axes: &[usize]| axes.iter().map(|axis| [self.size, DEVICES][*axis]).product::<usize>() as u32;
        for axes in [&[0][..], &[0, 1], &[1, 0], &[1]] {
            let ring = (0..count(axes)).map(|rank| (rank, (rank + 1) % count(axes))).collect();
            let line = (1..count(axes)).map(|rank| (rank - 1, rank)).collect();
            let kinds = [
                CrossingKind::AllReduce(ReduceKind::Sum),
                CrossingKind::ReduceScatter(ReduceKind::Sum),
                CrossingKind::AllGather,
                CrossingKind::AllToAll,
                CrossingKind::CollectivePermute(ring),
                CrossingKind::CollectivePermute(line),
            ];
            for kind in &kinds {
                self.check(kind, axes, F32)?;
            }
        }
        for dtype in [Pred, S8, S16, S32, S64, U8, U16, U32, U64, F16, BF16, F32, F64] {
            for how in ReduceKind::ALL {
                let is_float = matches!(dtype, F16 | BF16 | F32 | F64);
                if !(is_float && matches!(how, ReduceKind::And | ReduceKind::Or)) {
                    self.check(&CrossingKind::AllReduce(how), &[0], dtype)?;
                }
            }
            self.check(&CrossingKind::AllGather, &[0], dtype)?;
        }
        Ok(())
    }

    /// Returns the seconds of an all-reduce of 2 MiB for each device.
    fn time(&self) -> Result<f64, Failure> {
        let crossing = crossing::Crossing {
            kind: CrossingKind::AllReduce(ReduceKind::Sum),
            axes: vec![0],
            mesh: vec![self.size, DEVICES],
            processes: self.size,
        };
        let ty = TensorType::new(DType::F32, &[1 << 19]);
        let options = CompileOptions { use_shardy_partitioner: true, ..CompileOptions::partitioned(DEVICES) };
        let executable = self.client.compile(&module(&crossing, &ty.to_string(), &ty.to_string())?, &options)?;
        let arguments = (0..DEVICES).map(|place| {
            let device = (self.rank * DEVICES + place) as f64;
            let number = Literal::from_fn(TensorType::scalar(DType::U32), |_| device);
            let literals = [Literal::from_fn(ty.clone(), |_| 1.0), number];
            Ok(literals
                .iter()
                .map(|one| Buffer::from_literal(&self.client, one, place))
                .collect::<Result<Vec<_>, _>>()?)
        });
        let arguments = arguments.collect::<Result<Vec<_>, Failure>>()?;
        let mut seconds = Vec::new();
        for _ in 0..8 {
            let start = Instant::now();
            let outputs = executable.execute(&arguments, &ExecuteOptions::default())?;
            outputs.iter().try_for_each(|output| output[0].block_until_ready())?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[4])
    }
}

fn main() -> Result<(), Failure> {
    let library = std::env::args().nth(1).ok_or("which library of MPI?")?;
    let world = World::start(Path::new(&library))?;
    let (rank, size) = (world.rank(), world.size());
    let plugin = Plugin::load(Path::new(&std::env::var("MESHLOOM_CPU_PLUGIN")?))?;
    plugin.register::<Crossing>()?;
    let links = Links::connect(world, Box::new(|waited| (waited.as_secs() > 30).then(|| "nobody sends".to_owned())));
    let options = ClientOptions { device_count: Some(DEVICES), ..ClientOptions::of(PlatformKind::Cpu) };
    let processes = Processes { client: Client::new(&plugin, &options)?, rank, size };
    processes.check_all()?;
    let seconds = processes.time()?;
    if rank == 0 {
        println!("{size} processes of {DEVICES} devices: all right; a step of 2 MiB for each device: {seconds:.4} s");
    }
    links.world().barrier(u16::MAX, &|_| None)?;
    Links::disconnect();
    Ok(())
}
