"""Names of container images, as a user writes them. Pure.

The grammar is that of engines and registries (github.com/distribution/reference, reference.go).
"""

from __future__ import annotations

import re

from msgspec import Struct

from tpuctl.errors import UsageError

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REGISTRY = r"(?:[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)+(?::\d+)?|[a-zA-Z0-9-]+:\d+|localhost)"
_IMAGE = re.compile(
    rf"(?P<name>(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_TRANSPORT = re.compile(r"[a-z-]+:(//|/|\.)")
NAME_MAX = 255
EXAMPLE = "--container REGISTRY/NAME:TAG, such as us-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"


class Image(Struct, frozen=True):
    """A name with its registry, if it has one; `tag` is `latest` where only a name was given."""

    name: str
    tag: str = ""
    digest: str = ""

    @property
    def pinned(self) -> str:
        """As it is pulled: by its digest where it has one."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse_image(text: str) -> Image:
    """Raises UsageError."""
    found = _IMAGE.fullmatch(text)
    if found is None or len(found["name"]) > NAME_MAX:
        why = f"--container {text!r} is no name of an image"
        if _TRANSPORT.match(text):
            why += ": images come from registries, not from files"
        elif text.lower() != text:
            why += ": it may have no capital letters"
        raise UsageError.of("container", why, EXAMPLE)
    return Image(found["name"], found["tag"] or ("" if found["digest"] else "latest"), found["digest"] or "")
