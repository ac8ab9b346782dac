"""The page of a labeling session on this computer: a small server for one user.

Every address starts with a random token. Only requests to this address and from this page are
answered. Case names are looked up in the session, never joined to a path.
"""

from __future__ import annotations

import errno
import json
import math
import secrets
import sys
import traceback
import zlib
from collections.abc import Callable
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote

from segpl.errors import MissingFileError, UserError
from segpl.labeling.address import ADDRESS, FIRST_PORT, LAST_PORT, PORTS
from segpl.labeling.browser_arrays import MisfitError, image_bytes, mask_bytes, overlay_bytes
from segpl.labeling.session import Session, StaleLabelError

HTTP_PORT = 80  # omitted by clients
MOST_OPTIONS = 2**16  # bytes of a request without a mask
MOST_DIGITS = 15  # of a number
SECONDS = 60.0  # to wait for the rest of a request
PAGES = {
    "": ("label.html", "text/html; charset=utf-8"),
    "label.css": ("label.css", "text/css; charset=utf-8"),
    "label.js": ("label.js", "text/javascript; charset=utf-8"),
    "drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
    "niivue.umd.js": ("niivue.umd.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: "
    "blob:; connect-src 'self' data: blob:; worker-src blob:; font-src data:; frame-ancestors "
    "'none'; base-uri 'none'; form-action 'none'"
)


class RefusedError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class LabelServer(ThreadingHTTPServer):
    """Serves one session at `port` or, if it is in use, at the next free one."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = FIRST_PORT) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(24)
        for number in (*range(port, min(port + PORTS, LAST_PORT + 1)), 0):  # 0: any free one
            try:
                super().__init__((ADDRESS, number), LabelRequest)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback if a window was closed during a response."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class LabelRequest(BaseHTTPRequestHandler):
    server: LabelServer
    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    def do_GET(self) -> None:
        self.answer(self.get)

    def do_POST(self) -> None:
        self.answer(self.post)

    def answer(self, handle: Callable[[list[str], dict[str, str]], None]) -> None:
        try:
            handle(*self.checked_address())
        except RefusedError as error:
            self.send_problem(error.status, str(error))
        except StaleLabelError as error:
            self.send_problem(HTTPStatus.CONFLICT, str(error))
        except MissingFileError as error:
            self.send_problem(HTTPStatus.NOT_FOUND, str(error))
        except MisfitError as error:
            self.send_problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except UserError as error:
            self.send_problem(HTTPStatus.BAD_REQUEST, str(error))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            traceback.print_exc()  # before the answer, which refers to it
            self.send_problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error!r}. See the terminal.")

    def checked_address(self) -> tuple[list[str], dict[str, str]]:
        """The parts of the address after the token, and its options."""
        port = self.server.port
        ports = (f":{port}", "") if port == HTTP_PORT else (f":{port}",)
        names = [name + port for name in (ADDRESS, "localhost") for port in ports]
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in names:  # another name that leads here belongs to another site
            why = "wrong host. Open localhost or 127.0.0.1, with the port of the server."
            raise RefusedError(HTTPStatus.FORBIDDEN, why)
        if origin is not None and origin != f"http://{host}":
            raise RefusedError(HTTPStatus.FORBIDDEN, "wrong origin")
        path, _, query = self.path.partition("?")
        _, token, *parts = path.split("/") if "/" in path else ("", "")
        if not compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "wrong token. Open the address that `segpl label` has printed.",
            )
        options = {key: values[-1] for key, values in parse_qs(query).items()}
        return [unquote(part) for part in parts], options

    def get(self, parts: list[str], options: dict[str, str]) -> None:
        session, window = self.server.session, options.get("window", "")
        match parts:
            case [name] if name in PAGES:
                file, kind = PAGES[name]
                content = files("segpl.labeling").joinpath("templates", file).read_bytes()
                self.send_content(content, kind)
            case ["queue"]:
                self.send_json(
                    session.queue(window, options.get("case", ""), options.get("draft", ""))
                )
            case ["case", name, "description"]:
                scan = session.open(name, again=True)
                self.send_json(session.describe(scan, window))
            case ["case", name, "image"]:
                self.send_content(image_bytes(session.open(name).image))
            case ["case", name, "mask"]:
                scan = session.open(name)
                self.send_content(mask_bytes(scan.grid, scan.indices))
            case ["case", name, "uncertainty"]:
                scan = session.open(name)
                if scan.uncertainty is None:
                    raise RefusedError(HTTPStatus.NOT_FOUND, "the mask is not a prediction")
                self.send_content(overlay_bytes(scan.grid, scan.uncertainty))
            case ["case", name, "thumbnail"]:
                picture = session.thumbnail(name)
                # None while another one is drawn; the page asks again
                status = HTTPStatus.NO_CONTENT if picture is None else HTTPStatus.OK
                self.send_content(picture or b"", "image/jpeg", status)
            case _:
                raise RefusedError(HTTPStatus.NOT_FOUND, "no such page")

    def post(self, parts: list[str], options: dict[str, str]) -> None:
        session, stamp = self.server.session, options.get("stamp", "")
        seen = {key: options.get(key, "") for key in ("window", "draft")}
        answer: dict[str, object] = {"is_done": True}
        if parts[-1:] not in (["draft"], ["label"]):
            self.read_body(MOST_OPTIONS)
        match parts:
            case ["case", name, "draft"]:
                draft = session.save_draft(name, self.read_mask(name), stamp, **seen)
                answer = {"draft": draft}
            case ["case", name, "label"]:
                force = options.get("force") == "1"
                session.save(name, self.read_mask(name), stamp, force=force, **seen)
            case ["case", name, "skip"]:
                session.skip(name)
            case ["case", name, "discard"]:
                session.discard(name, **seen)
            case ["close"]:
                session.close(seen["window"])
            case ["train"]:
                text = options.get("steps", "")
                steps = parse_steps(text) if text else None
                session.train(steps=steps, folds=options.get("folds") == "1")
            case ["stop"]:
                session.rounds.stop()
            case _:
                raise RefusedError(HTTPStatus.NOT_FOUND, "no such page")
        self.send_json(answer)

    def read_mask(self, name: str) -> bytes:
        """A mask, compressed or not; never more than the scan has voxels."""
        grid, *_ = self.server.session.drawn_on(name)
        size = math.prod(grid.shape)
        body = self.read_body(size + MOST_OPTIONS)
        if self.headers.get("Content-Encoding") != "gzip":
            return body
        reader = zlib.decompressobj(wbits=31)
        try:
            content = reader.decompress(body, size + 1)
        except zlib.error as error:
            raise MisfitError("the mask is not valid gzip. Reload the page.") from error
        if not reader.eof:
            raise MisfitError("the mask does not fit the scan. Reload the page.")
        return content

    def read_body(self, limit: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "a request needs its length")
        if len(length) > MOST_DIGITS or int(length) > limit:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {limit} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the request is incomplete")
        return body

    def send_problem(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # the rest of the request may be unread
        self.send_json({"error": why}, status)

    def send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_content(json.dumps(value).encode(), "application/json", status)

    def send_content(
        self,
        content: bytes,
        kind: str = "application/octet-stream",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as in its base)
        """Print nothing: the token is part of every address."""


def parse_steps(text: str) -> int:
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "the number of steps must be a whole number, at least 1"
        )
    return int(text)
