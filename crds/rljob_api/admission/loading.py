"""Loading: from YAML or JSON to an RLJob, or to all of its mistakes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rljob_api.admission import renamed
from rljob_api.constants import API_VERSION, KIND
from rljob_api.errors import ABSENT, MOST_ERRORS, FieldError, InvalidSpec
from rljob_api.parsing import yaml_text
from rljob_api.rules.job import check, check_length
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import RLJobStatus


def load(source: str | Mapping[str, Any]) -> RLJob:
    """Load an RLJob from YAML or JSON text, or from a parsed object, with defaults.

    Raises `InvalidSpec` with every mistake; a spec that is too long has that one only. A text may hold other objects
    too (a claim, a ConfigMap), which are ignored. Unknown fields are refused in the spec. In the status, which a newer
    version may have written, they are ignored.
    """
    document = parse(source) if isinstance(source, str) else dict(source)
    _expect_kind(document)
    document["status"] = _known_status(document.get("status") or {})
    text, spec = _to_json(document), document.get("spec")
    # The length comes first: the other checks cost more.
    _refuse(check_length(json.dumps(spec, separators=(",", ":"), ensure_ascii=False)))
    _refuse(renamed.refused(spec))
    if (present := renamed.without(spec)) is not spec:
        text = _to_json({**document, "spec": present})
    try:
        job = RLJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpec(_explain(details) for details in _causes(error)) from None
    _refuse(check(job))
    return job


def load_known(document: Mapping[str, Any]) -> RLJob:
    """Load a parsed object without the fields of the spec that this version does not know. Raises `InvalidSpec`."""
    try:
        return load(document)
    except InvalidSpec:
        return load({**document, "spec": _known(RLJobSpec, document.get("spec") or {})})


def _refuse(errors: Iterable[FieldError]) -> None:
    found = list(islice(errors, MOST_ERRORS + 1))
    if found:
        raise InvalidSpec(found)


def parse(text: str) -> dict[str, Any]:
    """Return the RLJob in a YAML or JSON text as it is written, unchecked. Raises `InvalidSpec` if there is not one."""
    documents = [document for document in yaml_text.documents(text) if document is not None]
    if not documents:
        raise InvalidSpec([FieldError("(file)", ABSENT, "is empty; must hold exactly one RLJob")])
    jobs = [document for document in documents if isinstance(document, dict) and document.get("kind") == KIND]
    if len(jobs) == 1:
        return jobs[0]
    if len(documents) == 1 and isinstance(documents[0], dict):
        return documents[0]  # its kind is refused by name
    raise InvalidSpec([FieldError("(file)", len(jobs), "RLJobs found; must hold exactly one, besides other objects")])


def _expect_kind(document: Mapping[str, Any]) -> None:
    expected = {"apiVersion": API_VERSION, "kind": KIND}
    errors = [
        FieldError(field, document.get(field, ABSENT), f"must be {value}")
        for field, value in expected.items()
        if document.get(field) != value
    ]
    if errors:
        raise InvalidSpec(errors)


def _to_json(document: Mapping[str, Any]) -> str:
    """Convert to JSON, so that strict validation accepts strings for enums and times but not for numbers."""

    def refuse(value: object) -> Any:
        message = "must be a plain JSON value; put a date or other YAML special in quotes"
        raise InvalidSpec([FieldError(_find(document, value), value, message)])

    try:
        return json.dumps(document, default=refuse)
    except InvalidSpec:
        raise
    except RecursionError:
        raise InvalidSpec([FieldError("(file)", ABSENT, "must be nested less deeply")]) from None
    except ValueError:
        message = "must not contain itself: an alias (*NAME) is below its own anchor (&NAME)"
        raise InvalidSpec([FieldError("(file)", ABSENT, message)]) from None


def _find(node: object, wanted: object, path: str = "") -> str:
    """Return the path of an object in a document, by identity."""
    return next((found for found, value in _walk(node, path) if value is wanted), "(file)")


def _walk(node: object, path: str) -> Iterator[tuple[str, object]]:
    yield path, node
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _walk(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}[{index}]")


def load_status(status: Mapping[str, Any]) -> RLJobStatus:
    """Load a status as a server holds it, even if its spec is invalid.

    Unknown fields are left out. Raises `InvalidSpec`.
    """
    try:
        known = json.dumps(_known_status(status))
        return RLJobStatus.model_validate_json(known, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpec(_explain(details, ("status",)) for details in _causes(error)) from None


def _known_status(status: Mapping[str, Any]) -> dict[str, Any]:
    return _known(RLJobStatus, status)


def _known(model: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the fields that this version does not know."""
    known: dict[str, Any] = json.loads(_to_json(value))
    try:
        model.model_validate_json(json.dumps(known), by_alias=True, by_name=False)
    except ValidationError as error:
        for details in error.errors():
            if details["type"] == "extra_forbidden":
                _remove(known, details["loc"])
    return known


def _remove(node: Any, location: Sequence[int | str]) -> None:
    for step in location[:-1]:
        node = node[step]
    del node[location[-1]]


# Messages for pydantic's error types. Other types keep pydantic's message.
_MESSAGES = {
    "missing": "is required",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number of a sane size",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string; put it in quotes",
    "bool_type": "must be true or false",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} entries at most",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "spelling": "{advice}",
}


def _causes(error: ValidationError) -> Iterator[ErrorDetails]:
    """Drop consequences of other mistakes: a list counts as too short when its entries were refused."""
    errors = error.errors(include_url=False)
    above = {details["loc"][:depth] for details in errors for depth in range(len(details["loc"]))}
    for details in errors:
        if details["type"] != "too_short" or details["loc"] not in above:
            yield details


def _explain(details: ErrorDetails, above: tuple[str, ...] = ()) -> FieldError:
    location = (*above, *details["loc"])
    kind = details["type"]
    path = _path(location) or "(file)"
    if kind == "extra_forbidden":
        return FieldError(path, details["input"], _unknown_field(location))
    if kind == "missing":
        return FieldError(path, ABSENT, f"is required: {_describe(location)}")
    template = _MESSAGES.get(kind)
    message = template.format(**_whole(details.get("ctx", {}))) if template else details["msg"]
    if details["input"] is None:
        message += ", or be left out"
    return FieldError(path, details["input"], message)


def _whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write bounds as the reference does: 0, not 0.0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in values.items()
    }


def _path(location: Iterable[int | str]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _unknown_field(location: Sequence[int | str]) -> str:
    """Name the field that was probably meant: the most similar one of the same object."""
    name = str(location[-1])
    model = _model_at(location[:-1])
    if model is None:
        return "is not a field"
    fields = [field.alias or key for key, field in model.model_fields.items()]
    by_lower = {field.lower().replace("_", ""): field for field in fields}
    close = difflib.get_close_matches(name.lower().replace("_", ""), by_lower, n=1, cutoff=0.6)
    where = _path(location[:-1]) or "the object"
    if close:
        return f"is not a field of {where}; did you mean {by_lower[close[0]]}?"
    return f"is not a field of {where}; it has {', '.join(fields)}"


def _describe(location: Sequence[int | str]) -> str:
    """Return the first sentence of a field's description."""
    model = _model_at(location[:-1])
    fields = {field.alias or key: field for key, field in model.model_fields.items()} if model else {}
    field = fields.get(str(location[-1]))
    description = (field.description or "") if field else ""
    return description.split(". ")[0].replace("\n", " ").rstrip(".") or "see `kubectl explain rljob`"


def _model_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model of the object at a location; None below free-form parts."""
    model: type[BaseModel] | None = RLJob
    for step in location:
        if isinstance(step, int):
            continue
        if model is None:
            return None
        fields = {field.alias or key: field for key, field in model.model_fields.items()}
        model = _model_in(fields[step].annotation) if step in fields else None
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model class inside an annotation such as `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_in, get_args(annotation)) if found is not None), None)
