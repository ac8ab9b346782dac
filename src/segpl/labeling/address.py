"""Where the server of a labeling session listens; `segpl label --help` reads this, too."""

ADDRESS = "127.0.0.1"
FIRST_PORT, PORTS = 8765, 20  # number of ports to try
LAST_PORT = 65535
