"""Objects of Kubernetes as one file of YAML, to be read by people, too. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from tpuctl.kube.jobset import JobSetSpec
from tpuctl.transfer.own_output import EXPORT_MARK


def render_yaml(documents: Sequence[Mapping[str, Any]], head: Sequence[str] = ()) -> str:
    """A document each, below lines of comment. Texts of several lines stay that; nothing refers to another
    place."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    body = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"# {line}\n" for line in head) + body


def head_of(job: JobSetSpec, file: str) -> list[str]:
    """What a reader of the file should know: what to type, and where the rest is."""
    mark = EXPORT_MARK.decode().removeprefix("# ")
    lines = [f"{mark}: run {job.run}", f"kubectl apply -f {quote(file)}"]
    if job.secrets:
        lines.append(f"first: {secret_command(job)}")
    return [*lines, f"its code: {job.code.uri}"]


def secret_command(job: JobSetSpec, context: str = "") -> str:
    """How the Secret is made that the program's variables come from, in bash or zsh, whose own `printf` keeps
    values out of lists of processes."""
    name = next(iter(job.secrets.values())).secret
    words = [f'--from-file={place.key}=<(printf %s "${variable}")' for variable, place in job.secrets.items()]
    where = f"--context {quote(context)} " if context else ""
    return f"kubectl {where}create secret generic {name} --namespace {job.namespace} {' '.join(words)}"
