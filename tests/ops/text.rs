//! The text of every op reads back as the same op.

use meshloom::ir::{DType, Graph, GraphTextOptions, Literal, TensorType};
use meshloom::ops::{Constant, Op, Splat};

use crate::check::vjp_graph;
use crate::harness::{Entry, graph};

#[track_caller]
fn check_reads_back(graph: &Graph) {
    let options = GraphTextOptions { whole_constants: true, ..GraphTextOptions::default() };
    let text = graph.to_text(options);
    let read = Graph::from_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(read == *graph, "{text}\nread as\n{read}");
    assert_eq!(read.to_text(options), text);
}

/// Checks the text of the op of each case.
pub fn check_text(entries: &[&'static Entry]) {
    for entry in entries {
        let forward = |op: &Op, operands: &[_]| {
            graph(&entry.name, operands, |builder, inputs| {
                builder.push(op.clone(), inputs).unwrap_or_else(|error| panic!("{error}")).to_vec()
            })
        };
        for accept in &entry.accepts {
            check_reads_back(&forward(&accept.op, &accept.operands));
        }
        if entry.vjp_snapshot {
            check_reads_back(&vjp_graph(&forward(&entry.accepts[0].op, &entry.accepts[0].operands)));
        }
        for run in &entry.runs {
            let types: Vec<TensorType> = run.operands.iter().map(|operand| operand.ty.clone()).collect();
            check_reads_back(&forward(&run.op, &types));
        }
    }
}

/// NaNs with payloads, negative zeros, numbers too large for `f64`, bytes that stand for no number of the type.
#[test]
fn constants_keep_every_bit() {
    for dtype in DType::ALL {
        let width = dtype.byte_count();
        let elements = (0..=u8::MAX).flat_map(|high| [0, 1, 0x55, 0x80, 0xff].map(|low| (high, low)));
        let bytes: Vec<u8> = elements
            .flat_map(|(high, low)| (0..width).map(move |at| if at == width - 1 { high } else { low }))
            .collect();
        let ty = TensorType::new(dtype, &[bytes.len() / width]);
        let literal = Literal::from_bytes(ty, bytes).expect("as many bytes as the type has");
        let op = Op::from(Constant(Box::new(literal)));
        check_reads_back(&graph("constant", &[], |builder, _| builder.push(op, &[]).expect("a constant").to_vec()));
    }
    let bits = [f64::NAN.to_bits(), f64::NAN.to_bits() | 1, (-f64::NAN).to_bits(), 1, (-0.0f64).to_bits()];
    for number in [0.1, 1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY].into_iter().chain(bits.map(f64::from_bits)) {
        let op = Op::from(Splat::new(TensorType::new(DType::BF16, &[3]), number));
        check_reads_back(&graph("splat", &[], |builder, _| builder.push(op, &[]).expect("a splat").to_vec()));
    }
}
