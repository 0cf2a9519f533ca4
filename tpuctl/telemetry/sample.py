"""What was read of chips, cores and hosts at one moment, as plain data. What nobody said is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.telemetry.messages import DUTY, HBM_TOTAL, HBM_USED, QUEUE

FIRST_PORT = 8431
"""Where the service of a process answers (tpu-info 0.14.2, `tpu_info.metrics`); those of further processes on a
host follow it (`TPU_RUNTIME_METRICS_PORTS` of TPU VMs)."""
DEVICES_PER_CHIP = {"v2": 2, "v3": 2, "tpu7x": 2}
"""By generation; of the others 1 (tpu-info 0.14.2, `tpu_info.device`)."""
Values = Sequence[tuple[int, float]]
"""Of one metric, by device id."""


class ChipSample(Struct, frozen=True):
    """One device as its process's service tells it; a chip has one or, in v2, v3 and 7x, two. Ids of devices
    are those of the whole slice: see the stream sample in tpu-info's README."""

    worker: int
    device: int
    port: int
    hbm_used: int | None = None
    hbm_total: int | None = None
    duty_percent: float | None = None
    queue: int | None = None


class CoreState(Struct, frozen=True):
    """What one core executes: the program by its `fingerprint` (hexadecimal), the launch of it and its run, and
    how many programs wait behind it. `location` is that in the HLO, where it was asked for."""

    worker: int
    core: int
    port: int
    chip: int | None = None
    fingerprint: str = ""
    launch_id: int | None = None
    run_id: int | None = None
    queued: int = 0
    error: str = ""
    location: str = ""


class NoServer(Struct, frozen=True):
    """Nothing is known of what is behind this port. `hangs`: something took the connection and said nothing.
    `absent`: nothing listens there."""

    worker: int
    port: int
    why: str
    hangs: bool = False
    absent: bool = False


def chips_of(worker: int, port: int, metrics: Mapping[str, Values], per_chip: int = 1) -> list[ChipSample]:
    """The devices of one service, of which chips have `per_chip`. Memory is told by device; the duty cycle by
    device or, in some versions of libtpu, by chip (tpu-info 0.14.2, `get_chip_usage` and `get_chip_usage_new`).
    What has other ids, such as ordinals on the host, is dealt out in order; what cannot be is left out."""
    memory = [device for name in (HBM_USED, HBM_TOTAL) for device, _ in metrics.get(name, ())]
    others = [device for values in metrics.values() for device, _ in values]
    devices = sorted(set(memory or others))
    used, total, duty, queue = (
        _by_device(devices, metrics.get(name, ()), per_chip) for name in (HBM_USED, HBM_TOTAL, DUTY, QUEUE)
    )
    return [
        ChipSample(
            worker,
            device,
            port,
            _whole(used.get(device)),
            _whole(total.get(device)),
            duty.get(device),
            _whole(queue.get(device)),
        )
        for device in devices
    ]


def _by_device(devices: Sequence[int], values: Values, per_chip: int) -> dict[int, float]:
    told = [value for _, value in sorted(values)]
    if len(told) * per_chip == len(devices):
        told = [value for value in told for _ in range(per_chip)]
    elif {device for device, _ in values} <= set(devices):
        return dict(values)
    return dict(zip(devices, told, strict=True)) if len(told) == len(devices) else {}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def merge_chips(samples: Iterable[ChipSample]) -> list[ChipSample]:
    """One for each device of a worker, whichever port told it: what one service leaves out another may say."""
    found: dict[tuple[int, int], ChipSample] = {}
    for each in samples:
        known = found.setdefault((each.worker, each.device), each)
        lacking = {
            name: getattr(each, name)
            for name in ("hbm_used", "hbm_total", "duty_percent", "queue")
            if getattr(known, name) is None
        }
        found[each.worker, each.device] = replace(known, **lacking)
    return [found[key] for key in sorted(found)]
