"""What a registry says of an image, without its layers: the two small documents that name its architectures."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

PATIENCE_S = 20.0
MOST_BYTES = 4 << 20
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


def split_image(image: str) -> tuple[str, str, str]:
    """Host, name and tag or digest of an image, as Docker reads it: a first part with a dot or a port is a host."""
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    host = first if slash and ("." in first or ":" in first or first == "localhost") else "registry-1.docker.io"
    path = rest if host == first else name
    if host == "docker.io":
        host = "registry-1.docker.io"
    path, _, tag = path.partition(":")
    if host == "registry-1.docker.io" and "/" not in path:
        path = f"library/{path}"
    return host, path, digest or tag or "latest"


def registry_architectures(image: str, problem: type[Exception]) -> tuple[str, ...]:
    """The architectures of an image in a registry that anyone may read; `problem` where it does not say."""
    host, name, reference = split_image(image)
    plain = host.partition(":")[0] in ("localhost", "127.0.0.1")
    registry = _Registry(f"{'http' if plain else 'https'}://{host}/v2/{urllib.parse.quote(name)}")
    try:
        manifest = registry.get(f"manifests/{urllib.parse.quote(reference)}", (*INDEXES, *MANIFESTS))
        entries = manifest.get("manifests")
        if isinstance(entries, list):
            found = {str((entry.get("platform") or {}).get("architecture")) for entry in entries}
        else:
            config = registry.get(f"blobs/{manifest['config']['digest']}", ("*/*",))
            found = {str(config.get("architecture"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        words = " ".join(str(getattr(reason, "strerror", None) or reason).split())
        raise problem(f"{host} did not say: {words[:200]}") from error
    return tuple(sorted(found - {"unknown", "None"}))


class _Registry:
    """One repository of a registry, read without an account."""

    def __init__(self, base: str) -> None:
        self._base, self._token = base, ""

    def get(self, path: str, accept: tuple[str, ...]) -> dict[str, Any]:
        try:
            return self._get(path, accept)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate") or ""
            if error.code != 401 or self._token or not challenge.lower().startswith("bearer "):
                raise
            self._token = _anonymous_token(challenge)
            return self._get(path, accept)

    def _get(self, path: str, accept: tuple[str, ...]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._base}/{path}", headers={"Accept": ", ".join(accept)})
        if self._token:
            # Not a usual header: it must not follow a redirect to where the bytes lie.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return _read(request)


def _anonymous_token(challenge: str) -> str:
    """A token for whoever asks, from where the registry sends us."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise ValueError(f"it wants a token from {realm!r}")
    document = _read(urllib.request.Request(f"{realm}?{urllib.parse.urlencode(fields)}"))
    return str(document.get("token") or document.get("access_token") or "")


def _read(request: urllib.request.Request) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        document = json.loads(answer.read(MOST_BYTES))
    if not isinstance(document, dict):
        raise ValueError("its answer is no document")
    return document
