"""What only the simulator offers: look at the state, preempt, plan faults, read the journal, shut down."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import parse_body
from tpuctl.sim.wire.status import ApiError, Code
from tpuctl.sim.world.world import World

PREFIX = "/_sim/"
HELP_TYPE = "type.googleapis.com/google.rpc.Help"


class AdminApi:
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
            ("POST", "reboot"): self._reboot,
            ("POST", "quotas"): self._set_quotas,
            ("POST", "set"): self._set_fields,
            ("POST", "crash"): self._crash,
            ("GET", "delays"): lambda _: self._world.delays.at(self._world.options.speed),
            ("POST", "delays"): lambda asked: self._world.steering.set_delays(parse_body(asked)),
            ("POST", "capacity"): lambda asked: self._world.steering.set_capacity(parse_body(asked)),
            ("GET", "reservations"): lambda _: self._world.steering.reservations(),
            ("POST", "reservations"): self._set_reservation,
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
        fault = self._world.faults.add(parse_body(request)).to_json()
        self._world.follow_os_login()
        return fault

    def _clear_faults(self, request: Request) -> object:
        del request
        self._world.faults.clear()
        self._world.follow_os_login()
        return {}

    def _preempt(self, request: Request) -> object:
        body = parse_body(request)
        return {"preempted": self._world.preempt(str(body.get("node")), body.get("zone"))}

    def _reboot(self, request: Request) -> object:
        body = parse_body(request)
        workers = [int(worker) for worker in body.get("workers") or ()]
        return {"rebooted": self._world.reboot(str(body.get("node")), body.get("zone"), workers or None)}

    def _crash(self, request: Request) -> object:
        body = parse_body(request)
        workers = [int(worker) for worker in body.get("workers") or ()]
        return {"crashed": self._world.fail_hosts(str(body.get("node")), body.get("zone"), workers or None)}

    def _set_fields(self, request: Request) -> object:
        body = parse_body(request)
        fields = {str(key): str(value) for key, value in (body.get("fields") or {}).items()}
        return {"set": self._world.steering.set_fields(str(body.get("name")), body.get("zone"), fields)}

    def _set_reservation(self, request: Request) -> object:
        body = parse_body(request)
        name, zone, generation = (str(body.get(key) or "") for key in ("name", "zone", "generation"))
        return self._world.steering.set_reservation(name, zone, generation, body.get("chips", 0))

    def _set_quotas(self, request: Request) -> object:
        body = parse_body(request)
        for key, limit in body.items():
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise UsageError(f"quota {key}: {limit!r} is not a whole number", hint=f"{key}=8")
        return self._world.set_quotas(body)

    def _set_metadata(self, request: Request) -> object:
        self._world.set_metadata({key: str(value) for key, value in parse_body(request).items()})
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
