"""The node, through its management controller over the network: DMTF Redfish.

PRONY_REDFISH_URL names the controller; PRONY_REDFISH_USER and PRONY_REDFISH_PASSWORD_FILE the account,
PRONY_REDFISH_CA a file with the authority of its certificate, PRONY_REDFISH_CHASSIS the chassis where there are
several. EnvironmentMetrics of the chassis has PowerWatts and EnergykWh (Redfish 2020.4), the older Power has
PowerConsumedWatts.

The password comes from a file and goes into one header, to the named host: redirections are refused, proxies are not
used, certificates are verified, and plain http is for this machine only. No error repeats the address with its user,
or a header.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import ssl
import time
from collections.abc import Mapping
from decimal import Decimal
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from prony_node.power.sensor import Sensor, SensorLost, Unavailable, as_number, plausible_j, plausible_w

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


CHASSIS = "/redfish/v1/Chassis"
CHASSIS_ID = re.compile(r"[A-Za-z0-9._~-]{1,80}", re.ASCII)
J_PER_KWH = 3.6e6


class RedfishReader:
    """The power of the chassis, and its energy where the controller counts it."""

    id = "redfish"

    def __init__(self, service: Service, chassis: str) -> None:
        self._service, self._chassis = service, chassis
        self._resource, power_w, energy_kwh = self._find()
        self.sensors: list[Sensor] = []
        if as_number(power_w) is not None:
            self.sensors.append(_sensor("power", "instantaneous", chassis, 0.0))
        if as_number(energy_kwh) is not None:
            self.sensors.append(_sensor("energy", "counter", chassis, _step(energy_kwh) * J_PER_KWH))
        if not self.sensors:
            raise Unavailable(f"the chassis {chassis} of the management controller states neither power nor energy")

    def _find(self) -> tuple[str, Any, Any]:
        """The resource that answers: the newer one where it is there and says something."""
        refused: Refused | None = None
        for resource in ("EnvironmentMetrics", "Power"):
            try:
                power_w, energy_kwh = self._ask(resource)
            except Refused as error:
                refused = error
                continue
            if as_number(power_w) is not None or as_number(energy_kwh) is not None:
                return resource, power_w, energy_kwh
        if refused is not None:
            raise Unavailable(f"the management controller gave no power: {refused}")
        return "Power", None, None

    def _ask(self, resource: str) -> tuple[Any, Any]:
        return parse_power(resource, self._service.get(f"{CHASSIS}/{self._chassis}/{resource}"))

    def read(self, sensor: Sensor) -> float:
        try:
            power_w, energy_kwh = self._ask(self._resource)
        except Refused as error:
            raise SensorLost(str(error)) from None
        if sensor.kind == "counter":
            number = as_number(energy_kwh)
            return plausible_j(None if number is None else number * J_PER_KWH, "EnergykWh of the management controller")
        value_w = plausible_w(power_w, "the power of the management controller")
        if value_w == 0.0:
            raise SensorLost("the management controller says 0 W of a node that is running: it does not measure")
        return value_w

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path) -> RedfishReader:
    service = Service.from_environment(os.environ)
    try:
        reader = RedfishReader(service, _chassis(service, os.environ.get("PRONY_REDFISH_CHASSIS", "")))
        for sensor in reader.sensors:
            reader.read(sensor)
    except (Refused, SensorLost) as error:
        raise Unavailable(str(error)) from None
    return reader


def _chassis(service: Service, wanted: str) -> str:
    """The one to ask. It must hold this node alone, or its power is that of others too."""
    if wanted and not CHASSIS_ID.fullmatch(wanted):
        raise Unavailable("PRONY_REDFISH_CHASSIS is not the name of a chassis; give the last word of its path")
    found = [wanted] if wanted else parse_members(service.get(CHASSIS))
    if len(found) != 1:
        names = ", ".join(found[:8]) or "none"
        raise Unavailable(f"the management controller has several chassis or none ({names}); set PRONY_REDFISH_CHASSIS")
    systems = _inside(parse(service.get(f"{CHASSIS}/{found[0]}")), "Links", "ComputerSystems")
    if isinstance(systems, list) and len(systems) > 1:
        raise Unavailable(f"the chassis {found[0]} holds {len(systems)} systems, so its power is not this node's alone")
    return found[0]


def parse(text: str) -> Any:
    """A JSON document, its fractions as they were written; Refused when it is none."""
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise Refused("its answer is not JSON") from error


def parse_members(text: str) -> list[str]:
    """Names of the chassis in a collection."""
    members = _inside(parse(text), "Members")
    paths = [_inside(member, "@odata.id") for member in members] if isinstance(members, list) else []
    names = [path.rstrip("/").rpartition("/") for path in paths if isinstance(path, str)]
    return [name for folder, _, name in names if folder == CHASSIS and CHASSIS_ID.fullmatch(name)]


def parse_power(resource: str, text: str) -> tuple[Any, Any]:
    """Watts and kilowatt-hours as they stand in the document; None where they do not."""
    document = parse(text)
    if resource == "EnvironmentMetrics":
        return _inside(document, "PowerWatts", "Reading"), _inside(document, "EnergykWh", "Reading")
    controls = _inside(document, "PowerControl")
    return (_inside(controls[0], "PowerConsumedWatts") if isinstance(controls, list) and controls else None), None


def _inside(document: Any, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _step(energy_kwh: Any) -> float:
    """The last digit that the controller writes: 12.25 moves in steps of 0.01."""
    if not isinstance(energy_kwh, Decimal):
        return 1.0
    exponent = energy_kwh.as_tuple().exponent
    return 10.0 ** max(exponent, -9) if isinstance(exponent, int) and exponent < 0 else 1.0


def _sensor(name: str, kind: str, chassis: str, resolution: float) -> Sensor:
    return Sensor(
        id=f"redfish.{name} node",
        reader="redfish",
        kind=kind,
        scope="node",
        part="node",
        label=f"the node, {name} of chassis {chassis} (Redfish)",
        resolution=resolution or 1.0,
        privileged=True,
    )
