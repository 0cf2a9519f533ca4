"""What only the simulator offers: look at the state, preempt, plan faults, read the journal, shut down."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import parse_body
from tpuctl.sim.wire.status import ApiError, Code, Json
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
        handlers = self._handlers()
        if action not in handlers:
            raise ApiError(Code.NOT_FOUND, f"the simulator has no {request.method} {request.path}")
        try:
            return json_response(handlers[action](parse_body(request)))
        except NotFoundError as error:
            raise _refusal(Code.NOT_FOUND, error) from error
        except TpuctlError as error:
            raise _refusal(Code.INVALID_ARGUMENT, error) from error

    def _handlers(self) -> dict[tuple[str, str], Callable[[Json], object]]:
        world, steering = self._world, self._world.steering
        return {
            ("GET", "state"): lambda _: world.snapshot(),
            ("GET", "journal"): lambda _: [each.to_json() for each in world.journal.entries()],
            ("GET", "faults"): lambda _: [each.to_json() for each in world.faults.list_active()],
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): lambda _: self._end(world.faults.clear, world.follow_os_login),
            ("POST", "preempt"): lambda body: world.preempt(*_meant(body)),
            ("POST", "reboot"): lambda body: world.reboot(*_meant(body)),
            ("POST", "crash"): lambda body: world.fail_hosts(*_meant(body)),
            ("POST", "load"): lambda body: world.set_load(*_meant(body), body.get("fields")),
            ("POST", "quotas"): self._set_quotas,
            ("POST", "set"): self._set_fields,
            ("GET", "delays"): lambda _: world.delays.at(world.options.speed),
            ("POST", "delays"): steering.set_delays,
            ("POST", "capacity"): steering.set_capacity,
            ("GET", "reservations"): lambda _: steering.reservations(),
            ("POST", "reservations"): self._set_reservation,
            ("POST", "metadata"): self._set_metadata,
            ("POST", "reset"): lambda _: self._end(world.reset, self._on_reset),
            ("POST", "shutdown"): lambda _: self._end(self._on_shutdown),
        }

    @staticmethod
    def _end(*actions: Callable[[], None]) -> object:
        for action in actions:
            action()
        return {}

    def _add_fault(self, body: Json) -> object:
        fault = self._world.faults.add(body).to_json()
        self._world.follow_os_login()
        return fault

    def _set_fields(self, body: Json) -> object:
        fields = {str(key): str(value) for key, value in (body.get("fields") or {}).items()}
        return {"set": self._world.steering.set_fields(str(body.get("name")), body.get("zone"), fields)}

    def _set_reservation(self, body: Json) -> object:
        name, zone, generation = (str(body.get(key) or "") for key in ("name", "zone", "generation"))
        return self._world.steering.set_reservation(name, zone, generation, body.get("chips", 0))

    def _set_quotas(self, body: Json) -> object:
        for key, limit in body.items():
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise UsageError(f"quota {key}: {limit!r} is not a whole number", hint=f"{key}=8")
        return self._world.set_quotas(body)

    def _set_metadata(self, body: Json) -> object:
        self._world.set_metadata({key: str(value) for key, value in body.items()})
        return dict(self._world.metadata)


def _meant(body: Json) -> tuple[str, str | None, list[int] | None]:
    """Name, zone and workers."""
    workers = [int(worker) for worker in body.get("workers") or ()]
    return str(body.get("node")), body.get("zone"), workers or None


def _refusal(code: Code, error: TpuctlError) -> ApiError:
    """The hint travels beside the message, as `google.rpc.Help`."""
    help_ = {"@type": HELP_TYPE, "links": [{"description": error.hint}]}
    return ApiError(code, error.message, () if error.hint is None else (help_,))
