"""Word problems: writes the Parquet files of examples/gsm8k-like.yaml, word problems with GSM8K's columns and answers.

`python -m hack.word_problems` writes them, one for training and one for evaluation; a test compares the files with
`split`.
"""

from __future__ import annotations

import random
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "runtime/rljob_runtime/data/shipped"
TRAIN, TEST = "word-problems.parquet", "word-problems-test.parquet"
TEST_PROBLEMS = 20
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn")
THINGS = ("figs", "eggs", "nuts", "pens", "cups", "maps")
SEED = 7


def problems() -> list[dict[str, str]]:
    """Return a problem for each sum of two digits; the answer ends with `#### SUM`, as in GSM8K."""
    drawn, found = random.Random(SEED), []
    for a in range(10):
        for b in range(10):
            name, things = drawn.choice(NAMES), drawn.choice(THINGS)
            question = f"{name} has {a} {things}, buys {b}. {a} + {b} ="
            found.append({"question": question, "answer": f"{name} has {a} + {b} = {a + b} {things}.\n#### {a + b}"})
    return found


def split() -> dict[str, list[dict[str, str]]]:
    """Return the problems of each file. No sum of the test is in training."""
    every = problems()
    test = set(random.Random(SEED).sample(range(len(every)), TEST_PROBLEMS))
    return {
        TRAIN: [one for number, one in enumerate(every) if number not in test],
        TEST: [one for number, one in enumerate(every) if number in test],
    }


def main() -> None:
    """Write the files."""
    import pyarrow
    from pyarrow import parquet

    for name, records in split().items():
        parquet.write_table(pyarrow.Table.from_pylist(records), FOLDER / name, compression="zstd")


if __name__ == "__main__":
    main()
