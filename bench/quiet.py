"""How busy the machine is with other work. The peers' threads wait for each other by spinning, so
on a busy machine they lose far more than ours: no ratio from there means anything."""

import os
import pathlib
import resource
import time

TICKS = os.sysconf("SC_CLK_TCK")


def machine_seconds():
    """(busy, all) CPU seconds of the machine since its start; what neighbours steal is busy."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, iowait, irq, softirq, steal = (int(x) / TICKS for x in fields)
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def seconds_of(pids):
    """CPU seconds of this process, of its ended children, and of the processes `pids`."""
    own = sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        own += (int(fields[11]) + int(fields[12])) / TICKS  # utime, stime
    return own


class Others:
    """The share of all cores that others used from the construction to `share()`."""

    def __init__(self, pids):
        self.pids = pids
        self.start = machine_seconds(), seconds_of(pids)

    def share(self):
        (busy0, all0), own0 = self.start
        (busy1, all1), own1 = machine_seconds(), seconds_of(self.pids)
        return max(0.0, busy1 - busy0 - (own1 - own0)) / max(all1 - all0, 1e-3)


def share_now(seconds=2.0):
    others = Others([])
    time.sleep(seconds)
    return others.share()
