"""The node, through its management controller over the network: DMTF Redfish.

PRONY_REDFISH_URL names the controller; PRONY_REDFISH_USER and PRONY_REDFISH_PASSWORD_FILE who asks, PRONY_REDFISH_CA a
file with the authority of its certificate, PRONY_REDFISH_CHASSIS which chassis where it has several. The
chassis' EnvironmentMetrics has PowerWatts and EnergykWh (Redfish 2020.4), the older Power has PowerConsumedWatts.
"""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from prony_node.power.readers.plausible import as_number, plausible_j, plausible_w
from prony_node.power.readers.redfish_client import Refused, Service
from prony_node.power.sensor import Sensor, SensorLost, Unavailable

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
