"""
Writes the files of `test/jax/data`: training steps as StableHLO text, and samples of the
results that JAX gives for the arguments of `support.jax_files`.

    PYTHONPATH=.:test .venv-jax/bin/python test/jax/export.py
"""

from __future__ import annotations

import gzip
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from support.jax_files import FOLDER, sample, step_arguments
from support.jax_models import MODELS, dropout

from distir.jax.pytrees import argument_prefixes, leaves_of

NAMES = ("mlp", "gpt_scan", "vit", "resnet", "moe", "dropout")


def main() -> None:
    # Paths of this machine are no part of the files.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        step = (MODELS | {"dropout": dropout})[name]()
        lowered = jax.jit(step.function, donate_argnums=0, keep_unused=True).lower(
            *step.args
        )
        text = lowered.as_text(debug_info=True)
        packed = gzip.compress(text.encode(), mtime=0)
        (FOLDER / f"{name}.mlir.gz").write_bytes(packed)
        found = leaves_of(step.args, argument_prefixes(step.function, len(step.args)))
        leaves, tree = jax.tree_util.tree_flatten(step.args)
        kinds = {
            n: (leaf.shape, np.dtype(leaf.dtype))
            for n, leaf in zip(found.names, leaves, strict=True)
        }
        given = step_arguments(kinds).values()
        results = jax.jit(step.function)(*jax.tree_util.tree_unflatten(tree, given))
        rows = [sample(np.asarray(x)) for x in jax.tree_util.tree_leaves(results)]
        np.save(FOLDER / f"{name}.npy", np.asarray(rows, np.float32))


if __name__ == "__main__":
    main()
