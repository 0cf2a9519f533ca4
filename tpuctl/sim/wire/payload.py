"""Payloads of REST calls: JSON bodies and query parameters, read into the types of the API.

Google's front end knows the types of every method and refuses what does not fit before the service sees it.
The types are those of the discovery documents (`manifests/tables/api_types.json`). The words are those of the
front end as its users quote them, the conversions those of proto3's JSON mapping as Google's servers apply it:
numbers may be strings, enums may be numbers, one value is as good as a list of one.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from tpuctl.model.shipped_files import read_table
from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument
from tpuctl.sim.wire.timestamps import rfc3339

MAX_BODY = 10 * 1024 * 1024
"""Bytes of a body that the front end takes; uploads of objects are not read here."""
SYSTEM_PARAMETERS = frozenset(
    {
        *("alt", "$alt", "key", "prettyPrint", "fields", "$.xgafv", "quotaUser", "userIp", "callback"),
        *("access_token", "oauth_token", "uploadType", "upload_protocol", "trace", "$prettyPrint", "$fields"),
    }
)
"""https://cloud.google.com/apis/docs/system-parameters, and those of the discovery documents."""
_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
_DURATION = re.compile(r"-?\d{1,12}(\.\d{1,9})?s\Z")
_MAX_DURATION_S = 315_576_000_000
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)\Z")
_NUMERIC = re.compile(r"-?\d{1,20}(\.\d{1,20})?([eE][-+]?\d{1,2})?\Z")
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [])


@dataclass(frozen=True)
class ApiTypes:
    """The types of one version of an API: fields of messages, numbers of enums, query parameters of methods."""

    package: str
    queries: Mapping[str, Mapping[str, str]]
    messages: Mapping[str, Mapping[str, str]]
    enums: Mapping[str, Mapping[str, int]]
    oneofs: Mapping[str, Mapping[str, Sequence[str]]]
    """Message → name of the choice → its fields, of which one can be set."""
    presence: bool = False
    """Whether a field that is false, 0 or empty differs from one that is absent (Compute: yes, proto3: no)."""


@cache
def load_types(api: str) -> ApiTypes:
    """Those of `tpu.v2`, `compute.v1` and so on."""
    table = json.loads(read_table("api_types.json"))[api]
    return ApiTypes(
        table["package"],
        table["queries"],
        table["messages"],
        table["enums"],
        table["oneofs"],
        presence=api.startswith("compute."),
    )


def camel(name: str) -> str:
    """`data_disks` → `dataDisks`."""
    head, *rest = name.strip().split("_")
    return head + "".join(each.capitalize() for each in rest)


def snake(name: str) -> str:
    """`dataDisks` → `data_disks`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def parse_body(request: Request) -> Json:
    """The JSON object of a request. Raises ApiError, INVALID_ARGUMENT."""
    if len(request.body) > MAX_BODY:
        raise invalid_argument(f"Request payload size exceeds the limit: {MAX_BODY} bytes.")
    try:
        body = json.loads(request.body, parse_constant=_no_constant) if request.body else {}
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"Invalid JSON payload received. {error}") from error
    if body is None:  # as Go's library sends what it leaves empty
        return {}
    if not isinstance(body, dict):
        text = 'Invalid JSON payload received. Unknown name "": Root element must be a message.'
        raise invalid_argument(text)
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"Unexpected token.\n{name}")


def bad_fields(violations: Sequence[tuple[str, str]]) -> ApiError:
    """The front end's refusal of (field, what is wrong); the field is empty for the root of a request."""
    shown = [{**({"field": where} if where else {}), "description": text} for where, text in violations if text]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": shown}
    return ApiError(Code.INVALID_ARGUMENT, "\n".join(text for _, text in violations), [detail])


def read_query(types: ApiTypes, method: str, query: Mapping[str, list[str]]) -> Json:
    """The query parameters of a method by their names in JSON. Raises ApiError, INVALID_ARGUMENT."""
    reader = _Reader(types)
    known = types.queries[method]
    found: Json = {}
    for key, values in query.items():
        name = key if key in known else camel(key)
        if name in known:
            repeated = known[name].startswith("[")
            given: Any = values if repeated else values[-1]
            if known[name] == "bool":
                given = given.lower()
            reader.put(found, name, known[name], given, "")
        elif key not in SYSTEM_PARAMETERS:
            reader.refuse(
                "",
                f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter. '
                f"Field '{key}' could not be found in request message.",
            )
    reader.finish()
    return found


def read_message(types: ApiTypes, message: str, value: Any, where: str = "") -> Json:
    """`value` as `message` has it, without what says nothing. `where`: the field that it is, if it is not the
    whole body. Raises ApiError, INVALID_ARGUMENT, with everything that does not fit."""
    reader = _Reader(types)
    found = reader.message(message, value, where)
    reader.finish()
    return found


@dataclass
class _Reader:
    """Collects what does not fit, and goes on."""

    types: ApiTypes
    violations: list[tuple[str, str]] = field(default_factory=list)

    def finish(self) -> None:
        if self.violations:
            raise bad_fields(self.violations)

    def refuse(self, where: str, text: str) -> None:
        self.violations.append((where, text))

    def wrong(self, where: str, kind: str, value: Any, why: str = "") -> None:
        """`Invalid value at 'FIELD' (TYPE), VALUE`."""
        messages = {
            "Timestamp": "google.protobuf",
            "Duration": "google.protobuf",
            "FieldMask": "google.protobuf",
        }
        if kind in messages or kind in self.types.messages or kind in self.types.enums:
            shown = f"type.googleapis.com/{messages.get(kind, self.types.package)}.{kind}"
        else:
            shown = f"TYPE_{kind.upper()}"
        tail = why or json.dumps(value)
        self.refuse(where, f"Invalid value at '{where}' ({shown}), {tail}")

    def message(self, name: str, value: Any, where: str) -> Json:
        """Reads an object; unknown names are refused one by one."""
        fields = self.types.messages[name]
        if not isinstance(value, dict):
            self.wrong(where, name, value)
            return {}
        found: Json = {}
        for key, item in value.items():
            known = key if key in fields else camel(key)
            if known in fields:
                self.put(found, known, fields[known], item, where)
                continue
            at = f" at '{where}'" if where else ""
            self.refuse(where, f'Invalid JSON payload received. Unknown name "{key}"{at}: Cannot find field.')
        for choice, names in self.types.oneofs.get(name, {}).items():
            for extra in [each for each in found if each in names][1:]:
                text = f"oneof field '{choice}' is already set. Cannot set '{extra}'"
                self.refuse(where, f"Invalid value at '{where}' (oneof), {text}")
        return found

    def put(self, target: Json, name: str, kind: str, value: Any, above: str) -> None:
        """Reads one field into `target`; null and, without presence, the default are left out."""
        if value is None:
            return
        where = f"{above}.{snake(name)}" if above else snake(name)
        result: Any
        if kind.startswith("["):
            items = value if isinstance(value, list) else [value]
            result = [
                self._one(kind[1:-1], each, f"{where}[{index}]", name) for index, each in enumerate(items)
            ]
        elif isinstance(value, list) and not kind.startswith("{"):
            at = f" at '{above}'" if above else ""
            text = f'Unknown name "{name}"{at}: Proto field is not repeating, cannot start list.'
            self.refuse(above, f"Invalid JSON payload received. {text}")
            return
        else:
            result = self._one(kind, value, where, name)
        if self.types.presence or result not in _NOTHING or isinstance(result, dict):
            target[name] = result

    def _map(self, kind: str, value: Any, where: str) -> Json:
        if not isinstance(value, dict):
            text = "Cannot have repeated items ('map') within a map." if isinstance(value, list) else ""
            self.wrong(where, "MapEntry", value, text)
            return {}
        return {
            self._one("string", key, f"{where}[{index}].key", key): self._one(
                kind, each, f"{where}[{index}].value", key
            )
            for index, (key, each) in enumerate(value.items())
        }

    def _one(self, kind: str, value: Any, where: str, name: str) -> Any:
        if kind in self.types.messages:
            return self.message(kind, value, where)
        if kind.startswith("{"):
            return self._map(kind[1:-1], value, where)
        if kind == "any":
            return value
        if isinstance(value, dict | list) or value is None:
            why = "Starting an object on a scalar field" if isinstance(value, dict) else ""
            return self.wrong(where, kind, value, why)
        try:
            if kind in self.types.enums:
                return self._enum(self.types.enums[kind], value)
            return _SCALARS[kind](value)
        except _IllegalError as error:
            return self.wrong(where, kind, value, f"Field '{name}', {error}")
        except (ValueError, OverflowError):
            return self.wrong(where, kind, value)

    def _enum(self, numbers: Mapping[str, int], value: Any) -> Any:
        """The name; nothing for the number 0, which is what proto3 leaves out."""
        name = value if value in numbers else None
        if name is None:
            number = _number(value)
            name = next(each for each in (*numbers, None) if each is None or numbers[each] == number)
        if name is None:
            raise ValueError(value)
        return name if numbers[name] or self.types.presence else None


class _IllegalError(ValueError):
    """A well-known type in a wrong form, with the front end's reason."""


def _text(value: Any) -> str:
    """A string that is one in UTF-8, too."""
    if not isinstance(value, str):
        raise ValueError(value)
    value.encode()
    return value


def _number(value: Any) -> int:
    """A whole number; JSON strings and floats that are one will do."""
    if isinstance(value, str) and _NUMERIC.match(value):
        value = float(value) if "." in value or "e" in value.lower() else int(value)
    if isinstance(value, bool | str) or value != int(value):
        raise ValueError(value)
    return int(value)


def _integer(kind: str) -> Callable[[Any], Any]:
    low, high = _RANGES[kind]

    def read(value: Any) -> Any:
        number = _number(value)
        if not low <= number <= high:
            raise ValueError(value)
        # Proto3's JSON writes 64 bits as strings, because JavaScript has no such numbers.
        return str(number) if kind.endswith("64") and number else number

    return read


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(value)


def _double(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bytes(value: Any) -> str:
    """Base64, in either of its alphabets, as protobuf's JSON has it; fingerprints come in the one for URLs."""
    try:
        base64.b64decode(_text(value), b"-_" if re.search("[-_]", _text(value)) else None, validate=True)
    except binascii.Error as error:
        raise ValueError(value) from error
    return str(value)


def _timestamp(value: Any) -> str:
    if not isinstance(value, str) or not _TIMESTAMP.match(value):
        raise _IllegalError(f"Invalid time format: {value}")
    try:
        written = rfc3339(datetime.fromisoformat(value.upper()).timestamp())
    except (ValueError, OverflowError) as error:
        raise _IllegalError(f"Invalid time format: {value}") from error
    return re.sub(r"(\.\d{3})?(\.?000)Z", r"\1Z", written).replace(".000Z", "Z")


def _duration(value: Any) -> str:
    if not isinstance(value, str) or not value.endswith("s"):
        raise _IllegalError("Illegal duration format; duration must end with 's'")
    if not _DURATION.match(value) or abs(float(value[:-1])) > _MAX_DURATION_S:
        raise _IllegalError("Invalid duration format, failed to parse seconds")
    return value


_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "string": _text,
    "bool": _bool,
    "double": _double,
    "float": _double,
    "bytes": _bytes,
    "Timestamp": _timestamp,
    "Duration": _duration,
    "FieldMask": _text,
    **{kind: _integer(kind) for kind in _RANGES},
}
