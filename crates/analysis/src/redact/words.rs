//! The words that compilers write themselves, and the beginnings of the custom calls that they know.

use std::sync::LazyLock;

use meshloom_hlo::opcode;
use rustc_hash::FxHashSet;

/// Words of XLA and JAX: primitives, transformations, fusions, attributes and configurations, and the keys that
/// analyses read.
const WORDS: &str = "\
    acc acos acosh add ahead alias aliasing aligned all allocate allocation and annotate any api arg argmax argmin \
    args argsort arithmetic array as asin asinh async at atan atanh attribute attributes axes axis backend barrier \
    batch batched before begin bessel between bf bit bitcast bitwise block body bool bounds branch branches \
    broadcast buffer buffering bundle bytes call callback called cbrt ceil chain channel checkpoint cholesky clamp \
    clone closed clz cmp collective collectives communication compare compiled complex composite compress \
    computation compute concat concatenate cond condition conditional conds config configs conj const constant \
    constraint contracting conv convert convolution copy core cos cosh cost count cp cpu cross ctas cube cublas cuda \
    cudnn cum cumlogsumexp cummax cummin cumprod cumsum custom cycles data debug default dense deps destination \
    device devices diag digamma dilated dim dimension dimensions dims div divide dma domain donated done dot dtype \
    duplicate dynamic edge eigenvectors eigh elapsed element elements emitter enable end entry epilogue eq equal erf \
    erfc estimate estimated exp expand explicit exponential f4e2m1fn f8e3m4 f8e4m3 f8e4m3b11fnuz f8e4m3fn f8e4m3fnuz \
    f8e5m2fnuz f8e8m0fnu false fft fill filter flag float floor flops fold format forward frontend fuse fused fusion \
    gamma gather ge gemm general generated generator geqrf get global gpu grad greater group groups gt gte gz handle \
    has hi hlo host householder id identity idx if imag impl implicit in index indexed indices induction infeed info \
    init inline inlineable inner input inputs int integer interior into inv invariant invoke iota is isfinite iter \
    iteration iterations jacobian jaxpr jit jnp jvp kcustom kernel key kind kinput kloop known koutput lax layout \
    layouts le leading left less level levels lgamma lhs linear linearize lo load local log logical logistic loop \
    lower lowered lowering lt lte lu main manual map mask mat matmul max maximum mean megascale memories memory mesh \
    meshes metadata mhlo microseconds min minimum minor mlir mode module modules mosaic most mpmd mul multimem \
    multiplier multiply n name names nan ne neg negate nested next none norm normal not num number nvshmem offload \
    offset on one onednn ones op opaque operand operands operation operations ops opt optimization or ord ordinal \
    original out outer outfeed output outputs pad padding pair pairs par param parameter parameters params partial \
    partialorder partition partitioned partitions pass pb pbroadcast per permutation permute phase physical pid \
    pinned pipelined pjit placement plan plus pmap pmax pmean pmin polygamma pop popcnt population pos positive pow \
    power ppermute pred prefetch prim primitive print priority prng prod product program proto psum pure pvary py \
    python qdwh qr ragged random ranges rank real recv reduce reducer reduction ref region remainder remat remats \
    rematted rendezvous replica replicated reshape residual result results rev reverse rhs right rng root rotate \
    round row rows rs rsqrt rule run same scalar scale scan scatter schedule scheduled scheduling scoped scratch sdy \
    search searchsorted segment select send sequence set shape shapes shard sharding shardings shards shift shmap \
    shuffle sides sign signed simple sin sine sinh size sizes slice sliced slices sm small snd sort sorted source \
    space sparse split spmd sqrt square squeeze stable stablehlo stack stages start stat state static step steps \
    stop store strategy stream stride strides stub sub subtract sum symbolic sync tail take tan tanh target tensor \
    thread threefry threefry2x32 tile tiles to token top total totalorder tpu trans transcendental transcendentals \
    transfer transpose triangular trip triton true tuple txt type types unary undefined uniform unknown unpinned \
    unreduced unroll unsigned unspecified unstack update updates use val value values var variable variables \
    variadic vector version vjp vmap vmem wait where while wide window with workspace wrapped xb xf xi xla xor xpose \
    xs xu ymm ynn ys zero zeros zeta";

/// Beginnings of the targets of custom calls that analyses ask for; what follows is a name like any other.
const TARGETS: &[&str] = &[
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "__cublas$",
    "__cudnn$",
    "__cudnn$convBackwardFilter",
    "__cudnn$convBackwardInput",
    "__cudnn$convBiasActivationForward",
    "__cudnn$convForward",
    "__cudnn$convForwardGraph",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "Pin",
    "Unpin",
];

/// Whether a word is one of a compiler's own: each of its parts between `_` and digits is one, or is a letter. Many
/// letters may be the digits of a number that stands for a text.
pub(super) fn is_known(word: &str) -> bool {
    static KNOWN: LazyLock<FxHashSet<&'static str>> = LazyLock::new(|| {
        let opcodes = opcode::names().flat_map(|name| name.split('-'));
        WORDS.split_whitespace().chain(opcodes).collect()
    });
    const MOST_LETTERS: usize = 2;
    let lower = word.to_ascii_lowercase();
    if KNOWN.contains(lower.as_str()) {
        return true;
    }
    let parts = || lower.split(|letter: char| letter == '_' || letter.is_ascii_digit()).filter(|part| !part.is_empty());
    parts().all(|part| (part.len() == 1 && part.is_ascii()) || KNOWN.contains(part))
        && parts().filter(|part| part.len() == 1).count() <= MOST_LETTERS
}

/// Splits the target of a custom call into the beginning that is known, and the rest.
pub(super) fn target_parts<'t>(target: &'t str, silent: &[&str]) -> (&'t str, &'t str) {
    let known = TARGETS.iter().chain(silent).filter(|known| target.starts_with(**known));
    target.split_at(known.map(|known| known.len()).max().unwrap_or(0))
}
