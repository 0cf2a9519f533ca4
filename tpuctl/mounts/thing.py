"""Mounts as things of a slice: checked before anything is created, on its hosts before it is ready."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.mounts.follow import check_bucket, is_gone, keeper_files, load_rules, parse_ref, with_program
from tpuctl.mounts.hosts import BucketMount, mounted
from tpuctl.mounts.render import options_of
from tpuctl.mounts.spec import check_together, check_unused, is_asked, merge_mounts
from tpuctl.things.driver import Rows
from tpuctl.things.of_slice import Asked, Specs, ThingChange, ThingOfSlice


class MountsOfSlice(ThingOfSlice):
    """See `ThingOfSlice`."""

    def resolve(self, services: Services, asked: Asked, specs: Specs) -> Specs:
        """Beside the mounts that it has; of these what only a fleet file asked for before is left out, if that
        file asks. Else also raises ConflictError for a path at which another folder is mounted."""
        known = asked.known.spec.mounts if asked.known is not None else ()
        zones, fleet = [each.zone for each in specs], asked.fleet
        rules = load_rules()
        refs = tuple(parse_ref(rules, text) for text in asked.request.mount)
        paths = frozenset(ref.path for ref in refs)
        if not fleet:
            check_unused(known, refs)
        others = (each for each in known if each.path not in paths)
        check_together((*others, *refs), [disk.path for disk in specs[0].disks])
        asked_anew = tuple(each for each in refs if not is_asked(known, each))
        for each in asked_anew:
            check_bucket(services, rules, each, zones)
        new = tuple(replace(each, fleet=fleet) for each in with_program(asked_anew, asked.config.gcsfuse))
        kept = tuple(each for each in known if not fleet or each.fleet != fleet or each.path in paths)
        return tuple(replace(each, mounts=merge_mounts(kept, new)) for each in specs)

    def change(self, known: SliceSpec, wanted: SliceSpec) -> ThingChange | None:
        """A mount that it was not asked to have, or not so."""
        new = ", ".join(each.path for each in wanted.mounts if each not in known.mounts)
        if not new:
            return None
        mounts = merge_mounts(known.mounts, wanted.mounts)
        return ThingChange(
            "mounts", "mount", mounts, new, f"a mount at {new}", f"the file has a mount at {new}"
        )

    def kinds(self, services: Services, record: SliceRecord, asked_by: str) -> Sequence[BucketMount]:
        """Mounted on each host."""
        del services
        rules, files = load_rules(), keeper_files()
        return [mounted(rules, each, files, asked_by) for each in record.spec.mounts if not each.leaving]

    def lost(self, services: Services, record: SliceRecord) -> Collection[str]:
        """Buckets, which hosts see as empty ones."""
        buckets = sorted({each.bucket for each in record.spec.mounts})
        return tuple(each for each in buckets if is_gone(services, each))

    def manifest(self, services: Services, record: SliceRecord, rows: Rows) -> list[dict[str, Any]]:
        """With version and options as they are."""
        del services, rows
        rules = load_rules()
        return [
            {
                "source": each.source,
                "path": each.path,
                "profile": each.profile,
                "gcsfuse": rules.pinned,
                "options": dict(options_of(rules, each, rules.pinned)),
            }
            for each in record.spec.mounts
            if not each.leaving
        ]


MOUNTS = MountsOfSlice()
