"""A tool as it lies in the SDK: its work is that of a server on the board (or of one on the host).

It must start at once, as the real one does, so it uses the modules that are built into Python and
no other. Its standard streams go along with the request. When it is killed, the server sees the
connection close and stops.
"""

import _socket
import posix
import sys

SERVER = "@SERVER@"
TOOL = b"@TOOL@"
VERSION = b"@VERSION@"


def main() -> int:
    folders = posix.environ.get(b"LD_LIBRARY_PATH", b"").split(b":")
    is_linked = any(posix.access(folder + b"/libSNPE.so", posix.R_OK) for folder in folders)
    if TOOL == b"netrun" and not is_linked:
        missing = 'library "libSNPE.so" not found: needed by main executable'
        print(f'CANNOT LINK EXECUTABLE "{sys.argv[0]}": {missing}', file=sys.stderr)
        return 1
    setting = [posix.environ.get(name, b"") for name in (b"ADSP_LIBRARY_PATH", b"TMPDIR")]
    words = [argument.encode("utf-8", "surrogateescape") for argument in sys.argv[1:]]
    request = b"\0".join([TOOL, VERSION, posix.getcwdb(), *setting, *words])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (1, 2))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(SERVER)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    server.sendmsg([len(request).to_bytes(4, "big")], rights)
    server.sendall(request)
    answer = server.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(main())
