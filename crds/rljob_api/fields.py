"""Fields: the strict base class of the models, and field types with a pattern.

Every pattern carries advice: a user reads what to write, not which regular expression failed.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class Model(BaseModel):
    """Base class: frozen, strict, camelCase on the wire, snake_case in Python.

    Docstrings under fields are their descriptions.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the wire format: camelCase, plain JSON values, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


_EMPTY: tuple[object, ...] = ("", (), [], {})


class StatusModel(Model):
    """Base class of the status: absent instead of empty.

    An applied empty list would have an owner, and conflict with the other writer. Required fields stay: without them
    the other writer could not read the object.
    """

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        required = self._required()
        return {name: value for name, value in handler(self).items() if value not in _EMPTY or name in required}

    @classmethod
    @cache
    def _required(cls) -> frozenset[str]:
        """Name the required fields, in Python and on the wire."""
        fields = ((name, field) for name, field in cls.model_fields.items() if field.is_required())
        return frozenset(one for name, field in fields for one in (name, field.alias or name))


def map_by(*keys: str) -> dict[str, Any]:
    """Return the schema of a list with keys. Server-side apply merges such a list entry by entry."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def spelled(pattern: str, advice: str) -> AfterValidator:
    """Make a check of a string's spelling. `advice` ends the message ("must be …")."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if compiled.fullmatch(value) is None:
            raise PydanticCustomError("spelling", "{advice}", {"advice": advice})
        return value

    return AfterValidator(check)


def text_type(pattern: str, advice: str, max_length: int) -> Any:
    """Make an annotated `str` with a pattern that the CRD carries too."""
    return Annotated[
        str,
        Field(max_length=max_length),
        spelled(pattern, advice),
        WithJsonSchema({"type": "string", "pattern": f"^({pattern})$", "maxLength": max_length}),
    ]


_SUFFIXES = {
    "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3, "": 1,
}  # fmt: skip
_BYTES_PATTERN = r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?"


def parse_bytes(value: object, info: ValidationInfo) -> object:
    """Parse `"32Mi"` as 33554432. On the wire it is always a string; in Python an `int` is valid too."""
    if isinstance(value, int) and info.mode == "python":
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?", value) if isinstance(value, str) else None
    if match is not None:
        number = Decimal(match.group(1)) * _SUFFIXES[match.group(2) or ""]
        if number == number.to_integral_value():
            return int(number)
    raise PydanticCustomError("spelling", "{advice}", {"advice": 'must be whole bytes in a string such as "32Mi"'})


def format_bytes(value: int) -> str:
    """Format 33554432 as `"32Mi"`: the shortest exact spelling with a binary suffix."""
    suffix = next((s for s in ("Ti", "Gi", "Mi", "Ki") if value and value % _SUFFIXES[s] == 0), "")
    return f"{value // _SUFFIXES[suffix]}{suffix}"


def _utc_second(value: datetime) -> datetime:
    """Round a time to whole seconds in UTC, so that it reads back equal."""
    if value.tzinfo is None:
        raise PydanticCustomError(
            "spelling", "{advice}", {"advice": "must carry a time zone, e.g. 2026-01-31T12:00:00Z"}
        )
    return value.astimezone(UTC).replace(microsecond=0)


def _rfc3339(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _network(value: str) -> str:
    """Check a CIDR, which has no bits behind its prefix."""
    try:
        whole = ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        raise PydanticCustomError("spelling", "{advice}", {"advice": f"must be a CIDR: {error}"}) from error
    if getattr(whole.network_address, "ipv4_mapped", None) is not None:
        raise PydanticCustomError("spelling", "{advice}", {"advice": "must be written as an IPv4 CIDR"})
    if ipaddress.ip_interface(value).ip != whole.network_address:
        raise PydanticCustomError("spelling", "{advice}", {"advice": f"must begin with its first address: {whole}"})
    return value


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{_BYTES_PATTERN}$", "maxLength": 32}),
]
"""A quantity of bytes: an `int` in Python, a string such as `32Mi` on the wire.

It is not int-or-string: a number would lose its unit in every diff.
"""

Timestamp = Annotated[
    datetime,
    AfterValidator(_utc_second),
    PlainSerializer(_rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A point in time in UTC, to the second."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = rf"{_LABEL}(\.{_LABEL})*"
"""Pattern of most objects' names, which have at most 253 characters."""
DnsLabel = text_type(
    _LABEL, "must be lower-case letters, digits and '-', beginning and ending with one of the first", 63
)
DnsName = text_type(DNS_NAME, "must be a DNS name: lower-case letters, digits, '-' and '.', e.g. high-priority", 253)
ClaimTemplateName = text_type(
    DNS_NAME,
    "must be the name of a ResourceClaimTemplate in the job's own namespace: pods cannot use one of another",
    253,
)
QualifiedName = text_type(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    "must be a qualified name such as nvidia.com/gpu",
    253,
)
LabelKey = text_type(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    "must be the key of a label, e.g. topology.kubernetes.io/zone",
    317,
)
FunctionPath = text_type(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", "must be module:function, e.g. my_rewards.math:score", 253
)
CodePath = text_type(
    r"(/?([\w.-]+/)*[\w.-]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_]\w*",
    "must be path.py:function or module:function, e.g. tools.py:add",
    512,
)
DatasetSource = text_type(
    r"/[^\0]*|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\0]*)?|hf://[\w.-]+/[\w.-]+",
    "must be an absolute path such as /data/train, pvc://CLAIM/PATH, or hf://ORG/NAME",
    1024,
)
PromptFileSource = text_type(
    r"/[^\0]*|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\0]*)?|package://rljob/[\w.-]+",
    "must be an absolute path such as /data/train.jsonl, pvc://CLAIM/PATH, or package://rljob/NAME",
    1024,
)
TemplateFileSource = text_type(
    r"/[^\0]*|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\0]*)?",
    "must be an absolute path such as /data/chat.jinja, or pvc://CLAIM/PATH",
    1024,
)
FolderPath = text_type(r"[^\0]+", "must be the path of a folder such as repo or /app/repo", 1024)
ModelSource = text_type(
    r"/[^\0]*|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\0]*)?"
    r"|hf://[\w.-]+/[\w.-]+(@[\w./-]+)?|package://[\w.-]+(/[\w./-]+)?",
    "must be an absolute path, pvc://CLAIM/PATH, hf://ORG/NAME or package://PACKAGE[/MODEL]",
    1024,
)
_HOST = r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
"""Pattern of a host's name, wherever a field has one. The last label is no number, so no name is nearly an address."""
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
HttpUrl = text_type(
    rf"https?://({_HOST.replace('a-z', 'A-Za-z')}|({_OCTET}\.){{3}}{_OCTET})(:{_PORT})?(/[^\s?#]*)?",
    "must be http:// or https://, a host, and perhaps a port from 1 to 65535 and a path, without user, query or "
    "fragment. The host is an IPv4 address, or labels of letters, digits and '-' of which the last begins with a "
    "letter",
    1024,
)
_CIDR = r"[0-9.]+/(0|[1-9][0-9]?)|[0-9a-fA-F:]+/(0|[1-9][0-9]{0,2})"
Cidr = Annotated[
    str,
    Field(max_length=43),
    spelled(_CIDR, "must be addresses with the length of their prefix, e.g. 10.20.0.0/16 or 2001:db8::/32"),
    AfterValidator(_network),
    WithJsonSchema({"type": "string", "pattern": f"^({_CIDR})$", "maxLength": 43}),
]
EGRESS_HOST = rf"(\*\.)?{_HOST}(:{_PORT})?"
"""Pattern of a host, or of all hosts below a domain, and perhaps a port."""
EgressHost = text_type(
    EGRESS_HOST, "must be a host's name in lower case such as pypi.org, *.example.com or example.com:8443", 253
)
TasksetId = text_type(
    r"[A-Za-z0-9_][\w.@/-]*", "must be the name of an installed taskset, e.g. gsm8k or primeintellect/gsm8k", 253
)
VariableName = text_type(r"[A-Za-z_][A-Za-z0-9_]*", "must be the name of an environment variable, e.g. JUDGE_KEY", 128)
FieldName = text_type(r"[A-Za-z_][\w.-]*", "must be the name of a field of the records, e.g. question", 128)
Name = Annotated[str, Field(max_length=253)]
Sentence = Annotated[str, Field(max_length=2048)]
Count = Annotated[int, Field(ge=0)]

FreeForm = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""A JSON object that another library defines."""
