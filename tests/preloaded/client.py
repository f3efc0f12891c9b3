"""Stand-in for a Python, which asks a server to fork the process, and lives and ends with that.

Copied behind a first line that names an interpreter, and before a last line that names the address of the server.
It imports next to nothing, so that it starts within 15 ms.
"""

import _socket
import os
import sys

PREFIX = 8
AGENTS = ("/agent.py", "/agent/main.py")
"""Scripts that watch whether their parent, the raylet, lives. Forked, they have another one: the client watches."""


def run(address: str, python: str) -> None:
    """Have the command line of this process run there. Ends as that process ended.

    Without the server, `python` runs it.
    """
    parent = os.getppid()
    here = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        here.connect(address)
    except OSError:
        os.execv(python, [python, *sys.argv[1:]])
    variables = [name + b"=" + value for name, value in os.environb.items()]
    words = [str(os.getpid()).encode(), os.getcwdb(), str(len(sys.argv) - 1).encode()]  # noqa: PTH109
    request = b"\0".join([*words, *map(os.fsencode, sys.argv[1:]), *variables])
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    here.sendmsg([len(request).to_bytes(PREFIX, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    while request:
        request = request[here.send(request) :]
    if any(word.endswith(AGENTS) for word in sys.argv[:3]):
        here.settimeout(1.0)
    while True:
        try:
            status = here.recv(4)  # comes when that process has ended
            break
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(1)
    if len(status) < 4:
        os._exit(1)
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
