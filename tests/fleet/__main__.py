"""`python -m tests.fleet [week|half] SEED…`: lives of fleets with these seeds, and what happened in them."""

from __future__ import annotations

import sys
import time

from tests.fleet.life import Life, half_a_day, week

for seed in map(int, sys.argv[2:]):
    began = time.process_time()
    life = Life((week if sys.argv[1] == "week" else half_a_day)(seed))
    try:
        life.live()
        end = "kept all promises"
    except AssertionError as error:
        end = f"broke one after {life._age() / 3600:.1f} h: {error}"
    observer = life.observer
    print(
        f"seed {seed}: {end}; {life.passes} passes, {life.kills} kills, {observer.creates} creates,"
        f" {observer.deletes} deletes, longest wait {observer.longest_wait_s:.0f} s, {dict(life.results)},"
        f" {time.process_time() - began:.1f} s of CPU",
        flush=True,
    )
    life.close()
