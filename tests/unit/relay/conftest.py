"""Fixtures of the relay's tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.settings import RelaySettings
from tests.support.relay import KEY, SETTINGS


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in shared memory, as in production."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="test-relay-", dir=shared if shared.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def relays(memory: Path) -> Iterator[Callable[..., Relay]]:
    """Makes relays that listen on this machine; all end with the test."""
    with ExitStack() as stack:

        def make(machine: str, incarnation: int = 0, settings: RelaySettings = SETTINGS, key: bytes = KEY) -> Relay:
            folder = memory / f"{machine}-{incarnation}"
            return stack.enter_context(Relay(RelayConfig(machine, incarnation, folder, key, settings, "127.0.0.1")))

        yield make


@pytest.fixture
def publisher(memory: Path) -> Iterator[Publisher]:
    """The trainer's side, publishing bfloat16."""
    with Publisher(memory / "trainer", KEY, SETTINGS, torch.bfloat16) as trainer:
        yield trainer
