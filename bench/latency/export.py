"""The rebuilt networks as an archive: `python -m bench latency export [NAME…]`.

Needs the packages of requirements.txt. Networks that are in the archive are kept unless named.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench.latency.catalog import SKELETONS
from bench.latency.skeletons import add_to_archive, names_in, without_weights

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 17


def run(*names: str) -> str:
    from bench.latency.networks import RECIPES

    failed, known = [], names_in(SKELETONS) if SKELETONS.is_file() else []
    for name in names or [name for name in RECIPES if name not in known]:
        began = time.monotonic()
        try:
            add_to_archive(SKELETONS, name, export(name))
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        except Exception as error:  # one that cannot be built does not stop the others
            traceback.print_exc()
            print(f"{name}: FAILED: {type(error).__name__}", flush=True)
            failed.append(name)
    size = SKELETONS.stat().st_size / 1e6
    return (
        f"{len(RECIPES)} recipes, archive of {size:.1f} MB; failed: {', '.join(failed) or 'none'}"
    )


def export(name: str) -> ModelProto:
    import onnx
    import torch

    from bench.latency.networks import RECIPES

    recipe = RECIPES[name]
    network, tensors = recipe.network(), recipe.tensors()
    with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
        target = Path(temporary) / f"{name}.onnx"
        torch.onnx.export(
            network,
            tuple(tensors.values()),
            target,
            dynamo=False,
            input_names=list(tensors),
            opset_version=OPSET,
        )
        return without_weights(onnx.load_model(target))
