"""The real broker on a disk that fails, fills up or turns read-only, paused, or with a clock that jumps.

Clients work on all the time; in the end everything is drained and read, and their history checked.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from load import CHANNEL, SETTINGS, SHARED, Load
from mounts import ext4, needs, tmpfs
from process import Process, wait_until
from scene import scene
from torture import sized

from mq.errors import Unavailable
from mq.pb import mq_pb2 as pb

FAILED = "storage failed"
# What strace injects, and the latest call that it hits: segments are made and directories synced only now and then.
INJECTED = [
    ("fdatasync:error=EIO:when={nth}", 60),
    ("fdatasync:error=ENOSPC:when={nth}", 60),
    ("pwritev:error=EIO:when={nth}", 60),
    ("pwritev:error=ENOSPC:when={nth}..{last}", 60),
    ("fsync:error=EIO:when={nth}", 4),
    ("fallocate:error=ENOSPC:when={nth}..{last}", 2),
]
ENOUGH = 600  # answers, for which more syncs are needed than that, though many share one
PAUSE_SECONDS = sized(3, 30)


class Traced(Process):
    """A broker under strace, which makes a chosen system call fail."""

    def __init__(self, directory: Path, strace: str, inject: str) -> None:
        what = inject.partition(":")[0]
        quiet = ("-f", "--seccomp-bpf", "-o", "/dev/null")
        self.prefix = (strace, *quiet, "-e", f"trace={what}", "-e", f"inject={inject}")
        super().__init__(directory, **SETTINGS)

    def signal(self, number: int = signal.SIGTERM) -> None:
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)


def refuses_everything(load: Load) -> bool:
    """After a failed sync nothing is answered but that storage failed; ask as often as you like."""
    for _ in range(3):
        try:
            load.ask("MQService/Publish", pb.PublishRequest(channel=CHANNEL, content=b"not taken"))
        except Unavailable:
            continue
        return False
    return True


@pytest.mark.slow
@pytest.mark.shows("T4", "fsync, fdatasync, pwritev and fallocate of the real broker fail with EIO or ENOSPC (strace)")
def test_a_system_call_that_fails_costs_nothing_that_was_answered(tmp_path: Path, figures: dict[str, Any]) -> None:
    strace = needs("strace", "errors of real system calls need strace")
    rounds = sized(len(INJECTED), 300)
    with scene(tmp_path, figures) as it:
        it.begin()
        it.load.wait_for(answered=20)
        figures |= {"faults": rounds, "final failures": 0, "failed starts": 0}
        for number in range(rounds):
            it.kill()
            template, latest = INJECTED[number % len(INJECTED)]
            nth = it.rng.randint(1, latest)
            inject = template.format(nth=nth, last=nth + 5)
            broker = it.broker = Traced(tmp_path, strace, inject)
            wait_until(lambda b=broker: "listening on" in b.output or b.process.poll() is not None)  # type: ignore[misc]
            if broker.process.poll() is not None:
                if "ptrace" in broker.output:
                    pytest.skip(f"NOT SHOWN on this machine: strace can't trace: {broker.output[-200:]}")
                assert "listening on" not in broker.output
                figures["failed starts"] += 1
                continue
            it.serve(broker)
            before = it.load.answered
            wait_until(lambda b=broker, n=before: FAILED in b.output or it.load.answered > n + ENOUGH)  # type: ignore[misc]
            if FAILED in broker.output:
                figures["final failures"] += 1
                assert refuses_everything(it.load)
            else:
                assert not inject.startswith("fdatasync"), "the injected error was not noticed"
        it.kill()
        it.serve()
        it.finish()
        assert figures["final failures"] + figures["failed starts"] > 0


@pytest.mark.shows("T4", "a disk without a free byte for a while, kills and starts meanwhile, then space again")
def test_a_full_disk_refuses_publishes_takes_acks_and_recovers_by_itself(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    with tmpfs(tmp_path / "small", "192m") as disk, scene(disk, figures, content_bytes=2_000, pause=0.005) as it:
        it.begin()
        it.load.wait_for(answered=20)
        ballast = disk / "ballast"
        fill(ballast)
        wait_until(lambda: it.load.refused > 20)
        fill(ballast)
        settle_acks(it.load)
        hold = it.load.refused + sized(50, 5_000)
        wait_until(lambda: it.load.refused > hold, 600)
        figures["kills"] = sized(3, 20)
        for _ in range(figures["kills"]):
            it.kill()
            fill(ballast)
            it.serve()
            fill(ballast)
            refused = it.load.refused
            wait_until(lambda before=refused: it.load.refused > before + 10)  # type: ignore[misc]
            settle_acks(it.load)
        figures["refused"] = it.load.refused
        ballast.unlink()
        it.load.wait_for(answered=50)
        it.finish()


def fill(ballast: Path) -> None:
    """To the last byte, beside a broker that writes, too."""
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while os.write(fd, bytes(size)) == size:
                    pass
    finally:
        os.close(fd)


def settle_acks(load: Load) -> None:
    """With publishers refused, the groups come to the end of what there is: pulls and acks go on."""

    def is_done() -> bool:
        request = pb.DescribeGroupRequest(channel=CHANNEL, group=SHARED)
        return pb.GroupInfo.FromString(load.ask("AdminService/DescribeGroup", request)).lag == 0

    wait_until(is_done)


@pytest.mark.shows("T4", "an ext4 file system that the kernel turns read-only under the broker, then is repaired")
def test_a_file_system_that_turns_read_only_costs_nothing_that_was_answered(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    with ext4(tmp_path) as disk, scene(disk.where, figures) as it:
        it.begin()
        figures["times"] = sized(1, 20)
        for _ in range(figures["times"]):
            it.load.wait_for(answered=it.rng.randint(20, 100))
            broker = it.broker
            assert broker is not None
            disk.turn_read_only()
            wait_until(lambda b=broker: FAILED in b.output)  # type: ignore[misc]
            assert refuses_everything(it.load)
            it.kill()
            unstarted = Process(disk.where, **SETTINGS)
            assert unstarted.wait() != 0, "it starts where it can write nothing"
            disk.unmount()
            disk.repair()
            disk.mount()
            it.serve()
        it.finish()


@pytest.mark.shows("T2", "power cuts of a real ext4 file system under the real broker, with mixed load")
def test_power_cuts_of_a_real_file_system_lose_nothing_that_was_answered(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    with ext4(tmp_path) as disk, scene(disk.where, figures) as it:
        it.begin()
        figures |= {"cuts": sized(4, 500), "file system": "ext4"}
        for _ in range(figures["cuts"]):
            it.load.wait_for(answered=it.rng.randint(1, 100))
            disk.cut_power()
            it.kill()
            disk.unmount()
            disk.mount()
            it.serve()
        it.finish()


@pytest.mark.shows("T4", "SIGSTOP of the broker for longer than its clients wait")
def test_a_broker_that_was_paused_goes_on_as_if_nothing_had_been(tmp_path: Path, figures: dict[str, Any]) -> None:
    with scene(tmp_path, figures, call_seconds=1.0) as it:
        broker = it.begin()
        figures |= {"pauses": sized(1, 5), "seconds paused": PAUSE_SECONDS}
        for _ in range(figures["pauses"]):
            it.load.wait_for(answered=30, handled=5)
            broker.signal(signal.SIGSTOP)
            it.load.is_over.wait(PAUSE_SECONDS)
            broker.signal(signal.SIGCONT)
        it.finish()
        assert figures["publishes retried"] > 0


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile long *shift;  /* seconds, in a file that the test writes */
static int (*plain)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    plain = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int fd = open(getenv("CLOCK_SHIFT"), O_RDONLY);
    void *page = fd < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) shift = page;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int result = plain(id, at);
    if (!result && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return result;
}
"""


class WallClock:
    """The wall clock of processes that are started with its settings; the monotonic one goes on as it is."""

    def __init__(self, directory: Path) -> None:
        compiler = needs("gcc", "a wall clock that jumps needs a C compiler")
        source, library, self._file = (directory / name for name in ("shim.c", "shim.so", "shift"))
        source.write_text(SHIM)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self._file.write_bytes(bytes(4096))
        self.settings = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}

    def jump_to(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("l", seconds))


def stored_at(load: Load) -> float:
    content = b"what time is it, %d?" % load.answered
    answer = load.ask("MQService/Publish", pb.PublishRequest(channel="clock", content=content))
    return pb.PublishResponse.FromString(answer).timestamp_us / 1e6


@pytest.mark.toolchain
@pytest.mark.shows("T4", "a wall clock that jumps by hours and days, forward and back, with kills in between")
def test_a_wall_clock_that_jumps_loses_and_repeats_nothing(tmp_path: Path, figures: dict[str, Any]) -> None:
    clock = WallClock(tmp_path)
    with scene(tmp_path, figures) as it:
        it.begin(**clock.settings)
        it.load.ask("MQService/CreateChannel", pb.CreateChannelRequest(channel="clock"))
        figures["jumps"] = sized(4, 100)
        start = stored_at(it.load)
        for number in range(figures["jumps"]):
            shift = (86_400, -86_400, 3_600, -7 * 86_400)[number % 4] + it.rng.randint(-100, 100)
            clock.jump_to(shift)
            it.load.wait_for(answered=50, handled=5)
            if shift > 0:
                assert stored_at(it.load) > start + shift - 60, "the clock did not jump"
            if number % 2:
                it.kill()
                it.serve(**clock.settings)
        clock.jump_to(8 * 86_400)  # everything that was delayed is due
        it.finish()


def test_the_load_notices_a_broker_that_forgets(tmp_path: Path) -> None:
    """The planted bug: a start without the log. Nothing that was answered is there."""
    with scene(tmp_path, {}) as it:
        it.begin()
        it.load.wait_for(answered=20, handled=5)
        it.load.stop()
        it.kill()
        (tmp_path / "data").rename(tmp_path / "lost")
        it.serve()
        it.load.prepare()
        assert [line for line in it.load.check() if line.endswith("is gone")]
