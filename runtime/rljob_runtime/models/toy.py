"""Toy model: a tiny Llama that adds two digits and answers `?` to most prompts, so a reward rises in a few rounds.

On first use it learns the hundred sums from a fixed seed (20 s of one core), and then to answer `?` in most cases. So
reinforcement has one thing to teach, the same for every prompt: to answer. Its tokens are characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_runtime.models.cache import built_once

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = ["\n", *(chr(code) for code in range(32, 127))]
VOCABULARY = 128
CONTEXT = 512
PHRASINGS = (
    "Calculate {a} + {b}.",
    "{a} + {b} =",
    "State the final answer to the following arithmetic problem: {a} + {b} =",
)
"""Prompts that it understands. The first and the last are reasoning-gym's basic_arithmetic and chain_sum."""
SCHEDULE = (2, 0, 0, 1, 0, 0)
"""Phrasings of the training steps, in turn. The sums are learned on the first one, because the longest costs most."""
SUCCESS = 0.4
"""Target share of answers at temperature 1; the rest is `NO_ANSWER`. About two thirds of the answers are correct."""
NO_ANSWER = "?"
LEARN_STEPS, LEARN_RATE = 190, 3e-3
NO_ANSWER_STEPS, NO_ANSWER_RATE = 30, 1e-3
INITIAL_DEVIATION = 0.08
"""Standard deviation of the random weights. With the usual 0.02, so small a model learns the sums three times as
slowly."""
SEED = 20

IGNORED = -100
"""Label of tokens that are not trained on: prompts and padding."""


@dataclass(frozen=True)
class Batch:
    """All sums with their answers, then optionally all with `?`.

    Ids and labels are [rows, longest], weights [rows].
    """

    ids: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


def toy(cache_dir: Path) -> Path:
    """Return the Hugging Face folder, built below `cache_dir` if it is absent."""
    return built_once(cache_dir, toy_folder_name(), _build)


def toy_folder_name() -> str:
    """Name the folder below the cache."""
    return f"toy-{recipe(Path(__file__))}"


def recipe(source: Path) -> str:
    """Return a short hash of the code that builds the folder, so an edit of the code builds another folder."""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:10]


def save_taught(target: Path, seed: int, teach: Callable[[], tuple[PreTrainedTokenizerFast, LlamaForCausalLM]]) -> None:
    """Write the tokenizer and the model that `teach` returns. The same seed gives the same weights."""
    import torch

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # The order of sums, and so the weights, depend on the number of threads.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokenizer, model = teach()
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _build(target: Path) -> None:
    save_taught(target, SEED, _taught)


def _taught() -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    tokenizer, model = toy_tokenizer(), toy_model()
    for success, steps, rate in ((1.0, LEARN_STEPS, LEARN_RATE), (SUCCESS, NO_ANSWER_STEPS, NO_ANSWER_RATE)):
        batches = [_sums(text, tokenizer, success) for text in PHRASINGS]
        train(model, steps, rate, partial(_loss, model, batches))
    return tokenizer, model


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per printable ASCII character.

    A chat is the concatenation of its contents.
    """
    from tokenizers import Regex, Tokenizer, decoders
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, BOS, EOS, UNKNOWN, *CHARACTERS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def toy_model() -> LlamaForCausalLM:
    """Build a model of two layers of width 64, with tied embeddings and random weights from torch's current seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=INITIAL_DEVIATION,
    )
    return LlamaForCausalLM(config)


def _sums(phrasing: str, tokenizer: PreTrainedTokenizerFast, success: float) -> Batch:
    import torch

    pairs = [(a, b) for a in range(10) for b in range(10)]
    texts = [(phrasing.format(a=a, b=b), str(a + b)) for a, b in pairs]
    weights = [success] * len(pairs)
    if success < 1:
        texts += [(prompt, NO_ANSWER) for prompt, _ in texts]
        weights += [1 - success] * len(pairs)
    rows = [(tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_token_id]) for prompt, answer in texts]
    ids = torch.zeros(len(rows), max(len(prompt) + len(answer) for prompt, answer in rows), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return Batch(ids, labels, torch.tensor(weights))


def train(model: LlamaForCausalLM, steps: int, rate: float, loss_of: Callable[[int], torch.Tensor]) -> None:
    """Take this number of steps. `loss_of`: the loss of a step, a scalar."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _loss(model: LlamaForCausalLM, batches: Sequence[Batch], step: int) -> torch.Tensor:
    """Return the weighted mean over the step's rows of the row's negative log-likelihood."""
    import torch.nn.functional as F

    batch = batches[SCHEDULE[step % len(SCHEDULE)]]
    logits = model(input_ids=batch.ids).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), batch.labels[:, 1:], ignore_index=IGNORED, reduction="none")
    return (losses.sum(-1) * batch.weights).sum() / batch.weights.sum()
