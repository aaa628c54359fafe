"""The page loads nothing, and no text of a model becomes markup or script in it."""

import html.parser
import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.samples import Sample, SampleOutcome
from rljob_runtime.samples.episode import SampleTurn
from rljob_runtime.samples.page import page
from tests.support.browser import dom
from tests.support.sample_episodes import EPISODE, episode_sample

HOSTILE = (
    '</script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'"> {{data}} \u2028'
)


def sample(response: str, number: int = 0, **changes: object) -> Sample:
    values = {
        "outcome": SampleOutcome.TRAINED,
        "reward": 1.0,
        "rewards": {"right": 1.0},
        "tokens": 5,
        "prompt": ({"role": "user", "content": "Why?"},),
    }
    where = {"round": 3, "prompt_id": "0.1", "sample": number, "attempt": 1}
    return Sample(response=response, **(where | values | changes))


REPORTS = [{"round": number, "reward": number / 10, "training": {"mismatch_kl": 0.001}} for number in (1, 2, 3)]


class Elements(html.parser.HTMLParser):
    """Elements of a document, with the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, text: str) -> None:
        if self._inside:
            self.scripts[-1] += text


@given(st.text(st.characters(codec="utf-8")) | st.just(HOSTILE))
def test_texts_are_data_and_come_back_as_they_were(text):
    built = page(text, REPORTS, [sample(text)])
    elements = Elements(built.text)
    assert len(elements.scripts) == 2
    data = json.loads(elements.scripts[0])
    assert (data["name"], data["samples"][0]["response"]) == (text, text)
    assert [tag for tag, _ in elements.found].count("img") == 0


def test_nothing_is_loaded_and_only_its_own_script_may_run():
    built = page("job", REPORTS, [sample(HOSTILE)])
    elements = Elements(built.text)
    attributes = {name for _, given in elements.found for name in given}
    assert not attributes & {"src", "href", "srcset", "action", "style"}
    assert not [name for name in attributes if name.startswith("on")]
    style = re.search(r"<style>(.*?)</style>", built.text, re.DOTALL)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)
    policy = next(
        given["content"] for _, given in elements.found if given.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for text in (style.group(1), elements.scripts[1]):
        assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    for call in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch("):
        assert call not in elements.scripts[1]


def test_older_samples_are_left_out_of_a_page_that_is_too_large():
    built = page("job", [], [sample("x" * 100, number) for number in range(10)], most=1000)
    assert 0 < built.samples < 10
    assert built.left_out == 10 - built.samples
    assert [one["sample"] for one in json.loads(Elements(built.text).scripts[0])["samples"]] == list(
        range(built.samples)
    )


EVALUATIONS = [
    {"name": "sums", "round": number, "responsesPerPrompt": 4, "average": 0.25 + number / 10, "averageError": 0.05}
    | {"passAt": {"1": {"value": 0.3}, "4": {"value": 0.5, "error": 0.1}}}
    for number in (0, 2)
]


@pytest.mark.timeout(600)
def test_a_browser_shows_each_evaluation_as_a_curve_with_error_bars(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page("job", REPORTS, [], evaluations=EVALUATIONS).text, encoding="utf-8")
    shown = dom(file, tmp_path)
    begin = shown.index("<figure><figcaption>Evaluation sums</figcaption>")
    figure = shown[begin : shown.index("</figure>", begin)]
    assert figure.count("<polyline") == 2
    assert figure.count('class="error c0"') == 2
    assert figure.count('class="error c1"') == 2
    assert ">avg@4<" in figure
    assert ">pass@4<" in figure


@pytest.mark.timeout(600)
def test_a_browser_shows_curves_histograms_and_samples(tmp_path):
    file = tmp_path / "page.html"
    answers = [sample(HOSTILE), sample("wrong", 1, reward=0.0), sample("lost", 2, outcome=SampleOutcome.FILTERED)]
    reports = [{**report, "idleTail": 0.25, "idleEnvironments": 0.5, "idleWeights": 0.125} for report in REPORTS]
    file.write_text(page("job <b>", reports, answers).text, encoding="utf-8")
    shown = dom(file, tmp_path)
    assert "<title>job &lt;b&gt;: samples</title>" in shown, "no text of a model ran"
    assert "round 3, reward 0.3" in shown
    assert "3 of 3 samples" in shown
    assert shown.count("<polyline") == 5
    assert "Idle share of the replicas' time" in shown
    assert shown.count('<span class="asked">Why?</span>') == 3, "the prompt is shown before a card is opened"
    assert "Reward (3)" in shown
    assert shown.count("<details") == 3
    assert "img" not in [tag for tag, _ in Elements(shown).found]


@pytest.mark.timeout(600)
def test_a_browser_shows_training_or_an_evaluation(tmp_path):
    """What a reader chooses is chosen here by a line more in the script, which keeps the page of each choice."""
    theirs = sample("theirs", 1, prompt_id="evaluation:sums/2.0", outcome=SampleOutcome.EVALUATED)
    others = sample("others", 2, prompt_id="evaluation:a-held/2.0", outcome=SampleOutcome.EVALUATED)
    built = page("job", REPORTS, [theirs, sample("mine"), others], evaluations=EVALUATIONS).text
    expected = {None: ["mine"], "": ["mine", "theirs", "others"], "evaluation sums": ["theirs"]}
    line = f"""const kept = {json.dumps(list(expected))}.map(chosen => {{
      if (chosen !== null) {{
        byId("set").value = chosen;
        byId("filters").dispatchEvent(new Event("input"));
      }}
      const view = document.createElement("section");
      view.className = "kept";
      view.append(...document.body.cloneNode(true).childNodes);
      return view;
    }});
    document.body.replaceChildren(...kept);"""
    file = tmp_path / "page.html"
    file.write_text(with_line(built, line), encoding="utf-8")
    _, *kept = dom(file, tmp_path).split('<section class="kept">')
    for shown, found in zip(expected.values(), kept, strict=True):
        select = found[found.index('<select id="set">') :]
        options = re.findall(r"<option[^>]*>([^<]*)</option>", select[: select.index("</select>")])
        assert options == ["all", "training", "evaluation a-held", "evaluation sums"]
        assert sorted(re.findall(r'<span class="start">([^<]*)</span>', found)) == sorted(shown)
        assert f"{len(shown)} of 3 samples" in found
        assert f"Reward ({len(shown)})" in found


@pytest.mark.timeout(600)
def test_a_browser_shows_the_turns_of_an_episode_as_a_conversation(tmp_path):
    """A card shows its inside when it is opened, so the test opens it as a click would."""
    file = tmp_path / "page.html"
    hostile = replace(EPISODE, turns=(*EPISODE.turns, SampleTurn(node=8, after=6, sampled=HOSTILE, finish="stop")))
    built = page("job", REPORTS, [episode_sample(hostile)]).text
    file.write_text(opened(built), encoding="utf-8")
    shown = dom(file, tmp_path)
    assert "<title>job: samples</title>" in shown, "no text of a model ran"
    body = shown[shown.index('<div class="body">') :]
    said = re.findall(
        r'<div class="turn ([a-z ]+)"><p class="role">([^<]*)</p>(?:<pre dir="auto">([^<]*)</pre>)?', body
    )
    assert [(kind, head.split(" ·")[0], text) for kind, head, text in said][:7] == [
        ("given system", "system", "Use the tool."),
        ("given user", "user", "47 * 68?"),
        ("sampled", "assistant, turn 1", '&lt;tool_call&gt;{"name": "calculate"}&lt;/tool_call&gt;'),
        ("given tool", "tool calculate", "3196"),
        ("sampled", "assistant, turn 2", "It is 3196."),
        ("given other", "given as tokens", "raw words"),
        ("sampled", "assistant, turn 3", "cut"),
    ]
    assert '<p class="call" dir="auto">calculate({"expression": "47 * 68"})</p>' in body
    assert body.count('class="branch">branch: from the beginning<') == 1
    assert "environment calc · episode truncated: the limit of turns was reached · forks 1 · tools calculate" in body
    assert "11 tokens sampled after 24 given · end stop · weights 3 · 0 s outside, 0.25 s in the model" in body
    assert "calc: 4 turns" in shown
    assert "img" not in [tag for tag, _ in Elements(shown).found]


def opened(built: str) -> str:
    """Return a page whose first card opens by itself."""
    return with_line(built, 'byId("list").firstChild.open = true;')


def with_line(built: str, line: str) -> str:
    """Return a page whose script and policy have a line more."""
    script = Elements(built).scripts[1]
    longer = f"{script}{line}"
    policies = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, longer)]
    return built.replace(script, longer).replace(*policies)
