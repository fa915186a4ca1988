"""What happens in a process that was forked from this one."""

import os

import torch

from sartor.errors import SartorError


def in_a_fork(work):
    """Run this in a process of its own; what it wrote comes back, with how it ended, from the returned function."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        torch.set_num_threads(1)  # torch's other threads are not forked, and it would wait for them for ever
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(work())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)

    def result():
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        return os.waitpid(pid, 0)[1], content

    return result


def refused_in_a_fork(work):
    """How the refusal begins with which this ends in a forked process; where it does not, what it gave."""

    def told():
        try:
            return f"gave {work()!r}".encode()
        except SartorError as error:
            return str(error).split(",")[0].encode()

    return in_a_fork(told)()[1].decode()
