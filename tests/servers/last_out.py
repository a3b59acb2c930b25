"""Ends a server, and removes its folder, once nobody uses it any more: `last_out.py FOLDER PIDFILE SIGNAL`.

Whoever uses it has a lock on a file in the folder, which the kernel drops however that process ends. A server that
was removed in peace is gone by then, and nothing is left to do.
"""

import fcntl
import os
import shutil
import sys
import time

LOCK = "users"
TRIES = 100  # what is just being written comes after it was removed


def main(folder: str, pidfile: str, signal: str) -> None:
    try:
        with open(os.path.join(folder, LOCK), "r+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            end(os.path.join(folder, pidfile), int(signal))
            for _ in range(TRIES):
                shutil.rmtree(folder, ignore_errors=True)
                if not os.path.exists(folder):
                    break
                time.sleep(0.1)
    except FileNotFoundError:
        pass  # it was removed before this had even begun


def end(pidfile: str, signal: int) -> None:
    try:
        with open(pidfile) as file:
            os.kill(int(file.readline()), signal)
    except (FileNotFoundError, ProcessLookupError):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
