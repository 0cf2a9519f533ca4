"""The client of libtpu's runtime metrics service, which each process that has chips runs.

`tpu-info` asks it on the host itself; here the channel leads there over ssh. grpc is imported by who calls, as
it takes an eighth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tpuctl.telemetry.messages import DUTY, HBM_TOTAL, HBM_USED, METHODS, QUEUE, SERVICE, message
from tpuctl.telemetry.sample import CoreState, Values

READ = (HBM_USED, HBM_TOTAL, DUTY, QUEUE)


def open_channel(port: int) -> Any:
    """A channel to a port of this machine's loopback. No proxy leads there, whatever the variables say."""
    import grpc

    return grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])


def read_metrics(channel: Any, timeout_s: float, names: Iterable[str] = READ) -> Mapping[str, Values]:
    """Those of the metrics that this version of libtpu has, by device. Names drift from version to version, so
    it is asked first which there are; where it cannot say, all are asked for. One that fails is left out.
    Raises `grpc.RpcError` where nothing is told, also where that takes longer."""
    import time

    import grpc

    until = time.monotonic() + timeout_s
    known = asked = list(names)
    try:
        listed = _call(channel, "ListSupportedMetrics", timeout_s).result()
        known = [each.metric_name for each in listed.supported_metric]
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
    left_s = max(0.01, until - time.monotonic())
    calls = {n: _call(channel, "GetRuntimeMetric", left_s, metric_name=n) for n in asked if n in known}
    found, failed = {}, None
    for name, call in calls.items():
        try:
            found[name] = _values(call.result().metric.metrics)
        except grpc.RpcError as error:
            failed = error
    if failed is not None and not found:
        raise failed
    return found


def read_core_states(
    channel: Any, timeout_s: float, *, worker: int, port: int, hlo: bool = False
) -> list[CoreState]:
    """What each core executes; with `hlo` also where in the program, which costs the host something. Raises
    `grpc.RpcError`."""
    answer = _call(channel, "GetTpuRuntimeStatus", timeout_s, include_hlo_info=hlo).result()
    return [_core(worker, port, entry) for entry in sorted(answer.core_states, key=lambda each: each.key)]


def _call(channel: Any, method: str, timeout_s: float, **fields: Any) -> Any:
    """Begins the call; its `result()` waits for the answer."""
    request, response = (message(name) for name in METHODS[method])
    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    return call.future(request(**fields), timeout=timeout_s)


def _values(metrics: Iterable[Any]) -> Values:
    found = ((_device(each.attribute.value), each.gauge) for each in metrics)
    return [
        (device, gauge.as_int if gauge.HasField("as_int") else gauge.as_double)
        for device, gauge in found
        if device is not None
    ]


def _device(value: Any) -> int | None:
    """Memory and duty name it as a number; `hlo.*` among other attributes, as `device_ordinal`: a number in
    older versions of libtpu, text in newer ones (tpu-info 0.14.2, `get_hlo_queue_size`)."""
    if not value.HasField("kvlist_attr"):
        return int(value.int_attr)
    for each in value.kvlist_attr.attributes:
        if each.key == "device_ordinal":
            text = each.value.string_attr
            if not each.value.HasField("string_attr"):
                return int(each.value.int_attr)
            return int(text) if text.isdecimal() else None
    return None


def _core(worker: int, port: int, entry: Any) -> CoreState:
    core = entry.value
    running = [each for each in core.sequencer_info if each.HasField("run_id")]
    return CoreState(
        worker,
        entry.key,
        port,
        core.core_id.chip_id if core.HasField("core_id") else None,
        core.program_fingerprint.hex(),
        core.launch_id if core.HasField("launch_id") else None,
        running[0].run_id if running else None,
        len(core.queued_program_info),
        core.error_message,
        next((each.hlo_location for each in core.sequencer_info if each.hlo_location), ""),
    )
