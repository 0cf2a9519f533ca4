"""Every command: its words, its line in lists, and where its code is. Nothing is imported to list one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """One command, or a noun with its verbs. Its code is the function of its name in `cli/commands/NAME.py`, of
    a verb in that of its noun, or what `module` and `function` say. `summary` is its line in lists, and of a
    verb the first sentence of its help; it has the options --json and --quiet where that is said."""

    name: str
    summary: str
    module: str = ""
    function: str = ""
    json: bool = False
    quiet: bool = False
    verbs: tuple[Entry, ...] = ()
    help: str = ""
    """What the help of a noun begins with, if not with its summary."""
    default_verb: str = ""
    """The verb that may be left out: `manifest RUN` is `manifest show RUN`."""
    label: str = ""
    """Marks what verbs print that need no profile."""

    @property
    def code(self) -> tuple[str, str]:
        """Its module below `cli/commands`, and its function."""
        name = self.name.replace("-", "_")
        return self.module or name, self.function or name


_ENV = (
    Entry("new", "Write an environment file that works, with its lock.", "env.files"),
    Entry("lock", "Resolve an environment into exact wheels with hashes.", "env.files"),
    Entry("derive", "Copy an environment file with other versions or files.", "env.files"),
    Entry("capture", "Write an environment file from a Python of a host.", "env.files"),
    Entry("plan", "Show what `apply` would do on each host, and why.", "env.hosts", json=True),
    Entry("apply", "Install an environment on all hosts of a slice, and verify it.", "env.hosts", json=True),
    Entry("verify", "Show how hosts differ from the environment.", "env.hosts", json=True),
    Entry("gc", "Remove environments that hosts no longer need.", "env.hosts"),
    Entry("ls", "List environments: the project's and tpuctl's.", json=True),
    Entry("diff", "Show how two environments differ.", json=True),
)
_MANIFEST = (
    Entry("show", "Show what ran, where, with which versions, and how it ended.", json=True),
    Entry("diff", "Show in what two runs differ, by section.", json=True),
    Entry("verify", "Check that a manifest is as it was written.", json=True),
    Entry("export", "Write a manifest for others, or with all it needs."),
)
_CHECK = (
    Entry("weights", "Check weights for NaN, dead or doubled layers, wrong scales.", json=True, quiet=True),
)
_DISK = (
    Entry("create", "Create an empty disk.", "disk.clone", json=True, quiet=True),
    Entry("ls", "List the disks and snapshots of this fleet.", json=True),
    Entry("show", "Show one disk with its clones and snapshots.", json=True),
    Entry(
        "attach", "Attach a disk to a slice and mount it on its hosts.", "disk.attach", json=True, quiet=True
    ),
    Entry(
        "detach", "Unmount a disk on the hosts of a slice and detach it.", "disk.attach", json=True, quiet=True
    ),
    Entry("mount", "Mount an attached disk on every host of its slice.", "disk.attach", json=True, quiet=True),
    Entry(
        "umount",
        "Unmount a disk on every host of its slice; it stays attached.",
        "disk.attach",
        json=True,
        quiet=True,
    ),
    Entry("snapshot", "Make a snapshot of a disk as it is now.", "disk.clone", json=True, quiet=True),
    Entry(
        "clone",
        "Clone a disk, and mount the clone read-only on a whole slice.",
        "disk.clone",
        json=True,
        quiet=True,
    ),
    Entry("resize", "Make a disk larger; it never becomes smaller again.", "disk.change", json=True),
    Entry("throughput", "Change the throughput of a hyperdisk-ml.", "disk.change", json=True, quiet=True),
    Entry("repair", "Repair a clone that was made while programs wrote.", "disk.attach", json=True, quiet=True),
    Entry(
        "gc", "Delete old clones that no host uses, and their snapshots.", "disk.change", json=True, quiet=True
    ),
    Entry("rm", "Delete disks, with all that is on them.", "disk.change", json=True, quiet=True),
)
_MOUNT = (
    Entry("add", "Mount a bucket on every host, or mount it otherwise.", json=True, quiet=True),
    Entry("ls", "List the mounts of all slices.", "mount.show", json=True),
    Entry("show", "Show how a mount is configured, and what other hosts see when.", "mount.show", json=True),
    Entry("check", "Ask every host how its mounts are.", "mount.show", json=True),
    Entry("bench", "Measure how fast all hosts write and read at once.", "mount.bench", json=True, quiet=True),
    Entry("cost", "Estimate what the operations of a mount cost at most.", "mount.bench", json=True),
    Entry("rm", "Unmount a bucket on every host of its slice; its files stay.", json=True, quiet=True),
)
_DATA = (
    Entry("pack", "Pack the files of a folder into tar shards in a bucket.", json=True, quiet=True),
    Entry("stage", "Bring files of the Hugging Face hub into a bucket, by a host.", json=True, quiet=True),
    Entry("verify", "Compare the shards of a pack with its manifest.", json=True, quiet=True),
    Entry("receipt", "Write a receipt of data: its digest, and its contract.", json=True, quiet=True),
    Entry("ls", "List the shards of a pack, or the packs below a prefix.", json=True),
)
_WATCH = (
    Entry("install", "Install the watchdog: cron starts a pass once a minute.", "watch.install", json=True),
    Entry("uninstall", "Remove what `watch install` wrote, and nothing else.", "watch.install", json=True),
    Entry("hooks", "List the hooks of your configuration file, or try one.", "watch.hooks", json=True),
    Entry("once", "Check every slice and run once, and do what is due.", json=True, quiet=True),
    Entry("status", "Show which machines make passes, and what needs a person.", json=True),
)
_GRANT = (
    Entry("show", "List the grants.", json=True),
    Entry("import", "Add the grants of a TPU Research Cloud letter.", function="import_", json=True),
    Entry("add", "Add one grant."),
    Entry("rm", "Remove one grant."),
)
_CONFIG = (
    Entry("show", "Show every setting with its value and where it came from.", json=True),
    Entry("init", "Share a fleet: move the store into a bucket, or join one."),
)
_STORE = (
    Entry("prune", "Remove content and records that nothing refers to any more.", json=True),
    Entry("forget", "Remove one damaged record from the store."),
    Entry("machines", "List the machines whose keys hosts accept, or shut one out.", json=True),
)
_SIM = (
    Entry("up", "Start the simulator, unless it runs already.", json=True),
    Entry("down", "Stop the simulator."),
    Entry("status", "Show the addresses of the simulator and what is in it.", json=True),
    Entry("env", "Print variables for gcloud and other clients.", json=True),
    Entry("preempt", "Preempt a node, an instance or a group."),
    Entry("reboot", "Reboot the hosts of a node, as maintenance does."),
    Entry("load", "Let the chips of a node seem busy, for `tpuctl top`."),
    Entry("fault", "Add a fault; without arguments, list those that are set.", json=True),
    Entry("quota", "Set quotas; without arguments, list those that are set.", json=True),
    Entry("reset", "Delete everything in the simulated cloud, buckets too."),
    Entry("set", "Set what the API shows of a node: state, health, maintenance.", function="set_fields"),
    Entry("capacity", "Limit the capacity of a zone; without arguments, list limits.", json=True),
    Entry("reservation", "Set a reservation; without arguments, list them.", json=True),
    Entry("crash", "Kill hosts of a node, while the API still says READY."),
    Entry("delay", "Set delays; without arguments, list them.", json=True),
)
DAILY = "Every day"
GROUPS: Mapping[str, tuple[Entry, ...]] = {
    DAILY: (
        Entry("up", "Bring a slice up and wait until every host answers.", json=True, quiet=True),
        Entry("run", "Run a script, module or command on every worker.", json=True, quiet=True),
        Entry("ls", "List the slices and all other TPUs of the project.", json=True),
        Entry("status", "Show one slice or run in full.", json=True),
        Entry("logs", "Print the output of a run.", json=True),
        Entry("exec", "Run one command on the workers of a slice.", function="exec_", json=True),
        Entry("ssh", "Open a shell on one worker."),
        Entry("cp", "Copy files to and from the workers of a slice."),
        Entry("dev", "Develop on a slice: your files, a program and ports follow you.", quiet=True),
        Entry("down", "Delete slices, and wait until nothing is left in the cloud.", json=True, quiet=True),
    ),
    "Runs": (
        Entry("runs", "List runs, newest first, or show one.", json=True),
        Entry("attach", "Follow a run that was started earlier.", json=True, quiet=True),
        Entry("stop", "Stop a run.", json=True, quiet=True),
        Entry("stacks", "Show what the processes of a run are doing.", json=True),
        Entry(
            "trace", "Trace a run on all its hosts at once, for xprof and TensorBoard.", json=True, quiet=True
        ),
        Entry("ui", "Show slices, runs, costs and capacity in a browser."),
        Entry("metrics", "Show the numbers that the program of a run printed.", json=True),
        Entry("top", "Show what the chips and hosts of a slice or run do.", json=True),
        Entry("collect", "Bring dumps, logs and the state of hosts home, in one file.", json=True, quiet=True),
        Entry("env", "Pin the packages of runs, the same on every host.", verbs=_ENV),
        Entry(
            "manifest",
            "Show, compare, verify what a run ran, where, with which versions.",
            help="Show, compare and verify the records of what ran.",
            default_verb="show",
            verbs=_MANIFEST,
        ),
        Entry("report", "Write a page about a run: what happened, what it cost.", json=True),
        Entry("rerun", "Do a run again, from its manifest.", json=True, quiet=True),
        Entry("export", "Write a run as a JobSet for a cluster of GKE.", json=True, quiet=True),
        Entry("keep", "Keep the logs and disks of a run."),
    ),
    "Before a run": (
        Entry("lint", "Find what a program does that TPUs punish.", json=True),
        Entry("fits", "Compile a training step for slices, and say which it fits.", json=True, quiet=True),
        Entry("check", "Check the weights of a model or checkpoint.", verbs=_CHECK),
    ),
    "Slices": (
        Entry("why", "Show the decisions about a slice or run, and their reasons.", json=True),
        Entry("smoke", "Test every chip of a slice.", json=True, quiet=True),
        Entry("disk", "Develop on a disk, clone it, train on all hosts.", verbs=_DISK),
        Entry("mount", "Mount buckets as folders on every worker.", verbs=_MOUNT),
        Entry("data", "Bring data into buckets, and write receipts of it.", verbs=_DATA),
        Entry("forward", "Forward a local port to a worker."),
        Entry("ssh-config", "Print ssh config entries for the workers of a slice."),
        Entry("adopt", "Take over a TPU that was created without tpuctl.", json=True, quiet=True),
        Entry("reap", "Delete TPUs of yours that no slice uses any more.", json=True, quiet=True),
    ),
    "Keep it up": (
        Entry(
            "watch",
            "Let a watchdog restore slices and runs.",
            help="Let a watchdog restore slices and runs, and look after it.",
            verbs=_WATCH,
        ),
        Entry("pause", "Pause all watchdogs of this fleet."),
        Entry("resume", "End a pause of the watchdogs."),
        Entry("apply", "Create and change what the fleet file describes.", json=True, quiet=True),
        Entry("diff", "Show what `apply` would change, and why.", json=True),
    ),
    "Capacity and money": (
        Entry("types", "List accelerator types: chips, hosts, zones, prices.", json=True),
        Entry("capacity", "Show where there was capacity, how soon and for how long.", json=True),
        Entry("quota", "Show quotas, who uses them, grants, and the cost per hour.", json=True, quiet=True),
        Entry("grant", "Record what you may use without --pay.", verbs=_GRANT),
        Entry("bill", "List everything in the project that can cost money.", json=True),
    ),
    "Set up and try": (
        Entry("doctor", "Check the set-up, and print the fix of each problem.", json=True),
        Entry("config", "Show settings and where each came from; share the store.", verbs=_CONFIG),
        Entry("store", "Clean up the store, and manage its machines.", verbs=_STORE),
        Entry("sim", "Start and control the simulated cloud.", label="sim", verbs=_SIM),
        Entry("demo", "Show a training run that survives a preemption."),
    ),
}
"""Every command, in the order in which people come to need them."""
COMMANDS: tuple[Entry, ...] = tuple(entry for group in GROUPS.values() for entry in group)
