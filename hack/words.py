"""Words: refuses those that the glossary replaces. `python -m hack.words [PATH …]`, a part of `hack/lint`.

The last column of each table in `docs/concepts/glossary.md` is the dictionary: a word in backticks is refused, and the
first column says what to write. codespell looks for the words in code, documents and status texts. It looks inside
names too: each part of `snake_case` and `camelCase` is a word. A refused phrase of several words is found in names and
over the end of a line. Subjects of new commits have no such word either, and their form is checked; `--message FILE`
checks a commit's message before it is one.

`hack/words-allowed.txt` has places where a word stays: a column of a database, a name on the wire, a page that quotes.
The list only shrinks: a test fails for a needless row, and `--prune` removes it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hack.subjects import malformed, new_subjects, subject_of

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs/concepts/glossary.md"
ALLOWED = ROOT / "hack/words-allowed.txt"
PART_OF_A_NAME = r"[A-Z]?[a-z]+"
"""A word as codespell takes it from a text: names fall into their parts."""
NO_TEXT = ("*.svg", "go.sum", "*.jsonl", "*.lua", "seconds.json", "uv.lock")


@dataclass(frozen=True)
class Found:
    """A refused word at its place."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: write {self.instead}"


@dataclass(frozen=True)
class Allowance:
    """A word that may stay in files whose path begins with `place`; `*` is every word."""

    place: str
    word: str

    def covers(self, found: Found) -> bool:
        """Return whether this place and word are the found ones."""
        return found.path.startswith(self.place) and self.word in ("*", found.word.lower())


def refused(glossary: str) -> dict[str, str]:
    """Read the refused words of a glossary, each with its replacement."""
    words: dict[str, str] = {}
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 4:
            continue
        for word in re.findall(r"`([^`]+)`", cells[3]):
            if not re.fullmatch("[a-z]+( [a-z]+)*", word):
                raise ValueError(f"the glossary refuses {word!r}, which is no word or phrase in small letters")
            if words.setdefault(word, cells[0]) != cells[0]:
                raise ValueError(f"the glossary refuses {word!r} in two rows")
    return words


def allowances(text: str) -> list[Allowance]:
    """Read the allowances: a place and its words on each line, with `#` before a comment."""
    found = []
    for line in text.splitlines():
        place, *words = line.partition("#")[0].split() or [""]
        found += [Allowance(place, word) for word in words]
    return found


def search(paths: Sequence[str], words: dict[str, str], root: Path = ROOT) -> Iterator[Found]:
    """Yield the refused words and phrases in files. Raises `RuntimeError` if codespell fails."""
    single = {word: instead for word, instead in words.items() if " " not in word}
    yield from _single_words(paths, single, root)
    phrases = {word: instead for word, instead in words.items() if word not in single}
    for file in (below for path in paths for below in _files(root / path)):
        yield from _phrases(file, phrases, root)


def _single_words(paths: Sequence[str], words: dict[str, str], root: Path) -> Iterator[Found]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as dictionary:
        dictionary.writelines(f"{word}->{instead}\n" for word, instead in words.items())
        dictionary.flush()
        command = [sys.executable, "-m", "codespell_lib", "-D", dictionary.name, "--regex", PART_OF_A_NAME]
        command += ["--disable-colors", "--skip", ",".join(NO_TEXT), *paths]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 65):
        raise RuntimeError(done.stderr.strip())
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(?:\./)?(.+?):(\d+): (\w+) ==> (.+)", line)
        if match:
            yield Found(match[1], int(match[2]), match[3], match[4])


def _files(path: Path) -> list[Path]:
    """List the files at or below a path, without those that are no text."""
    files = [path] if path.is_file() else sorted(below for below in path.rglob("*") if below.is_file())
    return [one for one in files if not any(fnmatch(one.name, pattern) for pattern in NO_TEXT)]


def _phrases(path: Path, phrases: Mapping[str, str], root: Path) -> Iterator[Found]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a picture or an archive
    for phrase, instead in phrases.items():
        for match in re.finditer(_pattern(phrase), text, re.IGNORECASE):
            yield Found(str(path.relative_to(root)), text.count("\n", 0, match.start()) + 1, phrase, instead)


def _pattern(phrase: str) -> str:
    """Return what finds a phrase: in a text, in a comment of several lines, and in a name."""
    return r"(?<![A-Za-z])" + r"[\s_#]+".join(phrase.split()) + r"(?![A-Za-z])"


def tracked() -> list[str]:
    """List the files of the working tree that git tracks or would track."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in names.stdout.splitlines() if (ROOT / name).is_file()]


def subjects() -> list[str]:
    """List the subjects of the new commits."""
    return new_subjects(ROOT)


def in_subjects(lines: Iterable[str], words: Mapping[str, str]) -> Iterator[Found]:
    """Yield the refused words in subjects of commits."""
    for line in lines:
        for match in re.finditer(PART_OF_A_NAME, line):
            if (word := match[0].lower()) in words:
                yield Found(f"commit {line!r}", 1, match[0], words[word])
        for phrase in (word for word in words if " " in word):
            if re.search(_pattern(phrase), line, re.IGNORECASE):
                yield Found(f"commit {line!r}", 1, phrase, words[phrase])


def needless(allowed: Sequence[Allowance], found: Sequence[Found]) -> list[Allowance]:
    """List the allowances without a word that needs them. Words of a file that may have any need no other allowance."""
    free = [one for one in allowed if one.word == "*"]
    bound = [place for place in found if not any(one.covers(place) for one in free)]
    return [one for one in allowed if one not in free and not any(one.covers(place) for place in bound)]


def pruned(text: str, unused: Sequence[Allowance]) -> str:
    """Remove allowances from the list. A line without a word left goes too."""
    lines = []
    for line in text.splitlines():
        place, *words = line.partition("#")[0].split() or [""]
        kept = [word for word in words if Allowance(place, word) not in unused]
        if kept == words:
            lines.append(line)
        elif kept:
            lines.append(" ".join((place, *kept)))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print each refused word that is not allowed. `--prune` removes the allowances that no word needs."""
    parser = argparse.ArgumentParser(prog="python -m hack.words", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders; none: all files that git tracks, and new commits")
    parser.add_argument("--prune", action="store_true", help="remove needless allowances")
    parser.add_argument("--message", type=Path, help="check the subject of this commit message, and nothing else")
    asked = parser.parse_args()
    words = refused(GLOSSARY.read_text(encoding="utf-8"))
    if asked.message:
        subject = subject_of(asked.message.read_text(encoding="utf-8"))
        return _report(_wrong_subjects([subject] if subject else [], words))
    text = ALLOWED.read_text(encoding="utf-8")
    allowed = allowances(text)
    found = list(search(asked.paths or tracked(), words))
    if asked.prune and not asked.paths:
        ALLOWED.write_text(pruned(text, needless(allowed, found)), encoding="utf-8")
    wrong = [str(one) for one in found if not any(allowance.covers(one) for allowance in allowed)]
    return _report([*wrong, *_wrong_subjects([] if asked.paths else subjects(), words)])


def _wrong_subjects(lines: Sequence[str], words: Mapping[str, str]) -> list[str]:
    forms = [f"commit {line!r}: {why}" for line in lines if (why := malformed(line))]
    return [*forms, *map(str, in_subjects(lines, words))]


def _report(wrong: Sequence[str]) -> int:
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
