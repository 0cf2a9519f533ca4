"""Names: what may be called how, and what words of the command line mean."""

from __future__ import annotations

import re
from typing import NamedTuple

from tpuctl.errors import UsageError

MAX_SLICE_NAME = 50
"""Leaves room for `-<incarnation>` and `-w-<worker>` within the 63 characters of a DNS label."""
MAX_CLOUD_NAME = 63
MAX_LABEL_VALUE = 63

SLICE_NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"
RUN_ID = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SLICE = re.compile(SLICE_NAME)
_PROJECT = re.compile(r"(?:[a-z0-9][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+(?:-[a-z]+)+[0-9]+-[a-z][a-z0-9]*")
_RUN = re.compile(RUN_ID)
MAX_TAG = 64
_TAG = re.compile(rf"[A-Za-z0-9][^,\n]{{0,{MAX_TAG - 1}}}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")
_BUCKET_URI = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](?:/.*)?", re.DOTALL)
_PAGE_URI = re.compile(r"gs://[a-z0-9][-_.a-z0-9]+(/[A-Za-z0-9_][-_.A-Za-z0-9]*)*")

RESERVED_VARIABLE_PREFIX = "TPUCTL_"
ACCESS_PROBE = ".tpuctl-access"
"""What hosts write to a bucket to try whether they may (`PROBE` of `tpuctl/agent/bucket_access.py`)."""


def is_slice_name(name: str) -> bool:
    """Whether a slice may be called so."""
    return len(name) <= MAX_SLICE_NAME and _SLICE.fullmatch(name) is not None


def check_slice_name(name: str) -> str:
    """Returns `name`; raises UsageError when it, or the node named after it, would be refused by the API."""
    if len(name) > MAX_SLICE_NAME:
        raise UsageError(
            f"slice name {name!r} has {len(name)} characters; at most {MAX_SLICE_NAME} are allowed",
            hint="choose a shorter NAME",
        )
    if not _SLICE.fullmatch(name):
        raise UsageError(
            f"slice name {name!r} is not valid: lower-case letters, digits and hyphens, "
            "a letter first, no hyphen last",
            hint=f"for example {_suggest_name(name)}",
        )
    return name


def check_fleet_name(name: str) -> str:
    """Returns `name`, under which what a fleet file asked for is remembered; raises UsageError."""
    if len(name) > MAX_SLICE_NAME or not _SLICE.fullmatch(name):
        raise UsageError(
            f"fleet name {name!r} is not valid: lower-case letters, digits and hyphens, a letter first",
            hint=f"for example {_suggest_name(name)[:MAX_SLICE_NAME]}",
        )
    return name


def cloud_name(name: str, incarnation: int) -> str:
    """The name of the node and queued resource of one incarnation: `big-3`. Never reused."""
    if incarnation < 1:
        raise ValueError(f"incarnations count from 1, not {incarnation}")
    return f"{name}-{incarnation}"


def node_names(name: str, slices: int) -> tuple[str, ...]:
    """The nodes of one incarnation, in the order in which their workers are counted. A queued resource for
    several names them after itself (`node_id_prefix` in the API)."""
    return (name,) if slices == 1 else tuple(f"{name}-{index}" for index in range(slices))


def parse_cloud_name(name: str) -> tuple[str, int] | None:
    """Slice name and incarnation of a cloud name; None if tpuctl does not name like that."""
    base, _, number = name.rpartition("-")
    if not _SLICE.fullmatch(base) or not number.isascii() or not number.isdigit() or number.startswith("0"):
        return None
    return base, int(number)


def label_value(text: str) -> str:
    """`text` as a label value: `[a-z0-9_-]{0,63}`, what does not fit becomes `-`.

    Rule: https://cloud.google.com/resource-manager/docs/labels-overview (international letters are left out).
    """
    return re.sub(r"[^-_a-z0-9]", "-", text.lower())[:MAX_LABEL_VALUE]


def is_run_id(name: str) -> bool:
    """Whether a run may be called so."""
    return len(name) <= MAX_CLOUD_NAME and _RUN.fullmatch(name) is not None


def check_run_id(run_id: str) -> str:
    """Returns `run_id`, which becomes a directory and an object name; raises UsageError."""
    if not is_run_id(run_id):
        raise UsageError(
            f"run id {run_id!r} is not valid: lower-case letters, digits and hyphens, no hyphen first or last",
            hint=f"for example {_suggest_name(run_id)[:MAX_CLOUD_NAME].rstrip('-')}; `tpuctl runs` lists all",
        )
    return run_id


def check_tag(word: str, flag: str = "--tag") -> str:
    """Returns `word`, a group of runs or a tag (`KEY` or `KEY=VALUE`); raises UsageError.

    Commas separate tags in `WANDB_TAGS`, and W&B takes 1 to 64 characters (docs.wandb.ai/models/runs/tags).
    """
    if not _TAG.fullmatch(word) or not word.isprintable():
        raise UsageError(
            f"{flag} {word!r} is not valid: 1 to {MAX_TAG} characters, a letter or digit first, no comma",
            hint=f"{flag} sweep-1" if flag == "--group" else f"{flag} baseline, or {flag} stage=pretrain",
        )
    return word


def check_project(project: str) -> str:
    """Returns `project`; raises UsageError if it cannot be a project id.

    Rule: 6 to 30 lower-case letters, digits and hyphens, optionally after a `domain:`
    (https://cloud.google.com/resource-manager/docs/creating-managing-projects).
    """
    if not _PROJECT.fullmatch(project):
        raise UsageError(
            f"{project!r} is not a project id: 6 to 30 lower-case letters, digits and hyphens, a letter first",
            hint="gcloud projects list --format='value(projectId)'",
        )
    return project


def check_disk_name(name: str, *, made: bool = False) -> str:
    """A name that Compute Engine takes for a disk or snapshot, with room for `-g12-s` unless that is `made`.
    Raises UsageError."""
    if not re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{61 if made else 54}}}[a-z0-9])?", name):
        raise UsageError(
            f"{name!r} is no name for a disk", hint="lower case letters, digits and hyphens, a letter first"
        )
    return name


def check_zone_name(zone: str) -> str:
    """Returns `zone`; raises UsageError if it cannot be a zone. `us-central1-ai1a` can."""
    if not _ZONE.fullmatch(zone):
        raise UsageError(f"{zone!r} is not a zone", hint="a zone looks like us-central2-b; see `tpuctl types`")
    return zone


def region_of(zone: str) -> str:
    """The region of a zone: all but its last part."""
    return zone.rsplit("-", 1)[0]


def check_bucket_name(name: str) -> str:
    """Returns `name`; raises UsageError for what no bucket can be called
    (https://cloud.google.com/storage/docs/buckets#naming)."""
    if not _BUCKET.fullmatch(name):
        rule = (
            "3 to 222 lower-case letters, digits, hyphens, underscores and dots, a letter or digit at both ends"
        )
        near = re.sub(r"[^-_.a-z0-9]+", "-", name.lower()).strip("-_.")
        said = f"gs://{near}" if _BUCKET.fullmatch(near) else "gs://my-bucket"
        raise UsageError(f"no bucket can be called {name!r}: {rule}", hint=f"for example {said}")
    return name


def check_bucket_uri(uri: str) -> str:
    """Returns `uri` without a trailing slash; raises UsageError unless it is `gs://BUCKET[/PREFIX]`."""
    if not _BUCKET_URI.fullmatch(uri):
        raise UsageError(f"{uri!r} is not a bucket prefix", hint="it looks like gs://my-bucket/checkpoints")
    return uri.rstrip("/")


def check_page_uri(uri: str) -> str:
    """The same for where pages are published; what addresses and patterns do not take as it is, is refused."""
    found = check_bucket_uri(uri)
    if not _PAGE_URI.fullmatch(found):
        said = "letters, digits, hyphens, underscores and dots between single slashes"
        raise UsageError(f"pages cannot be at {uri!r}: {said}", hint="for example gs://my-bucket/fleet")
    return found


def parse_var(word: str) -> tuple[str, str]:
    """Name and value of `K=V`; the value is taken as it is, also empty or with more `=`. Raises UsageError."""
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"--var {word!r} has no '='", hint="--var NAME=VALUE")
    if "\0" in value:
        raise UsageError(f"--var {name}: a NUL character cannot be passed", hint="--var NAME=VALUE")
    return _check_variable("--var", name, word, "--var NAME=VALUE"), value


def parse_secret(word: str) -> tuple[str, str]:
    """Name and reference of `NAME=env:VAR`, `NAME=file:PATH` or `NAME=sm://PROJECT/SECRET[/VERSION]`.

    Raises UsageError, which never shows what may be the secret.
    """
    form = "--secret NAME=env:VARIABLE, NAME=file:PATH or NAME=sm://PROJECT/SECRET"
    name, equals, reference = word.partition("=")
    if not equals:
        raise UsageError(f"--secret {name!r} does not say where its value is", hint=form)
    _check_variable("--secret", name, name, form)
    kind, _, where = reference.partition(":")
    if kind not in ("env", "file", "sm") or not where:
        raise UsageError(f"--secret {name}: the value must be a reference, not the secret itself", hint=form)
    if kind == "sm":
        parse_secret_name(reference)
    if kind == "env" and not VARIABLE.fullmatch(where):
        raise UsageError(f"--secret {name}: {where!r} is not the name of a variable", hint=form)
    return name, reference


class SecretName(NamedTuple):
    """A secret of Secret Manager: `version` is a number or `latest`."""

    project: str
    secret: str
    version: str


def parse_secret_name(reference: str) -> SecretName:
    """The parts of `sm://PROJECT/SECRET[/VERSION]`. Raises UsageError.

    Rule: https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets/create.
    """
    found = re.fullmatch(r"sm://([a-z0-9][a-z0-9.:-]+)/([A-Za-z0-9_-]{1,255})(?:/([0-9]+|latest))?", reference)
    if found is None:
        said = f"{reference} is no secret of Secret Manager"
        raise UsageError(said, hint="sm://PROJECT/SECRET, or sm://PROJECT/SECRET/VERSION")
    return SecretName(found[1], found[2], found[3] or "latest")


def _check_variable(flag: str, name: str, shown: str, form: str) -> str:
    if not VARIABLE.fullmatch(name):
        raise UsageError(
            f"{flag} {shown!r}: {name!r} is not a name for a variable (letters, digits and _, no digit first)",
            hint=form,
        )
    if name.startswith(RESERVED_VARIABLE_PREFIX):
        raise UsageError(f"{flag} {name}: names with {RESERVED_VARIABLE_PREFIX} are set by tpuctl", hint=form)
    return name


def _suggest_name(name: str) -> str:
    cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    cleaned = re.sub(r"^[^a-z]+", "", cleaned)
    return cleaned or "big"


def parse_pattern(text: str) -> re.Pattern[str]:
    """A regular expression. Raises ValueError, also where a number is too large, or it is nested too deep."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from error


def check_progress(pattern: str) -> str:
    """The pattern, if it is a regular expression with a group: with names only these count, else the first is
    the step. Raises ValueError."""
    if parse_pattern(pattern).groups < 1:
        raise ValueError("has no group for the step")
    return pattern


def parse_expression(text: str) -> str:
    """Of `--progress`; an empty one stands for none in records. Raises UsageError."""
    if not text:
        raise UsageError.of(
            "progress", "--progress '' finds no step", r"--progress 'step (\d+)', or leave it out"
        )
    return text
