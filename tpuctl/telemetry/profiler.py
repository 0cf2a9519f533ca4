"""The client of a program's own profiler server: that of `jax.profiler.start_server` or of PyTorch/XLA's.

The server answers no data, but writes `ROOT/SESSION/HOST.xplane.pb` on its own disk. How long it traces is said
among the options: jaxlib 0.10.2 takes no notice of the same in the request, and answers an empty trace at once.
"""

from __future__ import annotations

from typing import Any

from tpuctl.telemetry.libtpu import open_channel
from tpuctl.telemetry.messages import message

METHOD = "/tensorflow.ProfilerService/Profile"
OUT = "out"
"""Of the folder of a trace on a host, what is fetched; as in `tpuctl/agent/trace_hook.py`."""
FILE = "server"
WRITE_S = 120.0
"""So long after its time a server may write."""


class ProfilerCall:
    """A call under way."""

    def __init__(self, channel: Any, call: Any) -> None:
        self._channel = channel
        self._call = call

    @property
    def done(self) -> bool:
        return bool(self._call.done())

    @property
    def trouble(self) -> str:
        """Why nothing came of it; empty while it goes on, or if it did."""
        if not self.done or self._call.cancelled():
            return ""
        error = self._call.exception()
        if error is not None:
            return f"its profiler server refused: {error.details() or error.code().name}"
        return "its profiler server traced nothing" if self._call.result().empty_trace else ""

    def close(self) -> None:
        """Ends the call where it still goes on."""
        self._call.cancel()
        self._channel.close()


def begin_profile(port: int, folder: str, seconds: float, *, python: bool = False) -> ProfilerCall:
    """Has the server to which a port of this machine leads trace now, and write below `folder` of its host."""
    request, response = message("ProfileRequest"), message("ProfileResponse")
    channel = open_channel(port)
    call = channel.unary_unary(
        METHOD, request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )
    milliseconds = round(seconds * 1000)
    options = {"version": 1, "host_tracer_level": 2, "device_tracer_level": 1, "duration_ms": milliseconds}
    asked = request(
        duration_ms=milliseconds,
        opts=message("ProfileOptions")(**options, python_tracer_level=int(python)),
        repository_root=folder,
        session_id=OUT,
        host_name=FILE,
    )
    return ProfilerCall(channel, call.future(asked, timeout=seconds + WRITE_S))
