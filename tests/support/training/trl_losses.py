"""TRL's losses on fixed tensors, as numbers in `trl_losses.json`.

TRL is no dependency of the tests. To write the file again, unpack TRL's wheel into a folder and run

    pip download trl==1.16.0 --no-deps -d FOLDER && unzip FOLDER/trl-*.whl -d FOLDER
    PYTHONPATH=FOLDER python -m tests.support.training.trl_losses
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

FILE = Path(__file__).with_suffix(".json")
LENGTHS = (5, 3, 8, 1, 6, 4)
LONGEST = 10
ADVANTAGES = (1.2, -0.4, 0.9, -1.7, 0.0, -0.3)
BETA = 0.05

# By kind: TRL's settings. TRL's CISPO bounds the ratio by epsilon_high itself.
KINDS: dict[str, dict[str, Any]] = {
    "GRPO": {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    "DrGRPO": {"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    "DAPO": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    "GSPO": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 3e-4,
        "epsilon_high": 4e-4,
    },
    "CISPO": {"loss_type": "cispo", "epsilon_low": 1.0, "epsilon_high": 5.0},
}


def tensors() -> dict[str, Tensor]:
    """Log-probabilities of padded responses, [response, token], and their mask, all in float64."""
    shape = len(LENGTHS), max(LENGTHS)
    generator = torch.Generator().manual_seed(17)
    old = -3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.05
    new = old + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    new[2, 1] = old[2, 1] + 2.5  # beyond CISPO's bound
    reference = old + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    return {"new": new, "old": old, "reference": reference, "mask": mask}


def compute(settings: dict[str, Any], beta: float) -> dict[str, Any]:
    """Return TRL's loss, and its gradient to the log-probability of each token that counts."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    given = tensors()
    new, mask = given["new"].requires_grad_(), given["mask"].to(torch.int64)
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value, sync_gradients=True
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        _entropy_bonus_enabled=False,
        accelerator=accelerator,
        _metrics={"train": defaultdict(list)},
        **{"importance_sampling_level": "token", **settings},
    )
    inputs = {
        "prompt_ids": torch.zeros(len(LENGTHS), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.int64),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64),
        "old_per_token_logps": given["old"],
        "ref_per_token_logps": given["reference"],
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    metrics = {name.replace("/", "_"): values[0] for name, values in trainer._metrics["train"].items()}
    assert new.grad is not None
    return {"loss": float(loss.detach()), "gradient": new.grad[given["mask"]].tolist(), "metrics": metrics}


def compute_rloo() -> dict[str, Any]:
    """Return TRL's RLOO where trainer and sampler agree: it multiplies the ratios of a response, which are 1 there."""
    from trl.trainer.rloo_trainer import RLOOTrainer

    given = tensors()
    new, mask = given["new"].requires_grad_(), given["mask"].to(torch.int64)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        epsilon_low=0.2,
        epsilon_high=0.2,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(gather=lambda value: value, reduce=lambda value, reduction: value),
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": torch.zeros(len(LENGTHS), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.int64),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64),
        "old_logps": (new.detach() * mask).sum(1),
    }
    RLOOTrainer._compute_loss(trainer, None, inputs).backward()
    assert new.grad is not None
    return {"gradient": new.grad[given["mask"]].tolist()}


def main() -> None:
    """Write the file."""
    from trl import __version__

    found = {
        f"{kind}{' with KL' if beta else ''}": compute(KINDS[kind], beta) for kind in KINDS for beta in (0.0, BETA)
    }
    found["RLOO"] = compute_rloo()
    FILE.write_text(json.dumps({"trl": __version__, "losses": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
