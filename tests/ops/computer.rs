//! Computes the graphs of the checks in two ways. The reference interpreter takes each case alone, in the test of its
//! op. XLA takes many cases in one program, in a test of all ops, and only a share of them in the small tier. Both
//! results are compared with the same values.

use std::sync::OnceLock;

use meshloom::emit::{EmitOptions, EmittedModule, emit};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::{Graph, Literal, verify};
use meshloom::ops::Op;
use meshloom::pjrt::{Buffer, Client, CompileOptions, Executable, ExecuteOptions, ProgramFormat};

use support::cases::cases;
use support::interpret::interpret;

/// The one that computes: the interpreter or XLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Interpreter,
    Xla,
}

impl By {
    pub fn run(self, graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
        self.program(graph).run(inputs)
    }

    pub fn program(self, graph: &Graph) -> Program<'_> {
        match self {
            By::Interpreter => {
                verify(graph).unwrap_or_else(|error| panic!("{error}"));
                Program::Interpreted(graph)
            }
            By::Xla => Program::compile(graph),
        }
    }
}

fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| support::client_of(1)).clone()
}

/// Options with the least optimization, as these programs run for microseconds.
fn options() -> CompileOptions {
    CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::default() }
}

pub fn emitted(graph: &Graph) -> EmittedModule {
    verify(graph).unwrap_or_else(|error| panic!("{error}"));
    emit(graph, EmitOptions { omit_metadata: true, ..EmitOptions::default() }).expect("a module")
}

/// A graph that can be run.
pub enum Program<'g> {
    Interpreted(&'g Graph),
    Compiled(Executable),
}

impl Program<'static> {
    pub fn compile(graph: &Graph) -> Program<'static> {
        Program::compile_on(&client(), graph, ProgramFormat::Hlo)
    }

    pub fn compile_on(client: &Client, graph: &Graph, format: ProgramFormat) -> Program<'static> {
        let module = emitted(graph);
        let compiled = client.compile(&module.bytes, &options().with_format(format));
        let explain = |error| {
            let text = print(&module.decode().expect("a module"), &TextOptions::canonical());
            let start: String = text.chars().take(4000).collect();
            panic!("{} as {format:?}: {error}\n{start}", graph.name())
        };
        Program::Compiled(compiled.unwrap_or_else(explain))
    }
}

impl Program<'_> {
    pub fn run(&self, inputs: &[Literal]) -> Vec<Literal> {
        match self {
            Program::Interpreted(graph) => interpret(graph, inputs),
            Program::Compiled(executable) => {
                let put = |literal| Buffer::from_literal(executable.client(), literal, 0).expect("put");
                let inputs: Vec<Buffer> = inputs.iter().map(put).collect();
                let outputs = executable.execute(&[inputs], &ExecuteOptions::default()).expect("execution");
                outputs[0].iter().map(|buffer| buffer.to_literal().expect("get")).collect()
            }
        }
    }
}

/// Custom calls run code of others: the one in the table calls XLA's own `TopK`, which only XLA can compile.
pub const NOT_INTERPRETED: [&str; 1] = ["CustomCall"];

/// Whether the interpreter knows an op. It knows all element types.
pub fn is_interpreted(op: &Op) -> bool {
    let knows_body = |body: &Graph| body.nodes().all(|node| is_interpreted(node.op()));
    !NOT_INTERPRETED.contains(&op.variant()) && op.regions().all(|body| knows_body(body))
}

/// Checks cases. The interpreter gets each case that it knows, alone. XLA gets `few` of these cases in the small tier,
/// and as many of the others, in programs of `size` cases.
pub fn check_by<T: Sync>(
    by: By,
    name: &str,
    [few, size]: [usize; 2],
    all: &[T],
    is_interpreted: impl Fn(&T) -> bool,
    check: impl Fn(&[&T]) + Sync,
) {
    let (known, others): (Vec<&T>, Vec<&T>) = all.iter().partition(|case| is_interpreted(case));
    match by {
        By::Interpreter => known.iter().for_each(|case| check(&[case])),
        By::Xla => {
            let chosen = [cases(name, few, known), cases(name, few, others)].concat();
            in_chunks(&chosen, size, check);
        }
    }
}

/// Runs `f` on every chunk, two at a time.
pub fn in_chunks<T: Sync>(items: &[T], size: usize, f: impl Fn(&[T]) + Sync) {
    let chunks: Vec<&[T]> = items.chunks(size).collect();
    std::thread::scope(|scope| {
        let run = |offset: usize| chunks.iter().skip(offset).step_by(2).for_each(|chunk| f(chunk));
        let handle = scope.spawn(move || run(0));
        run(1);
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
