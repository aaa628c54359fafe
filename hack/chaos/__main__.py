"""`make chaos`: real jobs on the local cluster, and faults of every kind, until the jobs complete.

    python -m hack.chaos --every [--faults N] [--seed N] [--json F]
    python -m hack.chaos [--faults N] [--rows NAME …] [--agents | --switches] [--rounds N]
                         [--mode Asynchronous|OnPolicy] [--seed N] [--json F]
    python -m hack.chaos --turns 20 --episodes 1000 --faults 100 [--programs | --stateful]

With --every, three campaigns follow each other: of the plain job, of one with --agents and of one with --switches, the
last two with their own rows only. N faults are shared among them. The campaign after one that failed does not begin:
it would end the job and its cluster's state. Without --every there is one campaign.

With --agents, responses are episodes of a tool. A row of agents in --rows implies --agents. Without --rows, --agents
adds the rows of agents to those of every job. --switches does the same for rows of switches: machines of an
on-policy job then switch their tensor parallel size in each round.

With --turns, each episode has this number of turns, with one call of the tool in each. Without --rows, the rows are
those of long episodes. The last line then states the number of episodes. It also states their lost tokens, repeated
calls and false rewards, which must be 0. With --programs, a program plays each episode and calls its own tool: it
runs again after the loss of its runner. With --stateful, an episode that goes on with another runner executes its calls
again: some must be, and each with the same result.

Then the job is deleted. Pods that run after its end, and objects of it that are left after its deletion, are leaked.

Exit status: 0 if the job recovered from every fault within its bound, nothing was lost, nothing was trained on twice,
the job has completed and nothing is leaked; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hack import demo
from hack.interruption import run_to_end, unwind_on_signals
from hack.local_cluster import settings
from rljob_kube import kubeconfig

from . import every, leaks, long_episodes
from .campaign import Campaign, NotSteady
from .curve import rewards
from .faults.injector import Injector
from .faults.pods import NotPossible
from .history import check_volume
from .job import EPISODES_PER_UPDATE, JOB, KEEPS, ROLLS, manifest
from .job_watch import JobWatch
from .recovery import SETTLED
from .rows import AGENTS, MOVING, ROWS, SWITCHES, TOOLS
from .schedule import schedule
from .table import MOMENTS, Outcome, figures, table

NAMESPACE, NODES = "rljob-chaos", 4
LAST_ROUNDS = 5
TOLD_ROUNDS = 20
"""Of the rounds after the last fault, the number of each twentieth is printed."""
STALLED_SECONDS = 180.0
"""Seconds without a round after the last fault until the job counts as stalled."""
KEPT = Path("build/chaos-store")
"""Where the store of a campaign that failed is copied to."""


def main(argv: Sequence[str] | None = None) -> int:
    args = asked(argv)
    if args.every:
        return run_every(args)
    # SIGTERM unwinds like Ctrl-C, so that the present fault is undone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = prepare()
    injector = Injector(cluster.name, NAMESPACE)
    rows = rows_of(args)
    # One machine for each node that may be lost: two simultaneous losses are more than half.
    mode, documents = job_of(args, rows, cluster.nodes - 1)
    apply(documents)
    # Watch after the apply: before, it would report the job of an earlier campaign.
    watch = JobWatch(kubeconfig.load([cluster.kubeconfig]), NAMESPACE, JOB)
    progress = Progress(args.faults, watch)
    settled = SETTLED if args.turns is None else long_episodes.SETTLED
    campaign = Campaign(watch, injector, args.seed, progress.report, settled)
    planned = schedule(rows, args.faults, args.seed)
    trouble = play(campaign, planned, partial(complete, watch, injector, least_rounds(args)))
    volume = volume_of(cluster, injector)
    verdict = check_volume(volume)
    episodes = long_episodes.read(volume, verdict, args.turns) if args.turns is not None else None
    leaked = leaks.count(injector, JOB, ended=not trouble)
    outcomes, starts = progress.outcomes, campaign.starts.seconds
    missed = missed_of(args, episodes, outcomes)
    result = {
        "bench": "chaos",
        "seed": args.seed,
        "settings": {"faults": args.faults, "mode": mode, "nodes": cluster.nodes},
        "starts": starts,
        "rows": figures(outcomes, starts.values()),
        "faults": [vars(outcome) for outcome in outcomes],
        "trouble": trouble,
        "leaked": leaked,
        "check": verdict,
        "rewards": rewards(volume),
        "episodes": vars(episodes) if episodes is not None else None,
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1))
    print(table(result["rows"]))
    print_faults(outcomes, trouble, verdict)
    for text in missed:
        print(f"chaos: {text}")
    bad = sum(bool(outcome.wrong) for outcome in outcomes)
    line = last_line(len(outcomes), bad, trouble, verdict, leaked)
    print(line if episodes is None else f"{line} {episodes}")
    proved = not verdict.get("findings", True) and not missed and leaked == 0
    if proved and not bad and not trouble and len(outcomes) == args.faults:
        return 0
    print(f"chaos: the store is kept in {keep(volume, KEPT)}", file=sys.stderr)
    return 1


def job_of(args: argparse.Namespace, rows: Sequence[str], machines: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the mode of the job that these rows need, and its objects. Ends the program for rows of two jobs."""
    agents = args.agents or args.turns is not None or not AGENTS.isdisjoint(rows)
    switches = args.switches or not SWITCHES.isdisjoint(rows)
    if agents and switches:
        sys.exit("chaos: rows of agents and rows of switches need two jobs")
    mode, moves = "OnPolicy" if switches else args.mode, not MOVING.isdisjoint(rows)
    return mode, manifest(mode, machines, moves, agents, args.turns, switches, args.programs, args.stateful)


def play(campaign: Campaign, planned: Sequence[str], end: Callable[[], str]) -> str:
    """Play a campaign to its `end`, which returns why the job did not complete; return what went wrong, or ""."""
    try:
        campaign.steady(600)
        campaign.run(planned)
        return end()
    except (NotSteady, NotPossible) as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"


def missed_of(
    args: argparse.Namespace, episodes: long_episodes.LongEpisodes | None, outcomes: Sequence[Outcome]
) -> list[str]:
    """Return what a campaign of long episodes did not show."""
    if episodes is None:
        return []
    loses_runners = not long_episodes.LOSING_RUNNERS.isdisjoint(outcome.row for outcome in outcomes)
    return [*long_episodes.problems(episodes, args.episodes, loses_runners, args.programs, args.stateful)]


def run_every(args: argparse.Namespace) -> int:
    """Run the campaigns of every kind, each as a command of its own; see `every`."""
    unwind_on_signals()
    with tempfile.TemporaryDirectory(prefix="rljob-chaos-") as folder:
        json_file = args.json or Path(folder) / "chaos.json"
        found: list[dict[str, Any]] = []
        planned = every.parts(args.faults)
        for part in planned:
            file = part.file(json_file)
            file.unlink(missing_ok=True)
            print(f"chaos: campaign {part.name}: {part.faults} faults of {len(part.rows)} kinds", flush=True)
            status = run_to_end([sys.executable, "-m", "hack.chaos", *part.arguments(args.seed, json_file)])
            if file.exists():
                found.append(json.loads(file.read_text(encoding="utf-8")))
            if status:
                break
        all_ran = not status and len(found) == len(planned)
        print(every.summary(found, all_ran))
        return status or int(not all_ran)


def keep(volume: Path, folder: Path) -> Path:
    """Copy the stores of a campaign that failed: its volume ends with the cluster. Returns the folder of the copies."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in volume.rglob("state.db*"):
        target = folder / file.relative_to(volume)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder


def asked(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. Ends the program for those that do not fit together."""
    options = parser()
    args = options.parse_args(argv)
    if args.every and (args.rows or args.agents or args.switches or args.turns is not None or args.rounds):
        options.error("--every has campaigns of its own: without --rows, --agents, --switches, --turns and --rounds")
    if args.episodes and args.turns is None:
        options.error("--episodes needs --turns: only then does the store count them")
    if args.programs and args.turns is None:
        options.error("--programs needs --turns: the number of times that each program asks the model")
    if args.stateful and (args.turns is None or args.programs):
        options.error(
            "--stateful needs --turns, without --programs: a program has its own tools, and always runs again"
        )
    if args.turns is not None and (tools := TOOLS.intersection(args.rows or ())):
        options.error(f"{', '.join(sorted(tools))}: long episodes have no tool server")
    return args


def rows_of(args: argparse.Namespace) -> list[str]:
    """Return the rows that are asked for: by name, those of long episodes, or all of such a job."""
    if args.turns is not None:
        return args.rows or list(long_episodes.FAULTS)
    others = (AGENTS if not args.agents else frozenset[str]()) | (SWITCHES if not args.switches else frozenset[str]())
    return args.rows or [name for name in ROWS if name not in others]


def least_rounds(args: argparse.Namespace) -> int:
    """Return the least number of rounds, which also gives as many long episodes as are asked for."""
    episodes = args.episodes if args.turns is not None else 0
    return max(args.rounds, -(-episodes // EPISODES_PER_UPDATE))


class Progress:
    """The outcomes of a campaign so far; prints each, with the round of the job."""

    def __init__(self, faults: int, watch: JobWatch) -> None:
        self.outcomes: list[Outcome] = []
        self._faults = faults
        self._watch = watch
        self._started = time.time()

    def report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        times = "  ".join(
            f"{moment} {value:.1f} s" for moment in MOMENTS if (value := getattr(outcome, moment)) is not None
        )
        seconds, number = time.time() - self._started, f"{len(self.outcomes)}/{self._faults}"
        wrong = f"  WRONG: {'; '.join(outcome.wrong)}" if outcome.wrong else ""
        told = f"{number} {outcome.row} {outcome.victim}: {times}  round {self._watch.last.round}{wrong}"
        print(f"[{seconds:5.0f} s] {told}", flush=True)


def print_faults(outcomes: Sequence[Outcome], trouble: str, verdict: dict[str, Any]) -> None:
    """Print what was wrong after single faults, with the job, and in the first findings of the audit."""
    for outcome in outcomes:
        for wrong in outcome.wrong:
            print(f"chaos: {outcome.row} {outcome.victim}: {wrong}")
    if trouble:
        print(f"chaos: {trouble}")
    for finding in (verdict.get("findings") or [])[:20]:
        print(f"chaos: {finding['rule']}: {finding['key']}: {finding['what']}")


def last_line(faults: int, wrong: int, trouble: str, verdict: dict[str, Any], leaked: int | str) -> str:
    """Summarise the campaign."""
    state = "Complete" if not trouble else "Failed"
    lost, twice = (verdict.get(name, "unknown") for name in ("lost", "duplicated"))
    return f"chaos: {state} faults={faults} unmended={wrong} lost={lost} duplicated={twice} leaked={leaked}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="chaos", description="Faults on a real job on the local cluster.")
    top.add_argument("--faults", type=int, default=100)
    top.add_argument(
        "--every", action="store_true", help="a campaign for each kind of job, which have all rows together"
    )
    top.add_argument("--rows", nargs="+", choices=tuple(ROWS), metavar="ROW")
    top.add_argument("--agents", action="store_true", help="a job whose responses are episodes of a tool")
    top.add_argument("--turns", type=int, help="turns of each episode of such a job, with a call of its tool in each")
    top.add_argument("--programs", action="store_true", help="with --turns: a program plays each episode")
    top.add_argument("--stateful", action="store_true", help="with --turns: a resumed episode executes its calls again")
    top.add_argument("--episodes", type=int, default=0, help="with --turns: least number of episodes to train on")
    top.add_argument("--switches", action="store_true", help="a job whose machines switch their size in each round")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--rounds", type=int, default=0, help="least number of rounds of the job")
    top.add_argument("--json", type=Path)
    top.add_argument("--mode", choices=("Asynchronous", "OnPolicy"), default="Asynchronous")
    return top


def prepare() -> settings.Cluster:
    """Return the cluster, with the operator installed and its nodes labelled."""
    demo.cluster(NODES)
    wanted = os.environ["KUBECONFIG"]
    cluster = next((one for one in settings.existing() if str(one.kubeconfig) == wanted), None)
    if cluster is None:
        sys.exit(
            f"chaos: KUBECONFIG={wanted} is not a local cluster (hack/local_cluster/cluster), whose nodes can be lost"
        )
    for index in range(1, cluster.nodes + 1):
        label = KEEPS if index == 1 else ROLLS
        demo.kubectl("label", "node", cluster.node(index), f"{label}=true", "--overwrite", namespace=None)
    demo.install_operator("--set-string", f"nodeSelector.{KEEPS}=true")
    return cluster


def apply(documents: list[dict[str, Any]]) -> None:
    demo.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", namespace=None)
    demo.kubectl("create", "namespace", NAMESPACE, namespace=None)
    done = subprocess.run(
        ["kubectl", "-n", NAMESPACE, "apply", "-f", "-"],
        input=yaml.safe_dump_all(documents),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"chaos: {done.stderr}")


def complete(watch: JobWatch, injector: Injector, least: int) -> str:
    """Let the job end after `least` rounds or some more than it has; return why it did not, or ""."""
    seen = watch.last
    rounds = max(seen.round + LAST_ROUNDS, least)
    injector.kubectl("patch", "rljob", JOB, "--type=merge", "-p", json.dumps({"spec": {"rounds": rounds}}))
    reached, end = seen.round, time.time() + STALLED_SECONDS
    while time.time() < end:
        seen = watch.next(1.0) or watch.last
        if seen.complete:
            return ""
        if seen.failed:
            return f"the job failed: {seen.failed}"
        if seen.round > reached:
            if seen.round // TOLD_ROUNDS > reached // TOLD_ROUNDS:
                print(f"chaos: no more faults: round {seen.round} of {rounds}", flush=True)
            reached, end = seen.round, time.time() + STALLED_SECONDS
    return f"the job did not complete: {watch.last.round} of {rounds} rounds"


def volume_of(cluster: settings.Cluster, injector: Injector) -> Path:
    """Return the job's volume on this machine, or a path that does not exist."""
    try:
        volume = injector.kubectl("get", "pvc", JOB, "-o", "jsonpath={.spec.volumeName}").strip()
    except NotPossible as error:
        print(f"chaos: {error}")
        volume = "none"
    return cluster.volumes / volume


if __name__ == "__main__":
    sys.exit(main())
