"""Asking a management controller over the network, without ever giving its password away.

The password comes from a file and goes into one header, to the host that was named: redirections are refused,
proxies are not used, certificates are verified, and plain http is for this machine alone. No error repeats
the address with its user, or a header.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from prony_node.power.sensor import Unavailable

TIMEOUT_S = 5.0  # of one wait for the network
WHOLE_S = 15.0  # of one answer
MOST_BYTES = 1 << 20
MOST_PASSWORD_BYTES = 4096


class Refused(Exception):
    """No document came back; the message says why, and nothing that is secret."""


class _NoRedirect(HTTPRedirectHandler):
    """A redirection would take the password to another host."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class Service:
    """One controller, and who asks it."""

    def __init__(self, base: str, header: str | None, context: ssl.SSLContext | None) -> None:
        self._base, self._header = base, header
        handlers: list[Any] = [ProxyHandler({}), _NoRedirect()]
        if context is not None:
            handlers.append(HTTPSHandler(context=context))
        self._opener = build_opener(*handlers)

    def __repr__(self) -> str:
        return f"Service({self._base})"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Service:
        """As the PRONY_REDFISH_ variables say; Unavailable with what is missing."""
        url = environment.get("PRONY_REDFISH_URL", "")
        if not url:
            raise Unavailable("no management controller is named; set PRONY_REDFISH_URL to its https address")
        base = checked_url(url)
        header = _header(environment.get("PRONY_REDFISH_USER", ""), environment.get("PRONY_REDFISH_PASSWORD_FILE", ""))
        context = _context(environment.get("PRONY_REDFISH_CA", "")) if base.startswith("https:") else None
        return cls(base, header, context)

    def get(self, path: str) -> str:
        """The document at a path; Refused when none came back."""
        request = Request(self._base + path, headers={"Accept": "application/json", "OData-Version": "4.0"})
        if self._header is not None:
            request.add_unredirected_header("Authorization", self._header)
        until_s = time.monotonic() + WHOLE_S
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                body = bytearray()
                while chunk := response.read1(1 << 16):
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise Refused(f"{path} is longer than {MOST_BYTES >> 20} MiB")
                    if time.monotonic() > until_s:
                        raise Refused(f"{path} did not come within {WHOLE_S:.0f} s")
        except HTTPError as error:
            error.close()
            raise Refused(f"{path} was answered with {error.code}{_meaning(error.code)}") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            raise Refused(f"{path} did not come: {_in_words(error)}") from None
        return body.decode("utf-8", "replace")


def checked_url(url: str) -> str:
    """The address without a slash at its end; Unavailable when a password would not be safe with it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Unavailable("PRONY_REDFISH_URL is not an address; give https://HOST") from None
    if "@" in parts.netloc:
        raise Unavailable("PRONY_REDFISH_URL must not hold a user or password; use PRONY_REDFISH_PASSWORD_FILE")
    if not host or not host.isprintable() or " " in host or parts.path.rstrip("/") or parts.query or parts.fragment:
        raise Unavailable(
            "PRONY_REDFISH_URL is not the address of a host alone; give https://HOST or https://HOST:PORT"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise Unavailable("PRONY_REDFISH_URL must begin with https://; plain http is for this machine's loopback alone")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port is not None else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _header(user: str, password_file: str) -> str | None:
    if not user and not password_file:
        return None
    if not user or not password_file:
        raise Unavailable("PRONY_REDFISH_USER and PRONY_REDFISH_PASSWORD_FILE belong together; one of them is not set")
    if ":" in user:
        raise Unavailable("PRONY_REDFISH_USER may not hold a colon")
    try:
        with Path(password_file).open("rb") as file:
            password = file.read(MOST_PASSWORD_BYTES + 1).rstrip(b"\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise Unavailable(f"the file that PRONY_REDFISH_PASSWORD_FILE names cannot be read: {reason}") from None
    if not password or len(password) > MOST_PASSWORD_BYTES:
        raise Unavailable("the file that PRONY_REDFISH_PASSWORD_FILE names is empty, or too long for a password")
    return "Basic " + base64.b64encode(user.encode("utf-8", "surrogateescape") + b":" + password).decode("ascii")


def _context(authority: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise Unavailable(f"PRONY_REDFISH_CA names no file of certificates: {error.__class__.__name__}") from None


def _meaning(code: int) -> str:
    if code in (401, 403):
        return ": the user or the password was not accepted"
    if 300 <= code < 400:
        return ": it redirects elsewhere, and the password would go along"
    return ""


def _in_words(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "its certificate could not be verified; name the authority's file in PRONY_REDFISH_CA"
    if isinstance(reason, TimeoutError):
        return f"nothing within {TIMEOUT_S:.0f} s"
    return str(getattr(reason, "strerror", None) or reason.__class__.__name__)
