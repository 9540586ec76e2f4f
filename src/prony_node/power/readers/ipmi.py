"""The node, through its management controller: `ipmitool dcmi power reading`.

The answer has the power now, and the least, most and mean over a "sampling period" that on many controllers is the time
since it was last set back (weeks), so only the first is of use: the "current power" of DCMI 1.5. How often the
controller renews it is not stated. A read takes about a second.
"""

from __future__ import annotations

import re
from pathlib import Path

from prony_node.power.sensor import CommandFailed, Folder, Sensor, SensorLost, Unavailable, ask, plausible_w

COMMAND = ("ipmitool", "dcmi", "power", "reading")
DEVICES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
TIMEOUT_S = 10.0
LINE = re.compile(r"^[ \t]*([^:\n]{1,60}?)[ \t]*:[ \t]*(\S[^\n]{0,80}?)[ \t.]*$", re.MULTILINE)
WATTS = re.compile(r"([0-9]{1,7})\s+watts?", re.ASCII | re.IGNORECASE)


class IpmiReader:
    """The node's power, as its management controller says."""

    id = "ipmi"

    def __init__(self) -> None:
        self.sensors = [
            Sensor(
                id="ipmi.power node",
                reader="ipmi",
                kind="instantaneous",
                scope="node",
                part="node",
                label="the node, through its management controller (IPMI DCMI)",
                resolution=1.0,
                privileged=True,
            )
        ]

    def read(self, sensor: Sensor) -> float:
        try:
            return parse_reading(ask(COMMAND, TIMEOUT_S))
        except CommandFailed as error:
            raise SensorLost(str(error)) from error

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path) -> IpmiReader:
    folder = Folder(root)
    if not any(folder.path(device).exists() for device in DEVICES):
        raise Unavailable(
            "there is no /dev/ipmi0: this node has no management controller, the kernel's modules ipmi_si and "
            "ipmi_devintf are not loaded, or a container hides it"
        )
    reader = IpmiReader()
    try:
        reader.read(reader.sensors[0])
    except SensorLost as error:
        raise Unavailable(_what_helps(str(error))) from error
    return reader


def parse_reading(text: str) -> float:
    """Watts now. Raises SensorLost when the controller does not measure, or says what cannot be."""
    said = {key.lower(): value.lower() for key, value in LINE.findall(text)}
    state = said.get("power reading state is")
    if state is not None and state != "activated":
        raise SensorLost(f"the management controller says that its power reading is {state}")
    match = WATTS.fullmatch(said.get("instantaneous power reading", ""))
    if match is None:
        raise SensorLost(f"ipmitool gave no power: {' '.join(text.split())[:80]!r}")
    value_w = plausible_w(int(match[1]), "the management controller")
    if value_w == 0.0:
        raise SensorLost("the management controller says 0 W of a node that is running: it does not measure")
    return value_w


def _what_helps(reason: str) -> str:
    low = reason.lower()
    if "not on the path" in low:
        return f"{reason}; install ipmitool to read the management controller"
    if "permission denied" in low or "could not open device" in low:
        return f"{reason}; /dev/ipmi0 is for root, an administrator can give it to a group (chgrp, chmod g+rw)"
    if "invalid command" in low or "dcmi request failed" in low:
        return f"{reason}; this management controller does not offer DCMI power readings"
    return reason
