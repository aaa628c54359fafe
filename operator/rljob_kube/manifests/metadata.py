"""Manifest metadata: that of an object, and what refers to it."""

from typing import NotRequired, TypedDict


class Named(TypedDict):
    """An entry of a list that is keyed by name."""

    name: str


class Annotated(TypedDict):
    """The part of an object's metadata that holds annotations."""

    annotations: dict[str, str]


class Precondition(TypedDict):
    """The metadata of a patch that is refused when the object has changed."""

    uid: str
    resourceVersion: str


class OwnerReference(TypedDict):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool
    blockOwnerDeletion: bool


class TemplateMeta(TypedDict):
    """The metadata in a template of pods or claims."""

    labels: dict[str, str]
    annotations: NotRequired[dict[str, str]]


class SharedMeta(TemplateMeta):
    """The metadata that all pods of a role share."""

    namespace: str
    ownerReferences: list[OwnerReference]


class ObjectMeta(SharedMeta):
    """The metadata of an object that a job owns."""

    name: str
    uid: NotRequired[str]
    """Precondition of an apply."""


class PlainMeta(TypedDict):
    """The metadata of an object without an owner."""

    name: str
    namespace: str


class LabelSelector(TypedDict):
    matchLabels: dict[str, str]
