"""`python -m tests.e2e.fleet week|half|small SEED…`: fleets with these seeds, and what happened to them."""

from __future__ import annotations

import sys
import time

from tests.e2e.fleet.life import Life, half_a_day, week

PLANS = {"week": week, "half": half_a_day, "small": lambda seed: half_a_day(seed, share=0.3)}

for seed in map(int, sys.argv[2:]):
    began = time.process_time()
    life = Life(PLANS[sys.argv[1]](seed))
    try:
        life.live()
        end = "kept all promises"
    except AssertionError as error:
        end = f"broke one after {life.age() / 3600:.1f} h: {error}"
    observer = life.observer
    print(
        f"seed {seed}: {end}; {life.passes} passes, {life.kills} kills, {observer.creates} creates,"
        f" {observer.deletes} deletes, {life.auditor.attempts} attempts, {life.auditor.questions} questions,"
        f" {dict(life.auditor.ended)} runs, longest wait {observer.longest_wait_s:.0f} s, {dict(life.results)},"
        f" {time.process_time() - began:.1f} s of CPU",
        flush=True,
    )
    life.close()
