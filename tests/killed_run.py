"""One process of a run on disk that kills itself at a given moment: `main(out, job, moment)`.

The job is its settings, and "overwrite". The moment is "never", or "STEPS:SECONDS": so many seconds after so many
steps of all chains, or "STEPS/WRITES/PART": at that write to the disk after so many steps, before it for PART = 0, after it,
or in the midst of a file, for 1, or "moved": when a run that is replaced has been moved out of the way. Prints the number of
writes.
"""

import os
import signal
import threading
from pathlib import Path

from bayesattn import runs
from bayesattn.jobs.runs import store
from bayesattn.samplers import blocks as block_runner
from tests.disk import Disk, dying
from tests.posteriors import tiny_model

BLOCK, CHUNK = 20, 40
"""Draws in a block, and in a chunk, which two blocks fill."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def main(out, job, moment):
    block_runner.MOST_DRAWS_PER_BLOCK, store.CHUNK_DRAWS = BLOCK, CHUNK
    disk, done, seconds, steps = Disk(Path(out).parent), {}, None, 0
    if ":" in moment:
        steps, seconds = int(moment.split(":")[0]), float(moment.split(":")[1])
    elif "/" in moment:
        steps, at, part = map(int, moment.split("/"))
        disk = Disk(Path(out).parent, dying(part, die), at)
        disk.armed = not steps
    elif moment == "moved":
        disk = Disk(Path(out).parent, dying(1, die), moved=Path(out))
    disk.patch(setattr)

    def progress(event):
        done[event.chain] = event.done
        if sum(done.values()) >= steps:
            disk.armed = True
            if seconds is not None:
                threading.Timer(seconds, die).start()

    runs.sample(tiny_model(), out, progress=progress, **job)
    print(disk.count)
