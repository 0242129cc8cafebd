"""The loss of a large vocabulary and its gradients in JAX on one CPU device, to stand beside meshloom's.

    python benches/jax/loss.py --tokens 1024 --embed 512 --vocab 131072 --chunks 4           five lines of seconds and loss
    python benches/jax/loss.py --tokens 1024 --embed 512 --vocab 131072 --chunks 1 --serve   as step.py --serve

With one chunk, all logits at once: the target's logit is picked by comparison, and the backward pass is `softmax - one-hot`.
With more, the same mathematics as meshloom's loss in chunks: a scan whose iterations make loss and gradients together, kept
for the backward pass by a custom VJP. The `ready` line has the bytes of temporaries.
"""

import argparse
import functools
import sys
import time

import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import numpy as np
from jax import lax


def losses(logits, targets):
    """Of each token: the cross entropy, and the logsumexp of its logits."""
    highest = logits.max(-1, keepdims=True)
    log_total = jnp.log(jnp.exp(logits - highest).sum(-1)) + highest[:, 0]
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, 1) == targets[:, None]
    return log_total - jnp.where(is_target, logits, 0.0).sum(-1), log_total


def of_logits(logits, targets, log_total, weights):
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, 1) == targets[:, None]
    return (jnp.exp(logits - log_total[:, None]) - is_target) * weights[:, None]


@jax.custom_vjp
def token_losses(logits, targets):
    return losses(logits, targets)[0]


def token_losses_forward(logits, targets):
    found, log_total = losses(logits, targets)
    return found, (logits, targets, log_total)


def token_losses_backward(kept, ct):
    return of_logits(*kept, ct), None


token_losses.defvjp(token_losses_forward, token_losses_backward)


def whole(x, matrix, targets, weights):
    return (token_losses(x @ matrix, targets) * weights).sum()


def dealt_out(x, chunks):
    return jnp.swapaxes(x.reshape(x.shape[0] // chunks, chunks, *x.shape[1:]), 0, 1)


def loss_and_gradients(chunks, x, matrix, targets, weights):
    def body(carry, chunk):
        loss, of_matrix = carry
        x, targets, weights = chunk
        logits = x @ matrix
        found, log_total = losses(logits, targets)
        gradient = of_logits(logits, targets, log_total, weights)
        return (loss + (found * weights).sum(), of_matrix + x.T @ gradient), gradient @ matrix.T

    start = (jnp.zeros(()), jnp.zeros_like(matrix))
    stacked = tuple(dealt_out(value, chunks) for value in (x, targets, weights))
    (loss, of_matrix), of_x = lax.scan(body, start, stacked)
    return loss, (jnp.swapaxes(of_x, 0, 1).reshape(x.shape), of_matrix)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_chunks(chunks, x, matrix, targets, weights):
    return loss_and_gradients(chunks, x, matrix, targets, weights)[0]


def in_chunks_backward(chunks, kept, ct):
    of_x, of_matrix = kept
    return of_x * ct, of_matrix * ct, None, None


in_chunks.defvjp(loss_and_gradients, in_chunks_backward)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["tokens", "embed", "vocab", "chunks"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()

    def numbers(shape, scale):
        index = np.arange(np.prod(shape), dtype=np.int64)
        return ((index * 7 % 97) / 48.5 * scale - scale).astype(np.float32).reshape(shape)

    x = numbers((options.tokens, options.embed), 1.0)
    matrix = numbers((options.embed, options.vocab), 0.1)
    targets = (np.arange(options.tokens) * 7919 % options.vocab).astype(np.int32)
    weights = np.full(options.tokens, 1.0 / options.tokens, np.float32)
    inputs = jax.device_put((x, matrix, targets, weights))
    loss = whole if options.chunks == 1 else functools.partial(in_chunks, options.chunks)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*inputs).compile()

    def run():
        begin = time.perf_counter()
        value = float(jax.block_until_ready(step(*inputs))[0])
        print(time.perf_counter() - begin, value, flush=True)

    temporaries = step.memory_analysis().temp_size_in_bytes
    if not options.serve:
        print("temporaries", temporaries)
        for _ in range(5):
            run()
        return
    print("ready", temporaries, flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        run()


if __name__ == "__main__":
    main()
