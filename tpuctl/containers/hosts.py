"""A container image on hosts, as a kind of provisioning. Pure.

The first host of a run finds out which image a name means just now; from then on all hosts, and all attempts of
the run, have that one, by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tpuctl.containers.spec import Image, parse_image
from tpuctl.hosts.facts import Engine, EngineImage, FactsReply, Section
from tpuctl.hosts.provision import BlockedOnHost, Operation
from tpuctl.lib.text import sized
from tpuctl.model.verdict import Blocked

IMAGE, IMAGE_ID, ENGINE = "image", "image_id", "engine"
"""Columns of a host's row in manifests: what it is known by everywhere, by which this host starts it, and with
what."""
ROOM_BYTES = 4 << 30
"""With less free an image for TPUs does not fit: an engine has layers packed and unpacked while it pulls."""
_DENIED = "permission denied"
_LOCAL = "localhost/"


class ContainerImage(Struct, frozen=True):
    """The image `text` names, or `pin`, which a host found that to be. `asked_by` names an attempt: a failure
    of an earlier one is not its own. With `anew` it is pulled once for that although the host has one of that
    name."""

    text: str
    pin: str = ""
    asked_by: str = ""
    anew: bool = False

    @property
    def name(self) -> str:
        return f"image {self.text}"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.JOBS, Section.ENGINE})

    @property
    def image(self) -> Image:
        return parse_image(self.pin if "@" in self.pin else self.text)

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        engine = facts.engine
        if engine is None or not engine.name:
            return _no_engine(engine)
        there = self.find(engine)
        if there is not None and (not self.anew or self._was_pulled(facts)):
            return self._misfit(engine, there) or ()
        if self.pin and "@" not in self.pin:
            why = f"it does not have the image {self.text} that the first worker has ({self.pin[:19]})"
            return Blocked(why, "push it to a registry, and name it by that: all workers pull it from there")
        if engine.free_bytes < ROOM_BYTES:
            free = f"{sized(engine.free_bytes)} are free at {engine.storage}"
            why = f"no room for {self.name}: {free}, and it needs {sized(ROOM_BYTES)}"
            sudo = "sudo " if engine.rooted else ""
            hint = "remove images there that nothing uses, or bring the slice up with a larger --boot-disk"
            return BlockedOnHost(why, hint, f"{sudo}{engine.name} image prune --all")
        parameters = {"image": self.image.pinned, "asked_by": self.asked_by}
        return [Operation("pull_image", f"pulling {self.image.pinned}", parameters)]

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        engine = facts.engine
        there = self.find(engine) if engine is not None else None
        if engine is None or there is None:
            return {}
        pin = self.pin or _pin(self.image, there)
        return {IMAGE: pin, IMAGE_ID: there.id, ENGINE: f"{engine.name} {engine.version}"}

    def find(self, engine: Engine) -> EngineImage | None:
        """What this host has of it."""
        return next((each for each in engine.images if self._is(each)), None)

    def _is(self, there: EngineImage) -> bool:
        digest = self.image.digest
        if self.pin and "@" not in self.pin:
            return there.id == self.pin
        if digest:
            return any(each.endswith(f"@{digest}") for each in there.digests)
        return any(_same_name(self.image.name, each, self.image.tag) for each in there.tags)

    def _was_pulled(self, facts: FactsReply) -> bool:
        jobs = facts.jobs or ()
        results = [each for job in jobs if job.succeeded for each in job.results if isinstance(each, Mapping)]
        return any(each.get("asked_by") == self.asked_by for each in results)

    def _misfit(self, engine: Engine, there: EngineImage) -> Blocked | None:
        if there.architecture in ("", engine.architecture):
            return None
        why = f"{self.name} is for {there.architecture}, and its hosts are {engine.architecture}"
        return Blocked(
            why, f"docker buildx build --platform linux/{engine.architecture} --push, then a new run"
        )


def _no_engine(engine: Engine | None) -> Blocked:
    why = engine.why if engine is not None else ""
    if not why:
        told = "neither docker nor podman is installed"
        return BlockedOnHost(told, "install one on each host", "sudo apt-get install -y docker.io")
    told = f"its container engine does not work: {why}"
    if _DENIED in why:
        return Blocked(told, "give the login user root by sudo; with OS Login: roles/compute.osAdminLogin")
    return BlockedOnHost(told, "start it", "sudo systemctl restart docker")


def _same_name(name: str, told: str, tag: str) -> bool:
    """Engines tell a name without a registry with one, each its own."""
    return told in {f"{prefix}{name}:{tag}" for prefix in ("", "docker.io/", "docker.io/library/", _LOCAL)}


def _pin(image: Image, there: EngineImage) -> str:
    """By what other hosts and later attempts get the same: a digest of its registry, or its content where it
    comes from none."""
    if image.digest:
        return image.pinned
    for each in there.digests:
        name, _, digest = each.partition("@")
        if _same_name(image.name, f"{name}:{image.tag}", image.tag) and not name.startswith(_LOCAL):
            return f"{name}@{digest}"
    return there.id
