"""The loop in the foreground over many subjects at once: each gets a step in turn, and all wait together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tpuctl.engine.events import Waiting, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, PendingError, StaleRecordError, TpuctlError
from tpuctl.model import timeouts
from tpuctl.model.verdict import Blocked, Done, Failed, render_wait

Step = Callable[[], Outcome]
ROUNDS_WITHOUT_WAIT = 20
"""Without waiting, steps go on while they succeed at once, but never for ever."""
NAMED = 3
"""How many of those that wait are named."""


class ReconcileGroup:
    """Subjects on their way. `failed` has the errors of those that will not get there, by subject."""

    def __init__(self, services: Services, title: str, steps: Mapping[str, Step]) -> None:
        self._services = services
        self._title = title
        self._left = dict(steps)
        self._count = len(steps)
        self._waits: dict[str, str] = {}
        self.failed: dict[str, TpuctlError] = {}

    def converge(self, deadline: float | None) -> None:
        """Rounds until every subject is done or has failed. Raises PendingError once `deadline` has passed."""
        clock = self._services.clock
        since, pause, last = clock.now(), timeouts.POLL_FIRST_S, ""
        while self._left:
            if self._round():
                pause, last = timeouts.POLL_FIRST_S, ""
                continue
            if not self._left:
                return
            text = self._waiting_for()
            if text != last:
                since, last = clock.now(), text
            self._services.emit(Waiting(self._title, text, since))
            if deadline is not None and clock.now() >= deadline:
                raise PendingError(
                    f"{self._title}: out of time while {render_wait(text, coming=False)}",
                    hint="what was asked for stands; the same command goes on waiting for it",
                )
            clock.sleep(pause)
            pause = min(timeouts.POLL_MAX_S, pause * timeouts.POLL_FACTOR)

    def advance(self) -> None:
        """Rounds while something can be done at once."""
        for _ in range(ROUNDS_WITHOUT_WAIT):
            if not self._round():
                return

    def _round(self) -> bool:
        """One step for each that is left. Whether any of them changed something."""
        acted = False
        for subject in list(self._left):
            try:
                outcome = self._left[subject]()
            except (LeaseHeldError, StaleRecordError) as error:
                self._waits[subject] = error.message
                continue
            except TpuctlError as error:
                self._fail(subject, error)
                continue
            acted = acted or outcome.acted
            self._note(subject, outcome)
        return acted

    def _note(self, subject: str, outcome: Outcome) -> None:
        verdict = outcome.verdict
        if isinstance(verdict, Failed):
            self._fail(subject, verdict.error)
        elif isinstance(verdict, Blocked) and not outcome.acted:
            self._fail(subject, TpuctlError(f"{subject}: {verdict.why}", hint=verdict.hint))
        elif isinstance(verdict, Done) and not outcome.acted:
            del self._left[subject]
        else:
            self._waits[subject] = verdict.why

    def _fail(self, subject: str, error: TpuctlError) -> None:
        self.failed[subject] = error
        del self._left[subject]
        self._services.emit(Warn(subject, error.message))

    def _waiting_for(self) -> str:
        """What most of those that are left wait for, and who they are."""
        reasons: dict[str, list[str]] = {}
        for subject in self._left:
            reasons.setdefault(self._waits[subject], []).append(subject)
        if len(self._left) == 1:
            ((why, (subject,)),) = reasons.items()
            return f"{subject}: {why}"
        names = list(self._left)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{len(names)} of {self._count}: {', '.join(names[:NAMED])}{more}"
