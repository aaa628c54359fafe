"""Who may do what once the chart is installed, as a real API server sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import pytest

from rljob_api.spec import Gang
from rljob_operator import rbac
from tests.support.charts.tools import CHART, Tools

pytestmark = pytest.mark.cluster

SYSTEM = "rbac-system"
OPERATOR = f"system:serviceaccount:{SYSTEM}:rljob"
Question = tuple[str, str, str]
"""(verb, API group, resource or resource/subresource)"""


def allowed(server: Tools, user: str, questions: Sequence[Question], namespace: str = "default") -> list[Question]:
    """Those of the questions that RBAC answers with yes: what `kubectl auth can-i --as` asks, all in one go."""
    reviews = []
    for verb, group, resource in questions:
        plural, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
        groups = ["system:authenticated"]
        spec = {"user": user, "groups": groups, "resourceAttributes": {**attributes, "namespace": namespace}}
        reviews.append({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    show = ("-o", 'jsonpath={.status.allowed}{"\\n"}')
    answers = server.kubectl("create", "-f", "-", *show, stdin="\n---\n".join(map(json.dumps, reviews))).split()
    assert len(answers) == len(questions)
    assert set(answers) <= {"true", "false"}
    return [question for question, answer in zip(questions, answers, strict=True) if answer == "true"]


def until_allowed(server: Tools, user: str, question: Question, namespace: str = "default") -> None:
    """The authorizer learns of roles and bindings a moment after they are written."""
    deadline = time.monotonic() + 60
    while not allowed(server, user, [question], namespace):
        assert time.monotonic() < deadline, f"{user} may not {' '.join(question)} in {namespace}"
        time.sleep(0.3)


def questions_of(rules: list[rbac.Rule]) -> list[Question]:
    return [(v, g, r) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]]


@pytest.fixture(scope="module")
def installed(server: Tools) -> Iterator[Tools]:
    """One release for all the questions, and three people: with the chart's two roles, and with the built-in `edit`."""
    people = {"reader": "rljob-viewer", "writer": "rljob-editor", "developer": "edit"}
    server.helm("install", "rljob", str(CHART), "--namespace", SYSTEM, "--create-namespace", "--set=replicas=0")
    for person, role in people.items():
        server.kubectl("create", "rolebinding", person, f"--clusterrole={role}", f"--user={person}", "-n", "default")
    until_allowed(server, "developer", ("create", "rljob.dev", "rljobs"))  # `edit` takes up the chart's editor role
    until_allowed(server, OPERATOR, questions_of(rbac.JOB_RULES)[0])
    until_allowed(server, OPERATOR, questions_of(rbac.LEADER_RULES)[0], SYSTEM)
    yield server
    server.kubectl("delete", "rolebinding", *people, "-n", "default")
    server.helm("uninstall", "rljob", "--namespace", SYSTEM)
    server.remove_crd()
    server.kubectl("delete", "namespace", SYSTEM)


NEVER: list[Question] = [
    *((verb, "", "secrets") for verb in ("get", "list", "watch", "update", "patch", "delete")),
    *((verb, "", "nodes") for verb in ("create", "update", "patch", "delete")),
    *((verb, "rljob.dev", "rljobs") for verb in ("create", "update", "patch")),
    ("update", "", "pods"),
    ("create", "", "pods/exec"),
    ("get", "", "pods/log"),
    ("delete", "", "services"),
    ("create", "", "namespaces"),
    ("create", "", "persistentvolumeclaims"),
    ("create", "", "serviceaccounts/token"),
    ("impersonate", "", "users"),
    ("delete", "apps", "deployments"),
    ("bind", "rbac.authorization.k8s.io", "roles"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("delete", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("create", "scheduling.volcano.sh", "podgroups"),
    ("delete", "scheduling.k8s.io", "podgroups"),
]


def test_chart_operator_may_do_what_it_needs_and_no_more(installed: Tools) -> None:
    needed = questions_of([*rbac.JOB_RULES, *rbac.GANG_RULES[Gang.NATIVE], *rbac.NODE_RULES])
    assert allowed(installed, OPERATOR, needed) == needed
    assert allowed(installed, OPERATOR, NEVER) == []
    election = questions_of(rbac.LEADER_RULES)
    assert allowed(installed, OPERATOR, election, SYSTEM) == election


PEOPLE: list[tuple[str, Question, bool]] = [
    ("reader", ("watch", "rljob.dev", "rljobs"), True),
    ("reader", ("get", "rljob.dev", "rljobs/status"), True),
    ("reader", ("create", "rljob.dev", "rljobs"), False),
    ("reader", ("patch", "rljob.dev", "rljobs/scale"), False),
    ("reader", ("list", "", "pods"), False),
    ("writer", ("create", "rljob.dev", "rljobs"), True),
    ("writer", ("delete", "rljob.dev", "rljobs"), True),
    ("writer", ("patch", "rljob.dev", "rljobs/scale"), True),
    ("writer", ("patch", "rljob.dev", "rljobs/status"), False),
    ("writer", ("create", "", "pods"), False),
    ("developer", ("create", "rljob.dev", "rljobs"), True),
    ("developer", ("patch", "rljob.dev", "rljobs/status"), False),
]


@pytest.mark.parametrize("person", ["reader", "writer", "developer"])
def test_chart_people_may(installed: Tools, person: str) -> None:
    table = {question: verdict for who, question, verdict in PEOPLE if who == person}
    assert allowed(installed, person, list(table)) == [question for question, verdict in table.items() if verdict]
    assert allowed(installed, person, list(table), "kube-system") == [], "the bindings hold in one namespace"


def test_chart_namespaced_operator_stays_in_its_namespaces(server: Tools) -> None:
    server.kubectl("create", "namespace", "team-a")
    values = ("--set=crds.install=false,userRoles.create=false,watchNamespaces={team-a}", "--namespace", "ops")
    server.helm("install", "fenced", str(CHART), "--create-namespace", *values)
    operator, needed = "system:serviceaccount:ops:fenced-rljob", questions_of(rbac.JOB_RULES)
    election = questions_of(rbac.LEADER_RULES)
    try:
        until_allowed(server, operator, needed[0], "team-a")
        until_allowed(server, operator, election[0], "ops")
        assert allowed(server, operator, needed, "team-a") == needed
        assert allowed(server, operator, needed, "default") == []
        assert [q for q in allowed(server, operator, needed, "ops") if q not in election] == []
        assert allowed(server, operator, election, "ops") == election
    finally:
        server.helm("uninstall", "fenced", "--namespace", "ops")
        server.kubectl("delete", "namespace", "team-a", "ops")
