"""libtpu's runtime metrics service on simulated hosts, as programs that use chips have it.

There are no chips, so nothing is measured: it tells what `tpuctl sim load` said that it should. Until then no
host has it, as none has without a program. tpu-info's own functions read it (tests/telemetry/test_tpu_info.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from tpuctl.errors import UsageError
from tpuctl.sim.wire.splice import CHUNK, Streams, splice
from tpuctl.telemetry.messages import DUTY, HBM_TOTAL, HBM_USED, METHODS, QUEUE, SERVICE, message

TRANSFERS = tuple(
    f"megascale.{name}.microsecond.cumulative.distribution"
    for name in (
        "dcn_transfer_latencies",
        "dcn_inbound_transfer_latencies",
        "host_to_device_transfer_latencies",
        "device_to_host_transfer_latencies",
        "collective_end_to_end_latencies",
        "mxla_compute_latencies",
        "grpc_tcp_min_rtt",
    )
)
"""By size of buffer, as `megascale.*` of libtpu 0.0.42."""
RATES = ("megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution",)
BANDWIDTH = "tpu.runtime.hbm.utilization.percent"
IDLE = "tpu.runtime.tensorcore.idle_duration.seconds"
TIMING = "hlo.execution.timing.distribution.microseconds"
NAMES = (HBM_TOTAL, HBM_USED, DUTY, BANDWIDTH, IDLE, QUEUE, TIMING, *TRANSFERS, *RATES)
"""What tpu-info 0.14.2 asks for (`tpu_info.metrics`)."""
DRIFTED = (HBM_TOTAL, "tpu.runtime.hbm.memory.usage.v2.bytes", DUTY, IDLE)
"""Another version of libtpu: names come and go, and of one that it lists it tells nothing."""
GROWTH, SCALE, BUCKETS = 2.0, 1.0, 20


class Load(Struct, frozen=True, forbid_unknown_fields=True):
    """What the program of one host does with its chips. Memory is in GiB for each device.

    `ports`: one service for each, which share the devices. `server`: `answers`, `hangs` (takes connections and
    says nothing), `drifted` (has other metrics, and lists one that it has not), or `plain` (tells
    neither what it has nor what cores execute).
    """

    hbm_gib: Annotated[float, Meta(ge=0)] = 12.0
    duty: Annotated[float, Meta(ge=0, le=100)] = 90.0
    bandwidth: Annotated[float, Meta(ge=0, le=100)] = 40.0
    queue: Annotated[int, Meta(ge=0, le=1000)] = 1
    idle_s: Annotated[float, Meta(ge=0)] = 0.0
    ports: tuple[Annotated[int, Meta(ge=1024, le=65535)], ...] = (8431,)
    server: Literal["answers", "hangs", "drifted", "plain"] = "answers"
    launch: int = 1000
    run: int = 1000
    fingerprint: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")] = "8d0f6ba4c2e19357"
    error: str = ""
    location: str = "fusion.42"


def change_load(load: Load, fields: Mapping[str, str]) -> Load:
    """The load with these fields, whose values are text. Raises UsageError."""
    for name, value in fields.items():
        word = tuple(value.split(",")) if name == "ports" else value
        try:
            load = convert({**asdict(load), name: word}, Load, strict=False)
        except ValidationError as error:
            known = ", ".join(f"{name}={value}" for name, value in asdict(Load(error="text")).items())
            hint = known.replace("(", "").replace(",)", "")
            raise UsageError(f"this is no load: {name}={value}", hint=hint) from error
    return load


class Devices(Struct, frozen=True):
    """The devices that one service tells of, by their ids in the slice, and how much memory each has."""

    load: Load
    ids: Sequence[int]
    per_chip: int
    hbm_bytes: int
    hostname: str

    @property
    def chips(self) -> Sequence[int]:
        return self.ids[:: self.per_chip]


def share(devices: Devices) -> Iterator[tuple[int, Devices]]:
    """By port, the devices of each service of a host: each has those of its own process."""
    ports = devices.load.ports
    chips = len(devices.chips)
    for number, port in enumerate(ports):
        first, last = (each * chips // len(ports) * devices.per_chip for each in (number, number + 1))
        yield port, replace(devices, ids=devices.ids[first:last])


Client = tuple[asyncio.AbstractEventLoop, asyncio.StreamWriter]


class MetricsServers:
    """One gRPC server for the services of all hosts. What connects to a port of a host is passed on to it from
    a port of its own, by which the server knows whom it was meant for."""

    def __init__(self) -> None:
        self._server: Any = None
        self._port = 0
        self._asked: dict[str, Devices] = {}
        self._clients: dict[str, set[Client]] = {}

    def streams(self, devices: Devices) -> Streams:
        """What answers on a port of a host."""
        self._start()
        clients = self._clients.setdefault(devices.hostname, set())

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client, known = (asyncio.get_running_loop(), writer), []

            def note(port: int) -> None:
                known.append(str(port))
                self._asked[known[0]] = devices

            clients.add(client)
            try:
                if devices.load.server == "hangs":
                    await _hang(reader, writer)
                else:
                    await splice(reader, writer, "127.0.0.1", self._port, on_open=note)
            finally:
                clients.discard(client)
                for each in known:
                    self._asked.pop(each, None)

        return serve

    def end(self, hostname: str) -> None:
        """Cuts who is connected to a program of that host, as its end does."""
        for loop, writer in list(self._clients.get(hostname, ())):
            loop.call_soon_threadsafe(writer.transport.abort)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(None)

    def _start(self) -> None:
        if self._server is not None:
            return
        import grpc

        self._server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="sim-metrics"))
        answers: Mapping[str, Callable[[Devices, Any], Any]] = {
            "GetRuntimeMetric": _metric,
            "ListSupportedMetrics": _supported,
            "GetTpuRuntimeStatus": _status,
        }
        handlers = {name: self._handler(grpc, name, answer) for name, answer in answers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _handler(self, grpc: Any, method: str, answer: Callable[[Devices, Any], Any]) -> Any:
        def handle(request: Any, context: Any) -> Any:
            devices = self._asked[context.peer().rpartition(":")[2]]
            try:
                return answer(devices, request)
            except NotImplementedError:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
            except KeyError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, f"metric {error} not found")

        request, response = (message(name) for name in METHODS[method])
        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(CHUNK):
        pass
    writer.close()


def _supported(devices: Devices, request: Any) -> Any:
    if devices.load.server == "plain":
        raise NotImplementedError
    listed = (*DRIFTED, QUEUE) if devices.load.server == "drifted" else NAMES
    names = [name for name in listed if request.filter in name]
    return message("ListSupportedMetricsResponse")(supported_metric=[{"metric_name": name} for name in names])


def _metric(devices: Devices, request: Any) -> Any:
    """KeyError for a metric that this version has not."""
    name, load = request.metric_name, devices.load
    if devices.load.server == "drifted" and name not in DRIFTED:
        raise KeyError(name)
    used = min(devices.hbm_bytes, int(load.hbm_gib * (1 << 30)))
    gauges: Mapping[str, tuple[Sequence[int], dict[str, Any]]] = {
        HBM_TOTAL: (devices.ids, {"as_int": devices.hbm_bytes}),
        HBM_USED: (devices.ids, {"as_int": used}),
        DRIFTED[1]: (devices.ids, {"as_int": used}),
        DUTY: (devices.chips, {"as_double": load.duty}),
        BANDWIDTH: (devices.ids, {"as_double": load.bandwidth}),
        IDLE: (devices.ids, {"as_double": load.idle_s}),
    }
    if name in gauges:
        ids, value = gauges[name]
        rows = [{"attribute": {"key": "device-id", "value": {"int_attr": i}}, "gauge": value} for i in ids]
    elif name == QUEUE:
        rows = [{"attribute": _ordinal(i), "gauge": {"as_int": load.queue}} for i in devices.ids]
    elif name == TIMING:
        rows = [{"attribute": _ordinal(i), "distribution": _distribution(load)} for i in devices.ids]
    else:
        sizes = {"key": "attributes", "value": {"kvlist_attr": {"attributes": [_text("buffer-size", "8M+")]}}}
        rows = [{"attribute": sizes, "distribution": _distribution(load)}]
    return message("MetricResponse")(metric={"name": name, "metrics": rows})


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"string_attr": value}}


def _ordinal(device: int) -> dict[str, Any]:
    named = [_text("device_ordinal", str(device)), _text("core_type", "TENSOR_CORE")]
    return {"key": "attributes", "value": {"kvlist_attr": {"attributes": named}}}


def _distribution(load: Load) -> dict[str, Any]:
    """All programs take about as long: a millisecond, or longer the busier the chips are."""
    counts = [0] * BUCKETS
    counts[10 + int(load.duty // 25)] = 1000
    options = {"num_finite_buckets": BUCKETS - 2, "growth_factor": GROWTH, "scale": SCALE}
    mean = SCALE * GROWTH ** (9.5 + load.duty // 25)
    buckets = {"exponential_buckets": options}
    return {"count": 1000, "mean": mean, "bucket_options": buckets, "bucket_counts": counts}


def _status(devices: Devices, request: Any) -> Any:
    """What every core executes: the same program on all of a host."""
    if devices.load.server in ("plain", "drifted"):
        raise NotImplementedError
    entries = [
        {"key": core, "value": _core(devices.load, core, core // devices.per_chip, request.include_hlo_info)}
        for core in devices.ids
    ]
    return message("GetTpuRuntimeStatusResponse")(host_name=devices.hostname, core_states=entries)


def _core(load: Load, core: int, chip: int, hlo: bool) -> dict[str, Any]:
    program = bytes.fromhex(load.fingerprint)
    sequencer: dict[str, Any] = {"sequencer_type": 1, "sequencer_index": 0, "pc": 4096, "run_id": load.run}
    queued = range(1, load.queue + 1)
    return {
        "core_id": {"global_core_id": core, "chip_id": chip, "core_on_chip": {"type": 1, "index": 0}},
        "sequencer_info": [{**sequencer, **({"hlo_location": load.location} if hlo else {})}],
        "program_fingerprint": program,
        "launch_id": load.launch,
        "queued_program_info": [
            {"run_id": load.run + n, "launch_id": load.launch + n, "program_fingerprint": program}
            for n in queued
        ],
        **({"error_message": load.error} if load.error else {}),
    }
