//! The same values in every form that a run may hold them in.

use std::fs;

use meshloom::ir::{DType, Literal, Name, TensorType};
use meshloom::pjrt::{Array, ArraySpec, ShardBox, ShardLayout};
use meshloom::trace::{Init, Param, Path, Tree};
use meshloom_train::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Start};

use super::state::{self, State, about, arrays, config, declared, literal, write, written_values};
use support::counts::process;
use support::eight_devices::client;

/// A tree that gives two leaves one path.
struct Twice<T>([T; 2]);

impl<T: Tree> Tree for Twice<T> {
    type Leaf = T::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T::Leaf)) {
        self.0.iter().for_each(|leaf| path.descend("one", |path| leaf.visit(path, f)));
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> T::Leaf) -> Self {
        Twice(self.0.rebuild(next))
    }
}

#[test]
fn values_come_back_on_any_devices() {
    let directory = tempfile::tempdir().expect("a folder");
    let [folder] = &write(directory.path(), &[3])[..] else { panic!("one folder") };
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    assert_eq!(*checkpoint.about(), about(3));
    checkpoint.check(&declared()).expect("the same values");
    assert_eq!(state::values(&checkpoint).expect("values"), written_values(3));

    let all: Vec<usize> = (0..8).collect();
    let dims: Vec<Vec<usize>> = declared().leaves().iter().map(|param| param.spec.ty.dims.to_vec()).collect();
    let whole = |count| dims.iter().map(|dims| ShardLayout::replicated(dims, count)).collect::<Vec<_>>();
    // The last device holds nothing, and the others what the writers did not.
    let thirds = |size: usize| [0..size / 3, size / 3..size, size..size];
    let rows = dims.iter().map(|dims| {
        let shard = |third: usize| -> ShardBox {
            let (first, rest) = (dims.first().map(|&size| thirds(size)[third].clone()), dims.iter().skip(1));
            first.into_iter().chain(rest.map(|&size| 0..size)).collect()
        };
        ShardLayout::from_boxes(dims, (0..3).map(shard).collect()).expect("boxes")
    });
    let state::State { matrix, uneven, wide, flags, step } = state::layouts();
    let as_written = vec![matrix, uneven, wide, flags, step];
    for (layouts, devices) in
        [(as_written, &all[..]), (whole(8), &all), (whole(1), &[5]), (whole(2), &[6, 1]), (rows.collect(), &[2, 7, 4])]
    {
        let loaded = state::load(&checkpoint, &layouts, devices).expect("loaded");
        for ((array, expected), layout) in loaded.iter().zip(written_values(3)).zip(&layouts) {
            assert_eq!(array.layout(), layout);
            let places: Vec<usize> = array.shards().iter().map(meshloom::pjrt::Buffer::device).collect();
            assert_eq!(places, devices);
            assert_eq!(array.get().expect("a value"), expected);
            // Padding is zeros, as when a value is put on devices.
            let put = Array::put_on(&client(), &expected, layout, devices).expect("put");
            for device in 0..devices.len() {
                assert_eq!(array.shard(device).expect("a shard"), put.shard(device).expect("a shard"));
            }
        }
    }
}

/// Each part is written once, and the devices share the work.
#[test]
fn every_part_is_written_once() {
    let directory = tempfile::tempdir().expect("a folder");
    let [folder] = &write(directory.path(), &[3])[..] else { panic!("one folder") };
    let files = state::names(folder).into_iter().filter(|name| name.ends_with(".safetensors"));
    let (mut bytes, mut parts) = (0, 0);
    for name in files {
        assert!(name.ends_with("-of-00008.safetensors"), "{name}");
        let content = fs::read(folder.join(&name)).expect("a file");
        // Any program reads them.
        let tensors = safetensors::SafeTensors::deserialize(&content).expect("safetensors");
        let held: usize = tensors.iter().map(|(_, view)| view.data().len()).sum();
        assert!((12..=40).contains(&held), "{name} has {held} bytes");
        bytes += held;
        parts += tensors.len();
    }
    let leaves = written_values(3);
    assert_eq!(bytes, leaves.iter().map(|literal| literal.bytes().len()).sum::<usize>());
    assert_eq!(parts, 8 + 4 + 1 + 8 + 1);
}

#[test]
fn sha256sum_checks_it() {
    let directory = tempfile::tempdir().expect("a folder");
    let [folder] = &write(directory.path(), &[3])[..] else { panic!("one folder") };
    let output = process("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder).output();
    let Ok(output) = output else { return eprintln!("SKIPPED sha256sum_checks_it: there is no sha256sum") };
    assert!(output.status.success(), "{output:?}");
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).expect("checksums");
    assert_eq!(sums.lines().count() + 1, state::names(folder).len(), "{sums}");
}

const LAYERS: usize = 12;
const WIDTH: usize = 6;

/// One parameter of twelve layers, `[layers, 6]`, in a form.
struct Form {
    name: &'static str,
    declared: Declared,
    /// The way in which the eight devices hold each value.
    layout: ShardLayout,
}

/// The declaration, with the paths that a decoder has.
enum Declared {
    Stacked(Stacked<Param>),
    Apart(Stack<Param>),
    Cycles(Cycles<Param>),
}

impl Tree for Declared {
    type Leaf = Param;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &Param)) {
        match self {
            Declared::Stacked(tree) => tree.visit(path, f),
            Declared::Apart(tree) => tree.visit(path, f),
            Declared::Cycles(tree) => tree.visit(path, f),
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> Param) -> Declared {
        match self {
            Declared::Stacked(tree) => Declared::Stacked(tree.rebuild(next)),
            Declared::Apart(tree) => Declared::Apart(tree.rebuild(next)),
            Declared::Cycles(tree) => Declared::Cycles(tree.rebuild(next)),
        }
    }
}

meshloom::tree! {
    /// Stacked layers or separate ones.
    struct Stack<T> {
        layers: Vec<Weights<T>>,
    }

    struct Weights<T> {
        up: T,
    }

    struct Stacked<T> {
        layers: Weights<T>,
    }
}

/// Every second layer stacked, and the layers between them.
struct Cycles<T>([T; 2]);

impl<T: Tree> Tree for Cycles<T> {
    type Leaf = T::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T::Leaf)) {
        for (name, leaf) in ["0::2", "1::2"].into_iter().zip(&self.0) {
            path.descend("layers", |path| path.descend(name, |path| path.descend("up", |path| leaf.visit(path, f))));
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> T::Leaf) -> Self {
        Cycles([self.0[0].rebuild(next), self.0[1].rebuild(next)])
    }
}

fn layer() -> Param {
    Param::new(DType::F32, [WIDTH], &["embed"], Init::Constant(0.0))
}

/// A parameter in `parts` boxes of each dimension, the last dimension fastest, on eight devices.
fn grid(dims: &[usize], parts: &[usize]) -> ShardLayout {
    let shard = |mut device: usize| -> ShardBox {
        let mut shard: ShardBox = Vec::new();
        for (&size, &count) in dims.iter().zip(parts).rev() {
            let (part, length) = (device % count, size.div_ceil(count));
            device /= count;
            shard.push((part * length).min(size)..((part + 1) * length).min(size));
        }
        shard.reverse();
        shard
    };
    ShardLayout::from_boxes(dims, (0..8).map(shard).collect()).expect("boxes")
}

fn forms() -> Vec<Form> {
    let stacked = |name, dims: &[(usize, &str)], parts: &[usize]| {
        let up = layer().stacked_over(dims);
        let layout = grid(&up.spec.ty.dims, parts);
        Form { name, declared: Declared::Stacked(Stacked { layers: Weights { up } }), layout }
    };
    let stages = |stages| (stages, "layers");
    let layers = vec![Weights { up: layer() }; LAYERS];
    vec![
        stacked("one loop", &[(LAYERS, "layers")], &[1, 2]),
        stacked("one loop, layers split", &[(LAYERS, "layers")], &[8, 1]),
        stacked("stages of three layers", &[stages(4), (3, "layers_per_stage")], &[4, 1, 2]),
        stacked("three repeats", &[(3, "circular_repeats"), stages(4)], &[1, 4, 2]),
        stacked("repeats of two layers", &[(3, "circular_repeats"), stages(2), (2, "layers_per_stage")], &[1, 2, 1, 3]),
        stacked("all dimensions split", &[(3, "circular_repeats"), stages(2), (2, "layers_per_stage")], &[3, 1, 2, 1]),
        Form { name: "layer by layer", declared: Declared::Apart(Stack { layers }), layout: grid(&[WIDTH], &[3]) },
        Form {
            name: "every second layer",
            declared: Declared::Cycles(Cycles([layer().stacked(LAYERS / 2), layer().stacked(LAYERS / 2)])),
            layout: grid(&[LAYERS / 2, WIDTH], &[2, 3]),
        },
    ]
}

impl Form {
    /// The layers of each value.
    fn layers(&self) -> Vec<Vec<usize>> {
        match self.declared {
            Declared::Stacked(_) => vec![(0..LAYERS).collect()],
            Declared::Apart(_) => (0..LAYERS).map(|layer| vec![layer]).collect(),
            Declared::Cycles(_) => vec![(0..LAYERS).step_by(2).collect(), (1..LAYERS).step_by(2).collect()],
        }
    }

    /// The bytes of all layers, of those of the values.
    fn in_order(&self, values: &[Array]) -> Vec<u8> {
        let bytes: Vec<Vec<u8>> = values.iter().map(|array| array.get().expect("a value").bytes().to_vec()).collect();
        let of_layer = bytes.iter().map(Vec::len).sum::<usize>() / LAYERS;
        let layers = self.layers().into_iter().flatten();
        let mut rows: Vec<(usize, &[u8])> = layers.zip(bytes.iter().flat_map(|bytes| bytes.chunks(of_layer))).collect();
        rows.sort_by_key(|(layer, _)| *layer);
        rows.into_iter().flat_map(|(_, row)| row.to_vec()).collect()
    }

    /// The value on the devices, as the form has it.
    fn arrays(&self, value: &Literal) -> Vec<Array> {
        let params = self.declared.leaves();
        let rows: Vec<&[u8]> = value.bytes().chunks(value.bytes().len() / LAYERS).collect();
        let parts = self
            .layers()
            .into_iter()
            .map(|layers| layers.into_iter().flat_map(|layer| rows[layer].to_vec()).collect::<Vec<u8>>());
        let typed = parts.zip(&params).map(|(bytes, param)| {
            let literal = Literal::from_bytes(param.spec.ty.clone(), bytes).expect("as many bytes");
            Array::put(&client(), &literal, &self.layout).expect("put")
        });
        typed.collect()
    }

    fn specs(&self) -> Vec<ArraySpec> {
        let types = self.declared.leaves().into_iter().map(|param| param.spec.ty);
        types.map(|ty| ArraySpec { ty, layout: self.layout.clone() }).collect()
    }
}

#[test]
fn layers_come_back_in_any_form() {
    let value = literal(&TensorType::new(DType::F32, &[LAYERS, WIDTH]), 5);
    let devices: Vec<usize> = (0..8).collect();
    for from in forms() {
        let directory = tempfile::tempdir().expect("a folder");
        let mut checkpointer = Checkpointer::new(&config(directory.path(), 0), Start::Fresh).expect("a directory");
        let saved = checkpointer.save(about(1), &from.declared, &from.arrays(&value));
        saved.unwrap_or_else(|error| panic!("{}: {error}", from.name));
        checkpointer.finish().expect("written");
        let checkpoint = Checkpoint::open(directory.path().join("step-00000001")).expect("a checkpoint");
        let stored: Vec<(String, String)> =
            checkpoint.values().map(|(path, ty)| (path.to_owned(), ty.to_string())).collect();
        assert_eq!(stored, [("layers.up".to_owned(), format!("f32[{LAYERS},{WIDTH}]"))], "{}", from.name);
        for to in forms() {
            let loaded = checkpoint.load(&to.declared, &to.specs(), &client(), &devices);
            let loaded = loaded.unwrap_or_else(|error| panic!("{} to {}: {error}", from.name, to.name));
            assert_eq!(to.in_order(&loaded), value.bytes(), "{} to {}", from.name, to.name);
        }
    }
}

#[test]
fn replicas_are_a_dimension_of_their_own() {
    let with = |replicas: usize, layers: &[(usize, &str)]| {
        let mut up = layer().stacked_over(layers);
        up.spec.ty.dims.insert(0, replicas);
        up.spec.axes.insert(0, Name::new("diloco"));
        Stacked { layers: Weights { up } }
    };
    let directory = tempfile::tempdir().expect("a folder");
    let declared = with(2, &[(LAYERS, "layers")]);
    let dims = declared.layers.up.spec.ty.dims.clone();
    let value = literal(&TensorType::new(DType::F32, &dims), 9);
    let array = Array::put(&client(), &value, &grid(&dims, &[2, 2, 2])).expect("put");
    let mut checkpointer = Checkpointer::new(&config(directory.path(), 0), Start::Fresh).expect("a directory");
    checkpointer.save(about(1), &declared, &vec![array]).expect("saved");
    checkpointer.finish().expect("written");
    let checkpoint = Checkpoint::open(directory.path().join("step-00000001")).expect("a checkpoint");

    let other = with(2, &[(3, "circular_repeats"), (4, "layers")]);
    let read = checkpoint.load_on_host(&other, "").expect("the same replicas").leaves();
    assert_eq!(read[0].ty().dims.as_slice(), [2, 3, 4, WIDTH]);
    assert_eq!(read[0].bytes(), value.bytes());

    let error = checkpoint.check(&with(4, &[(LAYERS, "layers")])).expect_err("other replicas");
    assert!(matches!(error, CheckpointError::Replicas { expected: Some(4), found: Some(2), .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("layers.up is of 2 replicas in ") && text.contains("but of 4 replicas in the run"),
        "{text}"
    );
    let plain = Stacked { layers: Weights { up: layer().stacked(LAYERS) } };
    let error = checkpoint.check(&plain).expect_err("no replicas");
    assert!(error.to_string().contains("but of one model without replicas in the run"), "{error}");
}

#[test]
fn other_states_are_refused() {
    let directory = tempfile::tempdir().expect("a folder");
    let [folder] = &write(directory.path(), &[3])[..] else { panic!("one folder") };
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    let error = |change: &dyn Fn(&mut state::State<Param>)| {
        let mut state = declared();
        change(&mut state);
        checkpoint.check(&state).expect_err("another state")
    };
    let wider = error(&|state| state.matrix.spec.ty.dims[1] = 9);
    assert!(matches!(&wider, CheckpointError::Type { path, .. } if path == "matrix"), "{wider}");
    assert!(wider.to_string().starts_with("matrix is bf16[6,8] in \""), "{wider}");
    let other = error(&|state| state.wide.spec.ty.dtype = DType::F32);
    assert!(matches!(&other, CheckpointError::Type { path, .. } if path == "wide"), "{other}");

    let few = checkpoint.check(&vec![declared().step]).expect_err("another path");
    assert!(matches!(&few, CheckpointError::Missing { path, .. } if path == "0"), "{few}");
    meshloom::tree! {
        struct Less<T> {
            matrix: T,
            flagz: T,
        }
    }
    let State { matrix, flags, step, .. } = declared();
    let misnamed = checkpoint.check(&Less { matrix: matrix.clone(), flagz: flags }).expect_err("another path");
    assert!(misnamed.to_string().contains("has no flagz (did you mean \"flags\"?)"), "{misnamed}");
    meshloom::tree! {
        struct Least<T> {
            matrix: T,
            step: T,
        }
    }
    let more = checkpoint.check(&Least { matrix, step }).expect_err("fewer values");
    assert!(more.to_string().contains("has values flags, uneven and wide that the run lacks"), "{more}");

    let mut checkpointer = Checkpointer::new(&config(&directory.path().join("other"), 0), Start::Fresh).expect("one");
    let unnamed = checkpointer.save(about(1), &declared().step, &arrays(1).step).expect_err("no path");
    assert!(matches!(unnamed, CheckpointError::Path(..)), "{unnamed}");
    let (one, array) = (declared().step, arrays(1).step);
    let twice = checkpointer.save(about(1), &Twice([one.clone(), one]), &Twice([array.clone(), array]));
    let twice = twice.expect_err("two values of one path");
    assert!(matches!(&twice, CheckpointError::Path(path) if path == "one"), "{twice}");
    let small = Param::new(DType::S4, [8], &[""], Init::Constant(0.0));
    let array = Array::put(&client(), &literal(&small.spec.ty, 0), &ShardLayout::replicated(&[8], 8)).expect("put");
    let unsupported = checkpointer.save(about(1), &vec![small], &vec![array]).expect_err("four bits");
    assert!(unsupported.to_string().contains("0 is of type s4, which a checkpoint cannot hold"), "{unsupported}");
    let uneven = checkpointer.save(about(1), &declared(), &vec![arrays(1).step]).expect_err("other trees");
    assert!(matches!(uneven, CheckpointError::Count { expected: 5, found: 1 }), "{uneven}");
    // The state is written byte by byte: under another type the bytes are other numbers.
    for (dtype, dims) in [(DType::S32, [4, 6]), (DType::BF16, [4, 6]), (DType::F64, [4, 6]), (DType::F32, [6, 4])] {
        let declared = vec![Param::new(dtype, dims, &["", ""], Init::Constant(0.0))];
        let ty = TensorType::new(DType::F32, &[4, 6]);
        let array = Array::put(&client(), &literal(&ty, 0), &ShardLayout::replicated(&[4, 6], 8)).expect("put");
        let error = checkpointer.save(about(1), &declared, &vec![array]).expect_err("another type");
        let expected = format!("0 is declared as {}, but the state has f32[4,6]; ", declared[0].spec.ty);
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}
