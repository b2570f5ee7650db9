"""The yardstick for one publish at a time: a blocking TCP server that writes, syncs and echoes, and nothing else.

What it reaches is what the network, the disk and Python leave for a broker that answers when a message is durable.

    python benchmarks/echo.py FILE      prints its port, serves one connection after the other until killed
"""

import os
import socket
import sys

FILE_BYTES = 8 << 20


def main(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(file, bytes(FILE_BYTES), 0)  # written once, so that a sync has no metadata to write
    os.fsync(file)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            position = 0
            with connection:
                while data := connection.recv(4_096):
                    os.pwrite(file, data, position)
                    os.fdatasync(file)
                    position = (position + len(data)) % (FILE_BYTES - 4_096)
                    connection.sendall(data)


if __name__ == "__main__":
    main(sys.argv[1])
