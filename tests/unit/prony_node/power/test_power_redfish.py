"""The Redfish reader against a small server on the loopback, its documents synthesised from DMTF's schemas.

If these fail, a password may leave the machine, or the power of a chassis with several nodes is taken for one node's.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from prony_node.power.readers import redfish
from prony_node.power.readers.redfish import Service, checked_url, open_reader
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable

PASSWORD = "correct-horse-battery"
CHASSIS = "/redfish/v1/Chassis"
ONE: dict[str, Any] = {
    CHASSIS: {"Members": [{"@odata.id": f"{CHASSIS}/1"}]},
    f"{CHASSIS}/1": {"Id": "1", "Links": {"ComputerSystems": [{"@odata.id": "/redfish/v1/Systems/1"}]}},
    f"{CHASSIS}/1/Power": {"PowerControl": [{"PowerConsumedWatts": 590, "PowerMetrics": {"IntervalInMin": 20}}]},
}
NEWER = {"PowerWatts": {"Reading": 612.5}, "EnergykWh": {"Reading": 1234.25}}


class Controller(ThreadingHTTPServer):
    """Answers with documents, a status, or raw bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, Any] = dict(ONE)
        self.headers_seen: list[dict[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: Controller

    def do_GET(self) -> None:
        self.server.headers_seen.append(dict(self.headers))
        answer = self.server.documents.get(self.path, 404)
        status = answer if isinstance(answer, int) else 200
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    for name in ("CA", "CHASSIS"):
        monkeypatch.delenv(f"PRONY_REDFISH_{name}", raising=False)
    server = Controller()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    monkeypatch.setenv("PRONY_REDFISH_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("PRONY_REDFISH_USER", "prony")
    monkeypatch.setenv("PRONY_REDFISH_PASSWORD_FILE", str(password))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_older_controller_tells_the_power_of_its_one_chassis(controller: Controller, tmp_path: Path) -> None:
    reader: PowerReader = open_reader(tmp_path)
    (sensor,) = reader.sensors
    assert reader.read(sensor) == 590.0
    assert (sensor.kind, sensor.scope, sensor.part, sensor.privileged) == ("instantaneous", "node", "node", True)
    assert (sensor.period_s, sensor.uncertainty) == (None, None)
    expected = "Basic " + base64.b64encode(f"prony:{PASSWORD}".encode()).decode()
    assert {seen["Authorization"] for seen in controller.headers_seen} == {expected}
    assert reader.busy("node") is None
    reader.close()


def test_a_newer_controller_also_counts_energy_in_the_steps_it_writes(controller: Controller, tmp_path: Path) -> None:
    controller.documents[f"{CHASSIS}/1/EnvironmentMetrics"] = NEWER
    reader = open_reader(tmp_path)
    power, energy = reader.sensors
    assert (reader.read(power), reader.read(energy)) == (612.5, pytest.approx(1234.25 * 3.6e6))
    assert (energy.kind, energy.resolution) == ("counter", pytest.approx(36_000.0))


def test_several_chassis_want_a_name_and_a_named_one_is_asked(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.documents[CHASSIS] = {"Members": [{"@odata.id": f"{CHASSIS}/{name}"} for name in ("1", "Baseboard")]}
    with pytest.raises(Unavailable, match=r"1, Baseboard.*PRONY_REDFISH_CHASSIS"):
        open_reader(tmp_path)
    monkeypatch.setenv("PRONY_REDFISH_CHASSIS", "1")
    assert open_reader(tmp_path).sensors
    monkeypatch.setenv("PRONY_REDFISH_CHASSIS", "../../Systems")
    with pytest.raises(Unavailable, match="not the name of a chassis"):
        open_reader(tmp_path)


def test_a_chassis_with_several_systems_is_not_this_node(controller: Controller, tmp_path: Path) -> None:
    controller.documents[f"{CHASSIS}/1"] = {"Links": {"ComputerSystems": [{}, {}, {}, {}]}}
    with pytest.raises(Unavailable, match="4 systems"):
        open_reader(tmp_path)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (401, "not accepted"),
        (302, "redirects elsewhere"),
        (500, "500"),
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (2 << 20), "longer than 1 MiB"),
        ({"PowerControl": [{"PowerConsumedWatts": None}]}, "neither power nor energy|gave no power"),
        ({"PowerControl": [{"PowerConsumedWatts": "N/A"}]}, "neither power nor energy|gave no power"),
        ({"PowerControl": [{"PowerConsumedWatts": 0}]}, "0 W"),
    ],
)
def test_what_is_no_power_says_why_and_never_the_password(
    controller: Controller, tmp_path: Path, answer: Any, says: str
) -> None:
    controller.documents[f"{CHASSIS}/1/Power"] = answer
    with pytest.raises(Unavailable, match=says) as refused:
        open_reader(tmp_path)
    assert PASSWORD not in str(refused.value)
    assert base64.b64encode(f"prony:{PASSWORD}".encode()).decode() not in str(refused.value)


def test_a_redirection_is_not_followed_with_the_password(controller: Controller, tmp_path: Path) -> None:
    controller.documents[CHASSIS] = 307
    controller.documents["/elsewhere"] = {}
    with pytest.raises(Unavailable, match="redirects"):
        open_reader(tmp_path)
    assert len(controller.headers_seen) == 1


def test_a_controller_that_goes_away_midway_is_lost(controller: Controller, tmp_path: Path) -> None:
    reader = open_reader(tmp_path)
    controller.documents[f"{CHASSIS}/1/Power"] = 503
    with pytest.raises(SensorLost, match="503"):
        reader.read(reader.sensors[0])
    controller.documents[f"{CHASSIS}/1/Power"] = {"PowerControl": []}
    with pytest.raises(SensorLost, match="no number"):
        reader.read(reader.sensors[0])


def test_a_silent_controller_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redfish, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PRONY_REDFISH_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name in ("USER", "PASSWORD_FILE"):
            monkeypatch.delenv(f"PRONY_REDFISH_{name}", raising=False)
        with pytest.raises(Unavailable, match="nothing within"):
            open_reader(tmp_path)


def test_a_port_where_nobody_listens_is_a_sentence(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("PRONY_REDFISH_URL", f"http://localhost:{port}")
    with pytest.raises(Unavailable, match="refused"):
        open_reader(tmp_path)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://bmc.example", "must begin with https"),
        ("http://127.0.0.1.example", "must begin with https"),
        ("ftp://127.0.0.1", "must begin with https"),
        ("file:///etc/passwd", "not the address of a host"),
        ("https://root:secret@bmc.example", "must not hold a user"),
        ("https://bmc.example/redfish?x=1", "a host alone"),
        ("https://bmc.example:port", "not an address"),
        ("https://", "a host alone"),
    ],
)
def test_an_address_that_would_not_be_safe_is_refused_without_repeating_it(url: str, says: str) -> None:
    with pytest.raises(Unavailable, match=says) as refused:
        checked_url(url)
    assert "secret" not in str(refused.value)


def test_what_is_not_set_is_said() -> None:
    with pytest.raises(Unavailable, match="set PRONY_REDFISH_URL"):
        Service.from_environment({})
    url = {"PRONY_REDFISH_URL": "https://bmc.example"}
    with pytest.raises(Unavailable, match="belong together"):
        Service.from_environment({**url, "PRONY_REDFISH_USER": "prony"})
    with pytest.raises(Unavailable, match="cannot be read: No such file"):
        Service.from_environment({**url, "PRONY_REDFISH_USER": "prony", "PRONY_REDFISH_PASSWORD_FILE": "/nowhere/it"})
    with pytest.raises(Unavailable, match="PRONY_REDFISH_CA"):
        Service.from_environment({**url, "PRONY_REDFISH_CA": "/nowhere/it"})


def test_the_service_does_not_show_the_password() -> None:
    service = Service("https://bmc.example", "Basic c2VjcmV0", None)
    assert "c2VjcmV0" not in repr(service)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_is_verified_against_the_named_authority(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += [
        "-subj",
        "/CN=bmc",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    controller.socket = context.wrap_socket(controller.socket, server_side=True)
    controller.handle_error = lambda *words: None  # type: ignore[method-assign]  # a refused handshake is expected
    monkeypatch.setenv("PRONY_REDFISH_URL", f"https://127.0.0.1:{controller.server_port}")
    with pytest.raises(Unavailable, match=r"could not be verified.*PRONY_REDFISH_CA"):
        open_reader(tmp_path)
    assert controller.headers_seen == []
    monkeypatch.setenv("PRONY_REDFISH_CA", str(certificate))
    reader = open_reader(tmp_path)
    assert reader.read(reader.sensors[0]) == 590.0
