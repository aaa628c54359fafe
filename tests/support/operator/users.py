"""Users of a test's namespace that have some rights and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rljob_kube.connection import Connection
from rljob_kube.resources import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Json
from tests.support.operator.harness import Server, admin, until

JSON = {"Content-Type": "application/json"}


async def post(server: Server, path: str, body: Json) -> Json:
    return await server.kube._send("POST", path, json.dumps(body).encode(), {}, JSON)


async def limited_user(server: Server, connection: Connection, name: str, rules: Sequence[Json]) -> Connection:
    """A connection as a service account of this name, with these rules of a Role in the test's namespace."""
    space, group = server.namespace, ROLE.group
    meta = {"name": name, "namespace": space}
    accounts = SERVICE_ACCOUNT.path(space)
    await post(server, accounts, {"apiVersion": "v1", "kind": SERVICE_ACCOUNT.kind, "metadata": meta})
    role: Json = {"apiVersion": ROLE.api_version, "kind": ROLE.kind, "metadata": meta, "rules": list(rules)}
    await post(server, ROLE.path(space), role)
    binding = {**role, "kind": ROLE_BINDING.kind, "roleRef": {"apiGroup": group, "kind": ROLE.kind, "name": name}}
    del binding["rules"]
    binding["subjects"] = [{"kind": SERVICE_ACCOUNT.kind, **meta}]
    await post(server, ROLE_BINDING.path(space), binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await post(server, f"{accounts}/{name}/token", request))["status"]["token"]
    user = replace(connection, token=token)
    # The authorizer learns of a Role and its binding a moment after they are written.
    first = rules[0]
    await until(lambda: may(user, server, first["apiGroups"][0], first["resources"][0], first["verbs"][0]))
    return user


async def may(connection: Connection, server: Server, group: str, kind: str, verb: str) -> bool:
    """Whether this user may do that in the test's namespace. `kind`: a resource, or `resource/subresource`."""
    resource, _, sub = kind.partition("/")
    attributes: dict[str, Any] = {"namespace": server.namespace, "group": group, "resource": resource, "verb": verb}
    if sub:
        attributes["subresource"] = sub
    body: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body["spec"] = {"resourceAttributes": attributes}
    async with admin(connection) as kube:
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await kube._send("POST", path, json.dumps(body).encode(), {}, JSON)
    return bool(answer["status"]["allowed"])
