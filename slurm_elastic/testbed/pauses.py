"""`python -m slurm_elastic.testbed.pauses PID START SECONDS`: let a process sleep most of the time.

Ends on TERM, leaving the process running, or when the process has ended.
"""

from __future__ import annotations

import signal
import sys

from slurm_elastic.testbed.processes import Process

WORK_S = 0.05
END = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    pid, start, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    target = Process(pid, start)
    signal.pthread_sigmask(signal.SIG_BLOCK, END)
    try:
        while target.signal(signal.SIGSTOP):
            if signal.sigtimedwait(END, pause):
                break
            target.signal(signal.SIGCONT)
            if signal.sigtimedwait(END, WORK_S):
                break
    finally:
        target.signal(signal.SIGCONT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
