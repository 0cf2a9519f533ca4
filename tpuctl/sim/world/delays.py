"""How long things take in the simulated cloud."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tpuctl.errors import UsageError


@dataclass(frozen=True)
class Delays:
    """How long things take, in seconds before the speed is applied. Defaults follow published logs of TRC
    spot capacity (create to READY p50 about 3 minutes, delete about one)."""

    node_create: float = 150.0
    host_accounts: float = 5.0
    """From the answer of a host's SSH server until it knows the keys of the metadata."""
    instance_create: float = 40.0
    """Of Compute Engine: until an instance is RUNNING, which is less than READY."""
    node_delete: float = 60.0
    node_stop: float = 40.0
    node_start: float = 60.0
    """These three are those of instances, too."""
    node_patch: float = 40.0
    """gcloud says "Propagating SSH public key to all TPU workers" for so long."""
    create_failure: float = 130.0
    preempt_visible: float = 60.0
    """From the death of the hosts until the API says so."""
    shutdown: float = 30.0
    """What the programs of a host have to end in order before its power is cut: Compute Engine gives 30 s
    between the ACPI signal of a preemption and the end ("Preemptible VM instances")."""
    host_reboot: float = 45.0
    """From the end of a host that reboots until it answers again."""
    queued_accept: float = 2.0
    queued_wait: float = 30.0
    queued_assign: float = 10.0
    queued_suspend: float = 30.0
    queued_delete: float = 20.0
    list_everywhere: float = 2.0
    """A list with the wildcard zone asks every zone."""
    compute_operation: float = 3.0
    """Of Compute Engine: from the call until its operation is DONE."""
    copy_begins: float = 0.0
    """From the call that copies a disk until the moment that the copy shows: Compute Engine promises none, and
    what is written meanwhile is in it."""
    disk_copy: float = 30.0
    """How much longer it takes to make a disk from something, or a copy of a disk."""
    group_retry: float = 60.0
    """A group of instances that found no room tries again after so long; how long really is not published."""
    quota_decision: float = 5.0
    """From a request for more quota until it is granted; users report seconds."""

    @classmethod
    def instant(cls) -> Delays:
        """Everything is done as soon as the schedule runs."""
        return cls(**{each.name: 0.0 for each in fields(cls)})

    def at(self, speed: float) -> dict[str, float]:
        """What a user waits for, in seconds: from the request until the slice is ready, and so on."""
        ready = self.queued_accept + self.queued_wait + self.queued_assign + self.node_create
        ready += self.host_accounts
        shown = {
            "until_ready": ready,
            "until_gone": self.node_delete,
            "until_preemption_shows": self.preempt_visible,
        }
        return {name: round(seconds / speed, 1) for name, seconds in shown.items()}

    @classmethod
    def parse(cls, spec: str | dict[str, float] | None) -> Delays:
        """`realistic`, `instant`, or a mapping of single delays over the realistic ones."""
        if spec is None or spec == "realistic":
            return cls()
        if spec == "instant":
            return cls.instant()
        if isinstance(spec, dict) and set(spec) <= {each.name for each in fields(cls)}:
            return replace(cls(), **spec)
        raise UsageError(
            f"unknown delays `{spec}`",
            hint=f"`instant`, `realistic` or keys of: {', '.join(each.name for each in fields(cls))}",
        )
