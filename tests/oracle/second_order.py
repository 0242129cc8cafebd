"""A product of a Hessian with a vector, through a loop, a checkpoint and a branch; `tests/compiler/second_order.rs` has the numbers.

    python tests/oracle/second_order.py            prints them
    python tests/oracle/second_order.py --check    compares with those in the test
"""

import argparse
import re
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import numpy as np


def f(parameters):
    h, w = parameters

    def step(h, w):
        h = jax.checkpoint(lambda h, w: jnp.tanh(h @ w))(h, w)
        return jax.lax.cond(h.sum() > 0, jnp.sin, jnp.exp, h), jnp.square(h).sum()

    h, out = jax.lax.scan(step, h, w)
    return jnp.exp(h).sum() + (out * out).sum()


def tensor(shape, start):
    return jnp.sin(0.7 * (start + jnp.arange(np.prod(shape), dtype=jnp.float64))).reshape(shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the test instead of printing")
    arguments = parser.parse_args()

    parameters = tensor((3,), 0), tensor((4, 3, 3), 3)
    direction = tensor((3,), 40), tensor((4, 3, 3), 43)
    value, gradient = jax.value_and_grad(f)(parameters)
    _, product = jax.jvp(jax.grad(f), (parameters,), (direction,))
    norms = [jnp.linalg.norm(x[1].ravel()) for x in (gradient, product)]
    numbers = np.array([value, *gradient[0], *product[0], *norms])
    if arguments.check:
        text = (Path(__file__).parent.parent / "compiler" / "second_order.rs").read_text()
        listed = re.search(r"const JAX: &\[f64\] = &\[(.*?)\];", text, re.DOTALL)[1]
        stored = np.array([float(number) for number in listed.replace("\n", "").split(",") if number.strip()])
        error = np.linalg.norm(stored - numbers) / np.linalg.norm(numbers)
        print(f"relative error {error:.1e}")
        raise SystemExit(0 if error <= 1e-13 else 1)
    print(",\n".join(f"    {number!r}" for number in numbers.tolist()))


if __name__ == "__main__":
    main()
