"""What only the simulator offers: look at the state, preempt, plan faults, read the journal, shut down."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.status import ApiError, Code
from tpuctl.sim.tpu_rest import parse_body
from tpuctl.sim.world import World

PREFIX = "/_sim/"
HELP_TYPE = "type.googleapis.com/google.rpc.Help"


class AdminDoor:
    """Every path below /_sim/."""

    def __init__(self, world: World, *, on_reset: Callable[[], None], on_shutdown: Callable[[], None]) -> None:
        self._world = world
        self._on_reset = on_reset
        self._on_shutdown = on_shutdown

    def handle(self, request: Request) -> Response:
        action = (request.method, request.path.removeprefix(PREFIX))
        handlers: dict[tuple[str, str], Callable[[Request], object]] = {
            ("GET", "state"): lambda _: self._world.snapshot(),
            ("GET", "journal"): lambda _: [each.to_json() for each in self._world.journal.entries()],
            ("GET", "faults"): lambda _: [each.to_json() for each in self._world.faults.list_active()],
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("POST", "preempt"): self._preempt,
            ("POST", "quotas"): self._set_quotas,
            ("POST", "metadata"): self._set_metadata,
            ("POST", "reset"): self._reset,
            ("POST", "shutdown"): self._shutdown,
        }
        if action not in handlers:
            raise ApiError(Code.NOT_FOUND, f"the simulator has no {request.method} {request.path}")
        try:
            return json_response(handlers[action](request))
        except NotFoundError as error:
            raise _refusal(Code.NOT_FOUND, error) from error
        except TpuctlError as error:
            raise _refusal(Code.INVALID_ARGUMENT, error) from error

    def _add_fault(self, request: Request) -> object:
        return self._world.faults.add(parse_body(request)).to_json()

    def _clear_faults(self, request: Request) -> object:
        del request
        self._world.faults.clear()
        return {}

    def _preempt(self, request: Request) -> object:
        body = parse_body(request)
        return {"preempted": self._world.preempt(str(body.get("node")), body.get("zone"))}

    def _set_quotas(self, request: Request) -> object:
        body = parse_body(request)
        for key, limit in body.items():
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise UsageError(f"quota {key}: {limit!r} is not a whole number", hint=f"{key}=8")
        return self._world.set_quotas(body)

    def _set_metadata(self, request: Request) -> object:
        self._world.metadata.update({key: str(value) for key, value in parse_body(request).items()})
        return dict(self._world.metadata)

    def _reset(self, request: Request) -> object:
        del request
        self._world.reset()
        self._on_reset()
        return {}

    def _shutdown(self, request: Request) -> object:
        del request
        self._on_shutdown()
        return {}


def _refusal(code: Code, error: TpuctlError) -> ApiError:
    """The hint travels beside the message, as `google.rpc.Help`."""
    help_ = {"@type": HELP_TYPE, "links": [{"description": error.hint}]}
    return ApiError(code, error.message, () if error.hint is None else (help_,))
