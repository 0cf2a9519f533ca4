"""A look at a store in a bucket from outside: is there one, whose, of which schema, by which clock."""

from __future__ import annotations

import time

from msgspec.structs import replace

from tpuctl.engine.ports import Objects
from tpuctl.errors import BadConfigError, NotFoundError
from tpuctl.model.facts import StoreFacts
from tpuctl.state.bucket import SCHEMA, parse_identity


def inspect_bucket_store(objects: Objects, uri: str, project: str) -> StoreFacts:
    """The facts about the store at `uri`. Raises for what keeps it from being looked at."""
    place = uri.rstrip("/")
    facts = StoreFacts(place, known_schema=SCHEMA, clock_ahead=_clock_ahead(objects, place))
    try:
        content, _ = objects.read(f"{place}/identity")
        schema, _, theirs = parse_identity(place, content)
    except NotFoundError:
        return replace(facts, exists=False)
    except BadConfigError as error:
        return replace(facts, damage=error.message)
    foreign = "" if theirs in (None, project) else theirs
    return replace(facts, schema=schema, foreign_project=foreign or "")


def _clock_ahead(objects: Objects, uri: str) -> float:
    """The server tells whole seconds, cut off; half of the way there and back is taken off."""
    before = time.time()
    served = objects.server_time(uri.split("/")[2])
    return served + 0.5 - (before + time.time()) / 2
