"""An agent with a second try: see second-try-smollm2.yaml. It needs nothing but Python."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from typing import Any

ANSWER_TOKENS = 20
"""Most tokens of an answer."""
CORRECTED = 0.5
"""Worth of a right second answer: the first one should be right."""
NUMBER = 0.1
"""Share of the reward for any number: without it, a model that says none learns slowly."""


def number_of(text: str) -> int | None:
    """Return the last number of an answer; None without one."""
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None


def hint(said: int | None, right: int) -> str:
    """Return what the environment says of a wrong answer."""
    if said is None:
        return "That is no number. Try again."
    return f"{said} is too {'small' if said < right else 'large'}. Try again."


def reward_of(said: list[int | None], right: int) -> float:
    """Return the reward of the answers, of which the last may be right.

    >>> [reward_of(said, 105) for said in ([105], [95, 105], [95, 115], [95, None])]
    [1.0, 0.55, 0.1, 0.0]
    """
    worth = 0.0 if said[-1] != right else 1.0 if len(said) == 1 else CORRECTED
    return round((1 - NUMBER) * worth + NUMBER * (said[-1] is not None), 6)


def ask(messages: list[dict[str, Any]]) -> str:
    """Return the model's answer. A failure ends the program: without a result, the episode is tried again."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": ANSWER_TOKENS}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"] or "")


def main() -> None:
    """Ask, and once more with a hint if the answer is wrong; write the reward."""
    with open(os.environ["RLJOB_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    messages, right = list(task["messages"]), int(task["record"]["answer"])
    said: list[int | None] = []
    while True:
        text = ask(messages)
        said.append(number_of(text))
        if said[-1] == right or len(said) == 2:
            break
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": hint(said[-1], right)}]
    first, corrected = float(said[0] == right), float(len(said) == 2 and said[1] == right)
    metrics = {"right_first": first, "corrected": corrected}
    with open(os.environ["RLJOB_RESULT"], "w", encoding="utf-8") as file:
        json.dump({"reward": reward_of(said, right), "metrics": metrics}, file)


if __name__ == "__main__":
    main()
