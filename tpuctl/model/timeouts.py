"""Every limit and interval, each with the reason for its value. Seconds."""

from __future__ import annotations

import hashlib

POLL_FIRST_S = 0.2
"""First wait of a foreground loop: a simulated or cached answer is often there at once."""
POLL_FACTOR = 1.5
POLL_MAX_S = 5.0
"""Ceiling of the foreground poll. gcloud polls every 2 s; the API's read quota is not published, and 5 s keeps
a few terminals of one project far below what fleet tools are known to use (64 concurrent reads every 10 s)."""

STEP_MAX_S = 20.0
"""No step blocks longer; what takes longer on a host is a supervised host job that later passes observe."""

VERDICT_MAX_S = 90.0
"""How long a failing worker may stay unexplained before a budget is charged: the TPU API shows a preemption
within about a minute (log of 53 spot preemptions, 65 s polls)."""
VERDICT_READ_GAP_S = 2.0
"""Least time between the two reads that must agree that the slice is alive."""
ACKNOWLEDGE_MAX_S = 30.0
"""How long workers that answer may refuse to prepare or start before the attempt counts as failed."""

BACKOFF_FIRST_S = 10.0
BACKOFF_MAX_S = 600.0
"""Between creates after a stockout. A failed create blocks for p50 65..590 s in the field, so waiting longer
than ten minutes only loses capacity."""

HUNT_PATIENCE_S = 600.0
"""How long a request may wait in the queue of one zone while another zone of the slice is not backed off: where
there is capacity, 9 of 10 queued requests get it within minutes; leaving a queue loses the place in it."""

BOOT_GRACE_S = 300.0
"""A READY node whose hosts do not answer SSH is still booting for this long: first boot runs apt and agents."""
UNREACHABLE_MAX_S = 900.0
"""After this long in doubt a READY node whose hosts do not answer is given up and asked for again, if this
machine can prove that it is not itself the one that is cut off."""
UNREACHABLE_LEAST_S = 300.0
"""The least such time where waiting is dear: a host that only reboots is back within it."""
UNREACHABLE_USD = 10.0
"""Waiting is dear where it would cost more than that, by list prices: to make a large slice anew takes minutes
as well, but silence in one of many hosts says as much after five minutes as after fifteen."""
HOST_HEARTBEAT_S = 60.0
"""Between two heartbeats that a run's supervisor publishes in its host's guest attributes: far below the limits
of Compute Engine ("Set and query guest attributes"), and often enough to tell within minutes."""
BEAT_READ_GAP_S = 45.0
"""Least time between two reads of heartbeats: less than a minute, so that each pass of a cron job counts."""
BEAT_STILL_READS = 8
"""So often in a row the same value means that a heartbeat stands still: at least 5 minutes, in which a host
that lives has written five times. Reads are counted, because clocks jump."""
BEAT_FORGET_S = 3600.0
"""What was read of heartbeats longer ago says nothing about what is read now."""
KEYS_RETRY_S = 600.0
"""Between two tries to give a live node the keys of machines: a PATCH of its metadata takes minutes to show."""
UNREAD_TOLD_S = 3.0
"""So long after the first read that failed the whole reason is told; each read is tried several times."""
UNREAD_UNSENT_S = 10.0
"""So long after it a command that has nothing in flight ends, and leaves nothing behind."""
KEY_SHOWS_S = 600.0
"""So long after a node is READY, or after its keys were sent, hosts may refuse a key that its metadata has: the
guest agent makes the account after SSH answers, and a PATCH of metadata takes minutes. Then it never comes."""
HOST_KEYS_MAX_S = 600.0
"""So long a READY node may show no host keys before a person is asked: hosts publish them while they boot."""
OUTLIVED_S = 1800.0
"""So long after its `--ttl` Compute Engine itself ends a slice, if nothing of ours did: time for a pass, for
the warning of its hosts, and to bring what they wrote to where it belongs."""
RETRY_FIRST_S = 10.0
RETRY_MAX_S = 60.0
"""Between two deletes or creates of one resource, as the same answer goes on: operations take tens of seconds,
and a DELETE that was taken while a create settles may be dropped silently (measured by a user of the API)."""
RETRY_ASK_S = 3600.0
"""After so long of refusals, or of deletes that are taken and show no effect, a person is asked; they go on."""
LISTS_S = 90.0
"""For lists of all zones by several APIs at once: one may take a minute, and is tried again."""
ZONE_LISTS_S = 180.0
"""So long a pass goes on listing single zones where a list of all did not do: each may take a minute."""
DELETING_MAX_S = 900.0
"""So long after a loss and its DELETE the next incarnation does not wait any more for the last to be deleted:
names are not used again, and deletions take a minute or two. A person is told: what hangs still counts against
quota."""
KEYS_BUSY_S = 60.0
"""Between two tries to give keys to a node that an operation holds."""
ADOPT_BUSY_MAX_S = 300.0
"""So long `adopt` waits for a node that an operation holds: a PATCH takes tens of seconds to minutes."""
NODE_MISSING_MAX_S = 600.0
"""How long a node may be missing under a queued resource that says ACTIVE: the API shows the suspension within
minutes, and single reads have been wrong."""
CREATE_STALLED_S = 900.0
"""After this long an operation that runs on without anything to show for it is not waited for any more: nodes
are listed from the start, failed creates end within ten minutes (p50), and some operations never end. What
comes up later all the same belongs to an incarnation that was left behind, and is collected."""
UNSEEN_S = 120.0
"""After a create that has shown nothing yet: so long its absence is not believed when the slice is to go. A
client gives up on an answer after a minute, and reads may lag behind."""
LATE_EFFECT_S = 86_400.0
"""So long after a create passes go on looking at the project although every slice is gone: two list calls a
pass are cheap beside a TPU that came up late and that nobody knows of."""
PASS_HOSTS_MAX = 64
"""Hosts that one watchdog pass connects to, so that its length is bounded; the others have their turn later."""

FOLLOW_STATUS_S = 1.0
"""While output is followed: between two looks at the workers' own status."""
FOLLOW_PER_HOST_S = 0.01
"""For each host at least so long between two such looks, which cost 1 to 3 ms of this machine's processor for
each: that matters beyond 100 hosts."""
FOLLOW_CLOUD_S = 5.0
"""While output is followed: between two looks at the node in the API."""
FOLLOW_TIMES_S = 5.0
"""While output is followed: between two fetches of the times at which it was written; `logs` sorts by them."""
FOLLOW_BUCKETS_S = 30.0
"""While output is followed: between two looks whether the buckets of mounts are there; each is an operation."""

UNCLEAR_MAX_S = 3600.0
"""After so long in a state that we do not know a slice needs a human: every state that is known to pass does so
within the hour."""
RUN_BEGINS_S = 600.0
"""From a slice that is made for a run to the record of that run only its code is stored; what takes longer was
ended in between."""

JOIN_MAX_S = 300.0
"""So long processes of a run wait for another that has not begun to take its devices: as long as JAX itself
waits for the others (`initialization_timeout` of `jax.distributed.initialize`). Large slices need minutes, and
so may a first worker that prepares something for all."""

REACH_S = 5
"""For a connection from one host of a slice to another: TCP sends its first packet again after 1 and 3 s."""
BUCKET_ACCESS_S = 8
"""For a host to ask buckets what it may do with them; what is not known by then does not keep a run from
starting."""

STALL = "15m"
"""So long without a sign of life after its first one a program stands still: evaluations and checkpoints of
large models take minutes."""
FIRST_STEP_LIMIT = "3h"
"""Before its first step nothing is said of it: whole-graph compiles of an hour are legal."""

SMOKE_S = 100.0
"""For the smoke test of a slice, which ends within two minutes: it compiles two small programs, and libtpu
takes up to a minute to begin."""

PROBE_S = 600.0
"""For the probe of data, twice: it starts the program's own loader, which may list and shuffle first."""

LEASE_TTL_S = 60.0
"""A lease outlives the longest step (3 steps of 20 s)."""

CHIPS_BUSY_S = 60.0
"""The kernel gives chips free 10 to 30 s after their process was killed; after twice that somebody has them."""

STOP_GRACE_S = 30.0
"""Default time between TERM and KILL for a run: enough for a checkpoint of a small model."""
STOP_MAX_S = 60.0
"""Beyond the grace period: a worker that has not ended by then hangs in the kernel; nothing waits for it."""
EXIT_RESTART = 75
"""EX_TEMPFAIL of sysexits.h: the script asks to be started again."""
GUEST_ATTRIBUTES_S = 60.0
"""A host publishes its keys while it boots; a ready node without any for so long has them turned off."""
MAX_FAILURES = 3
MAX_PREEMPTIONS = 100
MAX_RESTARTS = 20
"""Default budgets: how often a run is started again after failures, after preemptions, and after exit status
75. A few failures are not the program's: faults of libtpu and of the links between chips ("Core halted
unexpectedly", "slice failed to connect") end it with an exit status while the node stays READY. More than a few
are a bug, which does not go away."""
QUICK_FAILURE_S = 60.0
"""A program that fails within this time of its start and then again in the same way is broken: it is not tried
any more, whatever is left of its budget. A fault of the hardware takes longer, for the chips are set up
first."""

KEEP_JOBSET_S = 7 * 86400
"""How long a JobSet that is over stays in its cluster: a week in which its pods can be looked at."""

WATCH_INTERVAL_S = 60.0
"""Between two passes of the watchdog, unless it was installed with another: cron's shortest."""
WATCH_STALE_INTERVALS = 3
"""So many intervals without a pass mean that passes have stopped: one may be late, one may be skipped."""
PASS_MAX_S = 900.0
"""A pass that takes longer hangs and is killed; the next one goes on where things stand."""
PING_TIMEOUT_S = 10.0
HOOK_TIMEOUT_S = 30.0
"""Default time for a hook's command or webhook."""
HOOKS_MAX_S = 150.0
"""After so long no further event is sent in one pass, for the next one waits, and sends the rest."""
PUBLISH_MAX_S = 150.0
"""After so long no further page is written in one pass, for the same reason; the next pass writes the rest."""
HOOK_TRIES = 5
"""Passes in which an event is tried before it is given up, so that later ones get their turn."""
HOOK_MEMORY_S = 7 * 86400.0
"""Runs that ended earlier are not looked at for events any more."""
TROUBLE_PASSES = 3
"""A subject that fails in so many passes in a row needs a human; once may be a blip of the API."""

BLOB_FRESH_S = 86400.0
"""A blob that was stored or renewed this lately may be relied on by who is about to refer to it."""
PRUNE_AFTER_S = 14 * 86400.0
"""Default age from which a blob that nothing refers to is removed."""
PRUNE_AFTER_LEAST_S = 2 * BLOB_FRESH_S
"""The least such age: from the renewal of a blob to the record that refers to it there is a day at least."""
JOURNAL_KEPT_S = 90 * 86400.0
"""Entries of the journal of slices that are gone stay for so long."""
RUN_JOURNAL_KEPT_S = 180 * 86400.0
"""So long after a run ended its journal stays; its record, attempts and manifests stay until somebody asks."""
LOGS_YOUNG_S = 86400.0
"""So long after the end of a run its logs stay on the machine that has them, whatever their limit: somebody is
about to read them."""
RUNS_KEPT_LEAST_S = 30 * 86400.0
"""No younger run is removed with its manifests, whatever is asked: that proof cannot be had again."""
PRUNE_EVERY_S = 86400.0
"""Between two prunings by the watchdogs of one store."""
KUBE_CALL_S = 20.0
"""One request to a Kubernetes API server: an admission webhook has 10 s, and a list of 500 objects takes below
one."""


def next_backoff(failures: int, seed: str = "") -> float:
    """Seconds to wait after the `failures`-th failed create in a row (1-based).

    Up to a quarter less than the full step, decided by `seed`: many slices that failed together do not ask
    again together, and the ceiling stays a ceiling.
    """
    full = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(20, max(0, failures - 1)))
    spread = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) / 2**32 if seed else 0.0
    return full * (1.0 - spread / 4)
