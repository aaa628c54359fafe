"""Programs and runs: input and output of the sandbox, as plain values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Program:
    """Python source, run as a script by its own interpreter, with `stdin` as input."""

    source: str
    stdin: str = ""
    cpu_seconds: float = 30.0
    """Processor time of all its threads."""
    run_seconds: float = 60.0
    """Wall clock without the time that it waits for a processor: sleeping and blocking count, a busy machine does
    not."""
    memory_bytes: int = MEMORY_BYTES
    """Address space."""
    output_bytes: int = OUTPUT_BYTES
    """Largest stdout."""


class End(StrEnum):
    """How a program ended.

    All but the first are the program's fault. Failures of the sandbox raise `SandboxFailed`.
    """

    EXITED = "Exited"
    SIGNALLED = "Signalled"
    TIMED_OUT = "TimedOut"
    TOO_MUCH_OUTPUT = "TooMuchOutput"
    TOO_MUCH_WRITTEN = "TooMuchWritten"
    TOO_MANY_FILES = "TooManyFiles"
    TOO_MANY_THREADS = "TooManyThreads"
    HIDDEN = "Hidden"
    """It continued after its resource usage became unreadable."""


@dataclass(frozen=True)
class Run:
    """The result of a program.

    `code` is the exit status, or minus the signal.
    """

    end: End
    code: int
    stdout: str
    stderr: str
    """The last part."""
    cpu_seconds: float
    run_seconds: float

    @property
    def clean(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.end is End.EXITED and self.code == 0


class Layer(StrEnum):
    """A mechanism that keeps a program from foreign files.

    One is enough; each that works is used.
    """

    LANDLOCK = "Landlock"
    NAMESPACES = "Namespaces"


class SandboxFailed(Exception):
    """A failure of the sandbox, not of the program.

    The program could not start, was killed by another process, or never got a processor.
    """


class SandboxUnavailable(Exception):
    """This machine cannot confine a program.

    The message names what was tried and the results.
    """
