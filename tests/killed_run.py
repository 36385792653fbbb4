"""One process of a run on disk that kills itself at a given moment: `python -m tests.killed_run OUT JOB MOMENT`.

JOB is the JSON of a job's settings. MOMENT is "never", or "STEPS:SECONDS": so many seconds after so many steps of all
chains, or "STEPS/WRITES/PART": in the course of that many files written after so many steps, when a PART of the file's
bytes is on disk, the whole file in its place for PART = 2.
"""

import json
import os
import signal
import sys
import threading

import zarr.storage._local as zarr_files

from bayesattn import run_files, runs
from bayesattn.samplers import run as block_runner
from tests.posteriors import tiny_model

BLOCK = 20


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Moment:
    def __init__(self, text):
        self.steps, self.seconds, self.writes, self.part = float("inf"), None, None, 0.0
        self.lock, self.done = threading.Lock(), {}
        if ":" in text:
            steps, seconds = text.split(":")
            self.steps, self.seconds = int(steps), float(seconds)
        elif "/" in text:
            steps, writes, part = text.split("/")
            self.steps, self.writes, self.part = int(steps), int(writes), float(part)

    @property
    def near(self):
        return sum(self.done.values()) >= self.steps

    def progress(self, event):
        self.done[event.chain] = event.done
        if self.near and self.seconds is not None:
            threading.Timer(self.seconds, die).start()

    def watch(self, write, partial_of, content_of):
        def watched(*arguments, **options):
            with self.lock:
                if self.near and self.writes is not None:
                    self.writes -= 1
                last = self.writes == 0
            if last and self.part <= 1:
                content = bytes(content_of(*arguments))
                partial_of(*arguments).parent.mkdir(parents=True, exist_ok=True)
                partial_of(*arguments).write_bytes(content[: int(self.part * len(content))])
                die()
            result = write(*arguments, **options)
            if last:
                die()
            return result

        return watched


def main(out, job, moment):
    moment = Moment(moment)
    block_runner.MOST_DRAWS = BLOCK
    zarr_files._put = moment.watch(
        zarr_files._put,
        lambda path, value: path.with_name(f"{path.name}.killed.partial"),
        lambda path, value: value.as_buffer_like(),
    )
    run_files.replace_file = moment.watch(
        run_files.replace_file,
        lambda file, content: file.with_name(f"{file.name}.partial"),
        lambda file, content: content,
    )
    runs.sample(tiny_model(), out, progress=moment.progress, **json.loads(job))


if __name__ == "__main__":
    main(*sys.argv[1:])
