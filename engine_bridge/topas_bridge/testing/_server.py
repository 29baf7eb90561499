"""A real SGLang server in a process group of its own, on this machine, for tests and measurements."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from topas_bridge._config import VARIABLE, BridgeConfig, config_to_environment

__all__ = ["Server", "free_port", "start_server"]


class Server:
    """A running server.

    Attributes:
        url: Its address.
        pid: Its process.
        log: Path of its output.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid
        self.log = log

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process.poll() is None

    def get(self, path: str, timeout_s: float = 30.0) -> Any:
        """Returns the decoded JSON of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return msgspec.json.decode(answer.read())

    def post(self, path: str, body: Any, timeout_s: float = 60.0) -> Any:
        """Returns the decoded JSON of a POST, None if the answer is not JSON."""
        request = urllib.request.Request(
            self.url + path, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            data = answer.read()
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            return None

    def state(self) -> dict[str, Any]:
        """Returns the bridge's state, empty without a bridge."""
        inner = self.get("/server_info")["internal_states"][0]
        found: dict[str, Any] = inner.get("topas", {})
        return found

    def pause(self) -> None:
        """Makes the server and everything that it has started stand still."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends the server and everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10.0)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def tail(self, lines: int = 60) -> str:
        """Returns the end of the server's output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def start_server(
    flags: list[str],
    config: BridgeConfig | None,
    *,
    environment: dict[str, str] | None = None,
    python: str = sys.executable,
    ready_s: float = 240.0,
    engine_core: int | None = None,
    port: int | None = None,
) -> Iterator[Server]:
    """Starts `sglang.launch_server` on 127.0.0.1 and waits until it answers.

    Args:
        flags: Its command line flags, without host and port.
        config: The bridge's settings; None for SGLang alone.
        environment: Variables on top of this process's.
        python: The interpreter of an environment with SGLang.
        ready_s: Longest wait.
        engine_core: Core that the scheduler process gets for itself, with the other processes on the remaining ones, as
            an engine on a GPU does not share it with the HTTP server either; None to leave that to the machine.
        port: Its port; None for one that is free.

    Raises:
        RuntimeError: If it ends or does not answer in time; the message holds the end of its output.
    """
    port = free_port() if port is None else port
    variables = {**os.environ, **(environment or {})}
    paths = ((environment or {}).get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    variables.pop(VARIABLE, None)
    variables.update(config_to_environment(config) if config is not None else {})
    handle, name = tempfile.mkstemp(prefix="topas-server-", suffix=".log")
    command = [python, "-m", "sglang.launch_server", *flags, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=handle,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    os.close(handle)
    server = Server(process, f"http://127.0.0.1:{port}", Path(name))
    try:
        _wait(server, ready_s)
        if engine_core is not None:
            _pin(server.pid, engine_core)
        yield server
    finally:
        server.stop()


def _pin(pid: int, core: int) -> None:
    """Gives the scheduler the core and the server's other processes what remains."""
    others = sorted(set(range(os.cpu_count() or 1)) - {core}) or [core]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(folder.name)) != pid:  # the server leads a process group of its own
                continue
            cores = [core] if b"scheduler" in (folder / "cmdline").read_bytes() else others
            for thread in (folder / "task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)


def _end_with_parent() -> None:
    """Asks Linux to end this process when the one that started it is gone, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _wait(server: Server, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    while time.monotonic() < deadline:
        if not server.alive:
            raise RuntimeError(f"the server ended while it started:\n{server.tail()}")
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(server.url + "/health", timeout=5.0) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not answer within {ready_s:.0f} s:\n{server.tail()}")
