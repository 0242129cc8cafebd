//! The batch-split layer: its halves wait for nothing of each other, and take turns in the program.

use meshloom::compile::Partitioned;
use std::sync::Arc;

use meshloom::ops::Op;
use meshloom::partition::{CollectiveKind, collective_of};
use meshloom::trace::{Function, MapTree, Tensor, value_and_grad};
use meshloom_nn::{Angles, DecoderLayer, RowInputs, TokenPlaces};

use super::interpreted;
use super::meshes::config;
use meshloom::ir::{DType, Graph, Literal};
use meshloom::sharding::Mesh;
use meshloom::trace::TensorSpec;
use support::experts::*;

const BATCH: usize = 16;
const LENGTH: usize = 16;

/// One layer of a family on a mesh, alone: its result, or the gradients in its input and parameters.
fn layer(model: &[&str], mesh: &str, gradients: bool) -> Arc<Graph> {
    let config = config(mesh, model).decoder().unwrap();
    let params: DecoderLayer<_> = config.parameters().layers.0.remove(0).layers.remove(0);
    let positions = TensorSpec::new(DType::S32, [BATCH, LENGTH]).with_axes(&["activation_batch", "activation_length"]);
    let x = stream(Rows { batch: BATCH, length: LENGTH, embed: config.architecture.embed });
    let specs = (x, params.map(|_, param| param.spec.clone()), (positions.clone(), positions));
    let run = |x: Tensor, params: &DecoderLayer<Tensor>, positions: Tensor, segments: Tensor| {
        let layers = &config.architecture.stack.cycle;
        let angles = Angles::new(positions, layers);
        let rows = RowInputs { angles: &angles, tokens: TokenPlaces::of_rows(segments) };
        config.layer(&layers[0], x, params, rows, None)
    };
    let function = Function::trace("layer", specs, |(x, params, (positions, segments))| {
        if gradients {
            let (loss, (x, params)) = value_and_grad((x, params), |(x, params)| {
                let (x, loss) = run(x, &params, positions, segments);
                x.square().sum(..) + loss.map_or(x.sum(..) * 0.0, |loss| loss)
            });
            (vec![loss, x], params.map(|_, &leaf| leaf))
        } else {
            (vec![run(x, &params, positions, segments).0], params)
        }
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

/// A dot, or a loop that computes a grouped one.
fn is_product(op: &Op) -> bool {
    matches!(op, Op::DotGeneral(_) | Op::RaggedDot(_) | Op::While(_))
}

/// The nodes of a program, in its order.
struct Program<'g> {
    graph: &'g Graph,
    /// For each node, which nodes it needs, directly or not.
    needs: Vec<Vec<bool>>,
}

impl<'g> Program<'g> {
    fn of(graph: &'g Graph) -> Program<'g> {
        let mut needs: Vec<Vec<bool>> = Vec::new();
        for (place, node) in graph.nodes().enumerate() {
            let mut own = vec![false; place];
            for source in node.operands().iter().filter_map(|&value| graph.defining_node(value)) {
                let source = source.id.index();
                own[source] = true;
                for (flag, &needed) in own.iter_mut().zip(&needs[source]) {
                    *flag |= needed;
                }
            }
            needs.push(own);
        }
        Program { graph, needs }
    }

    fn depends(&self, node: usize, on: usize) -> bool {
        on < node && self.needs[node][on]
    }

    /// Collectives along the axis of experts that move more than choices, in order.
    fn exchanges(&self, mesh: &Mesh) -> Vec<(usize, CollectiveKind)> {
        let axis = mesh.axis("expert").expect("an axis");
        let group = meshloom::ops::Group::new(mesh, &[axis]);
        let nodes = self.graph.nodes().enumerate();
        let of_tokens = nodes.filter_map(|(place, node)| {
            let (kind, own) = collective_of(node.op())?;
            let bytes = node.operands().iter().map(|&value| self.graph.ty(value).byte_count()).max()?;
            (*own == group && bytes >= LENGTH * 32 * 4).then_some((place, kind))
        });
        of_tokens.collect()
    }

    /// Matrix products that neither need a node nor are needed by it.
    fn beside(&self, node: usize) -> Vec<usize> {
        let products = self.graph.nodes().enumerate().filter(|(_, other)| is_product(other.op()));
        products
            .map(|(place, _)| place)
            .filter(|&place| !self.depends(place, node) && !self.depends(node, place))
            .collect()
    }

    /// The first product after a node in the program that needs it.
    fn first_use(&self, node: usize) -> usize {
        let products = self.graph.nodes().enumerate().filter(|(_, other)| is_product(other.op()));
        products.map(|(place, _)| place).find(|&place| self.depends(place, node)).unwrap_or(usize::MAX)
    }
}

const SPLIT: &[&str] = &["model.family=deepseek", "model.scan_layers=false", "model.batch_split=true"];
const WHOLE: &[&str] = &["model.family=deepseek", "model.scan_layers=false"];
const MESH: &str = "data=2,fsdp=2,expert=2";

#[test]
fn halves_stand_in_turns_and_wait_for_nothing_of_each_other() {
    let lowered = partitioned(&layer(SPLIT, MESH, false), MESH, &rules(&[]));
    let Partitioned { mesh, graph, .. } = lowered.partitioned().expect("a program");
    let program = Program::of(graph);
    let exchanges = program.exchanges(mesh);
    let kinds: Vec<CollectiveKind> = exchanges.iter().map(|&(_, kind)| kind).collect();
    let (gather, scatter) = (CollectiveKind::AllGather, CollectiveKind::ReduceScatter);
    assert_eq!(kinds, [gather, gather, scatter, scatter]);
    let [dispatch, other_dispatch, combine, other_combine] = [0, 1, 2, 3].map(|index| exchanges[index].0);
    assert!(program.depends(combine, dispatch) && program.depends(other_combine, other_dispatch));
    for (of_one, of_other) in
        [(dispatch, other_dispatch), (dispatch, other_combine), (other_dispatch, combine), (combine, other_combine)]
    {
        assert!(!program.depends(of_one.max(of_other), of_one.min(of_other)), "{of_one} {of_other}");
    }
    // Products of the other half come between a collective and the first product that needs it.
    for collective in [dispatch, other_dispatch, combine, other_combine] {
        let until = program.first_use(collective);
        let meanwhile =
            program.beside(collective).into_iter().filter(|&place| place > collective && place < until).count();
        assert!(meanwhile >= 3, "{meanwhile} products after node {collective}, until {until}");
    }
}

/// In a layer that is not cut, nothing of that kind is there to hide the exchanges: what this test looks for is of the
/// halves' making.
#[test]
fn a_whole_layer_has_nothing_between_exchange_and_use() {
    let lowered = partitioned(&layer(WHOLE, MESH, false), MESH, &rules(&[]));
    let Partitioned { mesh, graph, .. } = lowered.partitioned().expect("a program");
    let program = Program::of(graph);
    let exchanges = program.exchanges(mesh);
    assert_eq!(exchanges.len(), 2);
    let dispatch = exchanges[0].0;
    let until = program.first_use(dispatch);
    assert_eq!(program.beside(dispatch).into_iter().filter(|&place| place > dispatch && place < until).count(), 0);
}

/// Backwards as well, every exchange has products that could run beside it: those of the other half.
///
/// Small collectives that are ready together are combined, as the two gathers at the beginning of the backward pass
/// here would be; with real sizes they are not.
#[test]
fn halves_are_independent_backwards() {
    let graph = layer(SPLIT, MESH, true);
    let lowered = partitioned_without(&graph, MESH, &rules(&[]), &["combine-collectives"]);
    let Partitioned { mesh, graph, .. } = lowered.partitioned().expect("a program");
    let program = Program::of(graph);
    let exchanges = program.exchanges(mesh);
    let (gather, scatter) = (CollectiveKind::AllGather, CollectiveKind::ReduceScatter);
    let kinds: Vec<CollectiveKind> = exchanges.iter().map(|&(_, kind)| kind).collect();
    assert_eq!(kinds, [gather, gather, scatter, scatter, gather, gather, scatter, scatter]);
    for &(collective, kind) in &exchanges {
        let beside = program.beside(collective).len();
        assert!(beside >= 10, "{beside} products beside the {kind:?} at {collective}");
    }
    // The way back of one half does not wait for the other's.
    for (gather, scatter, other) in [(4, 6, 7), (5, 7, 6)] {
        let [gather, scatter, other] = [gather, scatter, other].map(|index: usize| exchanges[index].0);
        assert!(program.depends(scatter, gather) && !program.depends(other.max(gather), other.min(gather)));
    }
}

/// The numbers are those of the layer that is not cut.
#[test]
fn halves_give_what_the_whole_does() {
    let on_one = |model: &[&str], gradients: bool| {
        let graph = layer(model, "data=8", gradients);
        let mut inputs = random_inputs(&graph, 21);
        // Positions and segments.
        let count = inputs.len();
        let numbers: Vec<i32> = (0..BATCH * LENGTH).map(|index| (index % LENGTH) as i32).collect();
        let segments: Vec<i32> = numbers.iter().map(|position| position / 9).collect();
        inputs[count - 2] = Literal::from_slice(&[BATCH, LENGTH], &numbers).expect("positions");
        inputs[count - 1] = Literal::from_slice(&[BATCH, LENGTH], &segments).expect("segments");
        interpreted(&graph, &inputs)
    };
    for model in [["model.family=deepseek"], ["model.family=mixtral"], ["model.family=llama"]] {
        let whole = [&model[..], &["model.scan_layers=false"]].concat();
        let split = [&whole[..], &["model.batch_split=true"]].concat();
        check_equal(model[0], &on_one(&split, false)[..1], &on_one(&whole, false)[..1], 1e-6);
        check_equal(model[0], &on_one(&split, true), &on_one(&whole, true), 1e-5);
    }
}
