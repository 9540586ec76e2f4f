"""A Kubernetes of one node on this machine: etcd, API server, controllers, scheduler, containerd and a kubelet.

The node lives in a network namespace that is joined to this one by a pair of interfaces; the API server listens on our
end of it. Binaries are built once by scripts/build_kubernetes.sh, into a cache outside the checkout.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from container_bed import Podman, cache

BUILD = Path(__file__).parents[2] / "scripts" / "build_kubernetes.sh"
NETWORK, HERE, NODE = "prony-test", "10.98.0.1", "10.98.0.2"
PORT, TOKEN = 16443, "prony-test-token"
NEEDED = {
    "etcd": "etcd-server", "containerd": "containerd", "runc": "runc", "ip": "iproute2", "openssl": "openssl",
    "nsenter": "util-linux", "podman": "podman", "debootstrap": "debootstrap", "ctr": "containerd", "curl": "curl",
}  # fmt: skip
CNI = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge", "bridge": "prony0", "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.97.0.0/24"}]]},
        }
    ],
}  # fmt: skip


def why_not() -> str | None:
    """Why no cluster can be started here; None where one can."""
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            return f"needs {program} (Debian's package {package})"
    if not Path("/usr/lib/cni/bridge").exists():
        return "needs Debian's package containernetworking-plugins"
    return None if os.geteuid() == 0 else "needs root, for namespaces and containers"


class Cluster:
    """The processes of a cluster; everything ends with `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        subprocess.run(["bash", str(BUILD), str(cache() / "kubernetes")], check=True)
        self._bin = cache() / "kubernetes" / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def start(self) -> None:
        self._network()
        self._control_plane()
        self._images()
        self._node()
        wait_for(self._ready, "a node that is ready", 180.0)

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self._clear()
        _call("ip", "netns", "delete", NETWORK, check=False)
        _call("ip", "link", "delete", "prony-here", check=False)

    def _clear(self) -> None:
        """Containers that outlive containerd, and what is mounted for them."""
        ours = str(self.folder).encode()
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"containerd-shim" in (words := place.read_bytes()) and ours in words:
                    os.kill(int(place.parent.name), signal.SIGKILL)
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        for path in reversed(mounted):
            if path.startswith(str(self.folder)):
                _call("umount", "--lazy", path, check=False)

    def get(self, path: str) -> dict[str, object]:
        """A document of the API server."""
        words = ["--insecure", "--silent", "--header", f"Authorization: Bearer {TOKEN}"]
        document: dict[str, object] = json.loads(_call("curl", *words, f"https://{HERE}:{PORT}{path}"))
        return document

    def send(self, method: str, path: str, document: object, kind: str = "application/json") -> None:
        words = ["--insecure", "--silent", "--fail", "--header", f"Authorization: Bearer {TOKEN}"]
        words += ["--request", method, "--header", f"Content-Type: {kind}", "--data", json.dumps(document)]
        _call("curl", *words, f"https://{HERE}:{PORT}{path}")

    def _network(self) -> None:
        self.stop()
        _call("ip", "netns", "add", NETWORK)
        _call("ip", "link", "add", "prony-here", "type", "veth", "peer", "name", "prony-node", "netns", NETWORK)
        _call("ip", "address", "add", f"{HERE}/30", "dev", "prony-here")
        _call("ip", "link", "set", "prony-here", "up")
        for words in (
            ("address", "add", f"{NODE}/30", "dev", "prony-node"),
            ("link", "set", "prony-node", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", HERE),
        ):
            _call("ip", "-netns", NETWORK, *words)

    def _control_plane(self) -> None:
        folder = self.folder
        key = folder / "accounts.key"
        _call("openssl", "genrsa", "-out", str(key), "2048")
        (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n", encoding="utf-8")
        self._write_kubeconfig()
        etcd = "http://127.0.0.1:12379"
        self._daemon(
            "etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", "http://127.0.0.1:12380",
        )  # fmt: skip
        self._daemon(
            str(self._bin / "kube-apiserver"), f"--etcd-servers={etcd}", f"--bind-address={HERE}",
            f"--secure-port={PORT}", "--insecure-port=0", f"--cert-dir={folder / 'certs'}",
            "--authorization-mode=AlwaysAllow", f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://prony.test", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.99.0.0/24",
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true",
        )  # fmt: skip
        wait_for(lambda: "gitVersion" in self.get("/version"), "the API server", 60.0)
        known = f"--kubeconfig={self.kubeconfig}"
        self._daemon(
            str(self._bin / "kube-controller-manager"), known, "--leader-elect=false", "--port=0",
            f"--service-account-private-key-file={key}",
        )  # fmt: skip
        self._daemon(str(self._bin / "kube-scheduler"), known, "--leader-elect=false", "--port=0")

    def _images(self) -> None:
        """A pause image and one with Python, from Debian's packages."""
        podman = Podman(self.folder / "podman")
        podman.import_base(_arch(), "localhost/base:1")
        for name, change in (("pause", 'ENTRYPOINT ["sleep", "infinity"]'), ("node", "ENV LANG=C.UTF-8")):
            made = podman.call("create", "localhost/base:1", "true").strip()
            podman.call(
                "commit", "--change", change, "--change", "CMD []", "--format", "docker", made, f"localhost/{name}:1"
            )
            podman.call("rm", made)
            podman.call(
                "save",
                "--format",
                "docker-archive",
                "--output",
                str(self.folder / f"{name}.tar"),
                f"localhost/{name}:1",
            )

    def _node(self) -> None:
        folder = self.folder
        socket = folder / "containerd.sock"
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(CNI), encoding="utf-8")
        (folder / "containerd.toml").write_text(_containerd(folder, socket), encoding="utf-8")
        self._daemon("containerd", "--config", str(folder / "containerd.toml"), inside=True)
        wait_for(lambda: "Version" in _call("ctr", "--address", str(socket), "version"), "containerd", 60.0)
        for name in ("pause", "node"):
            _call(
                "ctr",
                "--address",
                str(socket),
                "--namespace",
                "k8s.io",
                "images",
                "import",
                str(folder / f"{name}.tar"),
            )
        settings = {
            "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "cgroupDriver": "cgroupfs",
            "failSwapOn": False, "enforceNodeAllocatable": [], "resolvConf": "", "address": NODE,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"}, "evictionHard": {"memory.available": "1Mi"},
        }  # fmt: skip
        (folder / "kubelet.yaml").write_text(json.dumps(settings), encoding="utf-8")
        self._daemon(
            str(self._bin / "kubelet"), f"--config={folder / 'kubelet.yaml'}", f"--kubeconfig={self.kubeconfig}",
            "--container-runtime=remote", f"--container-runtime-endpoint=unix://{socket}", f"--node-ip={NODE}",
            "--hostname-override=node1", f"--root-dir={folder / 'kubelet'}", f"--cert-dir={folder / 'kubelet-certs'}",
            inside=True,
        )  # fmt: skip

    def _daemon(self, *words: str, inside: bool = False) -> None:
        start: Sequence[str] = ("nsenter", f"--net=/run/netns/{NETWORK}") if inside else ()
        name = Path(words[0]).name
        extra = {"AWS_EC2_METADATA_DISABLED": "true"} | (
            {"ETCD_UNSUPPORTED_ARCH": "arm64"} if _arch() == "arm64" else {}
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*start, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **extra}
            )
        self._processes[name] = process

    def _ready(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
                raise RuntimeError(f"{name} ended with {process.returncode}: {log[-1] if log else 'it said nothing'}")
        items = self.get("/api/v1/nodes").get("items")
        conditions = [one for node in items for one in node["status"]["conditions"]] if isinstance(items, list) else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _write_kubeconfig(self) -> None:
        server = {"server": f"https://{HERE}:{PORT}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(document), encoding="utf-8")


def _containerd(folder: Path, socket: Path) -> str:
    return f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


def _arch() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def _call(*words: str, check: bool = True) -> str:
    done = subprocess.run(list(words), capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr[-1000:]}"
    return done.stdout


def wait_for(good: Callable[[], bool], what: str, patience_s: float) -> None:
    end_s = time.monotonic() + patience_s
    while True:
        try:
            if good():
                return
        except (AssertionError, ValueError, KeyError):
            pass
        assert time.monotonic() < end_s, f"{what} did not come within {patience_s:g} s"
        time.sleep(0.5)
