"""Logprobs out of logits, some rows at a time: a plain log-softmax and its gradient, whatever the rows at a time."""

from __future__ import annotations

import pytest
import torch

from rljob_runtime.training.model import token_logprobs as module
from rljob_runtime.training.model.token_logprobs import Entropy, token_logprobs

ROWS, VOCABULARY, TARGETS = 7, 11, 16


@pytest.mark.parametrize("rows_at_a_time", [1, 3, ROWS, 100])
def test_they_and_their_gradient_are_those_of_a_log_softmax(monkeypatch, rows_at_a_time) -> None:
    """Rows with several targets, with the same one twice, and with none."""
    monkeypatch.setattr(module, "CHUNK_VALUES", rows_at_a_time * VOCABULARY)
    torch.manual_seed(rows_at_a_time)
    rows = torch.randint(ROWS - 1, (TARGETS,))
    targets = torch.randint(VOCABULARY, (TARGETS,))
    rows[3], targets[3] = rows[2], targets[2]
    weights = torch.randn(TARGETS, dtype=torch.float64)
    logits = (3 * torch.randn(ROWS, VOCABULARY, dtype=torch.float64)).requires_grad_()
    plain = logits.detach().clone().requires_grad_()

    found, entropy = token_logprobs(logits, rows, targets, temperature=1.7, dtype=torch.float64)
    every = torch.log_softmax(plain / 1.7, dim=-1)
    torch.testing.assert_close(found, every[rows, targets])
    torch.testing.assert_close(entropy, -(every.exp() * every).sum(-1)[rows])
    assert not entropy.requires_grad
    (found * weights).sum().backward()
    (every[rows, targets] * weights).sum().backward()
    torch.testing.assert_close(logits.grad, plain.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 100])
def test_the_entropys_gradient_is_that_of_a_log_softmax(monkeypatch, rows_at_a_time) -> None:
    monkeypatch.setattr(module, "CHUNK_VALUES", rows_at_a_time * VOCABULARY)
    torch.manual_seed(7)
    rows, targets = torch.randint(ROWS - 1, (TARGETS,)), torch.randint(VOCABULARY, (TARGETS,))
    weights, bonus = torch.randn(TARGETS, dtype=torch.float64), torch.randn(TARGETS, dtype=torch.float64)
    logits = (3 * torch.randn(ROWS, VOCABULARY, dtype=torch.float64)).requires_grad_()
    plain = logits.detach().clone().requires_grad_()

    how = {"temperature": 1.7, "dtype": torch.float64, "entropy": Entropy.WITH_GRADIENT}
    found, entropy = token_logprobs(logits, rows, targets, **how)
    every = torch.log_softmax(plain / 1.7, dim=-1)
    (found * weights + entropy * bonus).sum().backward()
    spread = -(every.exp() * every).sum(-1)[rows]
    (every[rows, targets] * weights + spread * bonus).sum().backward()
    torch.testing.assert_close(logits.grad, plain.grad, rtol=1e-11, atol=1e-13)


def test_the_half_precision_gradient_is_right_where_the_model_is_sure() -> None:
    """One less the probability is what counts there: rounded apart, the two parts would leave little of it."""
    logits = torch.zeros(1, 4, dtype=torch.bfloat16)
    logits[0, 1] = 9.0
    logits.requires_grad_()
    row, target = torch.tensor([0]), torch.tensor([1])
    logprobs, entropy = token_logprobs(logits, row, target, temperature=1.0, dtype=torch.float32, entropy=Entropy.NONE)
    assert not len(entropy)
    logprobs.sum().backward()
    wanted = 1 - torch.softmax(logits.detach().double(), -1)[0, 1]
    assert logits.grad is not None
    assert float(logits.grad[0, 1]) == pytest.approx(float(wanted), rel=2**-8)
