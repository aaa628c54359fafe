"""RNG state: seeds, captures and restores every random generator that training code may use, as plain text."""

from __future__ import annotations

import base64
import json
import random

import numpy
import torch


def seed_all(seed: int, rank: int) -> None:
    """Seed every generator, differently on each rank."""
    random.seed(f"{seed}/{rank}")
    numpy.random.seed((seed + 7919 * rank) % 2**32)
    torch.manual_seed(seed + 7919 * rank)


def capture() -> str:
    """Capture the current state."""
    version, words, gauss = random.getstate()
    numpy_state = numpy.random.get_state(legacy=False)
    torch_states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        torch_states["cuda"] = torch.cuda.get_rng_state()
    return json.dumps(
        {
            "python": [version, list(words), gauss],
            "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
            "torch": {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in torch_states.items()},
        }
    )


def restore(text: str) -> None:
    """Restore a captured state.

    The generator of an absent device is skipped.
    """
    document = json.loads(text)
    version, words, gauss = document["python"]
    random.setstate((version, tuple(words), gauss))
    inner = document["numpy"]["state"]
    numpy.random.set_state(
        {**document["numpy"], "state": {**inner, "key": numpy.array(inner["key"], dtype=numpy.uint32)}}
    )
    states = {
        name: torch.frombuffer(bytearray(base64.b64decode(raw)), dtype=torch.uint8)
        for name, raw in document["torch"].items()
    }
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
