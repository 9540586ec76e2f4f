"""The device of a rank as torch knows it: its facts, the build of torch, and what torch can do on it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

from prony_node.backends.protocol import Ability, DeviceAbilities
from prony_node.contract.errors import is_digits
from prony_node.contract.facts import DeviceFacts, PciLink, TorchFacts, TorchSwitches
from prony_node.contract.typed import overlaid, stated
from prony_node.facts.device import cpu_device_facts, with_vendor
from prony_node.facts.tree import Missing, Tree, normal_address


def torch_facts(missing: Missing) -> TorchFacts:
    """What torch says of itself."""

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # a build without that part answers in many ways
            missing.add(f"torch.{name}", f"this build does not say ({type(error).__name__}: {error})")
            return None

    version = torch.version
    config = ask("config", torch.__config__.show) or ""
    return stated(
        TorchFacts,
        version=str(torch.__version__),
        git=getattr(version, "git_version", None),
        debug=bool(getattr(version, "debug", False)),
        cuda=getattr(version, "cuda", None),
        hip=getattr(version, "hip", None),
        xpu=getattr(version, "xpu", None),
        cudnn=ask("cudnn", torch.backends.cudnn.version),
        nccl=nccl_version() if getattr(version, "cuda", None) or getattr(version, "hip", None) else None,
        blas=_setting(config, "BLAS_INFO"),
        compiler=_line(config, r"- ((?:GCC|clang|MSVC)[^\n]*)"),
        mkl=_line(config, r"- (?:Intel\(R\) )?oneAPI Math Kernel Library Version ([0-9.-]+)"),
        onednn=_line(config, r"- Intel\(R\) MKL-DNN v([0-9.]+)"),
        cpu_capability=ask("cpu_capability", torch.backends.cpu.get_cpu_capability),
        threads=ask("threads", torch.get_num_threads),
        interop_threads=ask("interop_threads", torch.get_num_interop_threads),
        switches=ask("switches", switches),
    )


def switches() -> TorchSwitches:
    """As they stand now: a workload may set them, so ask after it was built."""
    cudnn = torch.backends.cudnn
    return TorchSwitches(
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_allow_tf32=bool(cudnn.allow_tf32),
        cudnn_benchmark=bool(cudnn.benchmark),
        cudnn_deterministic=bool(cudnn.deterministic),
        deterministic_algorithms=bool(torch.are_deterministic_algorithms_enabled()),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
    )


def nccl_version() -> str | None:
    """NCCL's version (RCCL's on ROCm) where torch was built with it."""
    try:
        version = torch.get_device_module("cuda").nccl.version()
    except Exception:  # a build without it
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _setting(config: str, name: str) -> str | None:
    return _line(config, rf"\b{name}=([^,\s]+)")


def _line(config: str, pattern: str) -> str | None:
    match = re.search(pattern, config)
    return match[1].strip() if match else None


ATTENTION_KERNELS = {
    "flash": "FLASH_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


def compile_ability(kind: str) -> Ability:
    """Whether torch.compile finds what it needs; it is not started, that takes a minute."""
    compiler = find_compiler(kind)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    needs_triton = kind != "cpu"
    if compiler is None:
        wanted = "C++ compiler (g++, clang++, or CXX)" if kind == "cpu" else "C compiler (gcc, clang, or CC)"
        return Ability(False, f"no {wanted} on PATH")
    if not headers.exists():
        return Ability(False, "Python's headers are not installed (Python.h), which compiled code includes")
    if needs_triton and importlib.util.find_spec("triton") is None:
        return Ability(False, "triton is not installed")
    return Ability(True, f"found {compiler}" + (" and triton" if needs_triton else "") + "; not tried")


def find_compiler(kind: str) -> str | None:
    """The compiler that generated code is built with: C++ for the CPU's kernels, C for triton's launchers."""
    cpp = (os.environ.get("CXX"), "g++", "clang++", "c++")
    for name in cpp if kind == "cpu" else (os.environ.get("CC"), "gcc", "clang", "cc"):
        if name and shutil.which(name):
            return Path(name).name
    return None


def distributed_backends() -> list[str]:
    if not distributed.is_available():
        return []
    backends = ("gloo", "nccl", "mpi", "ucc", "xccl")
    return [name for name in backends if getattr(distributed, f"is_{name}_available", bool)()]


def device_abilities(device: str) -> DeviceAbilities:
    """Each ability of a device, tried."""
    kind = device.partition(":")[0]
    attention = {name: _try(partial(_attend, device, word)) for name, word in ATTENTION_KERNELS.items()}
    if kind == "cpu":
        timing, graphs = (
            Ability(False, "a CPU is timed by the host's clock"),
            Ability(False, "a CPU has no graphs"),
        )
    else:
        timing, graphs = _try(partial(_time, device)), _try(partial(_capture, device))
    return DeviceAbilities(
        bf16=_try(partial(_multiply, device, torch.bfloat16)),
        fp16=_try(partial(_multiply, device, torch.float16)),
        attention=attention,
        event_timing=timing,
        graphs=graphs,
        compile=compile_ability(kind),
    )


def _try(attempt: Callable[[], str | None]) -> Ability:
    """An ability by attempt: no answer is good, a sentence or an exception is the reason why not."""
    try:
        reason = attempt()
    except Exception as error:  # whatever torch raises is the answer
        lines = str(error).strip().splitlines()
        first = lines[0] if lines else type(error).__name__
        if first.startswith("No viable backend") or first.startswith("No available kernel"):
            first = "torch has no such kernel for this device"
        return Ability(False, first[:200])
    return Ability(reason is None, reason)


def _multiply(device: str, dtype: Any) -> str | None:
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    return None if float((ones @ ones)[0, 0]) == 16 else "a small matrix product came out wrong"


def _attend(device: str, kernel: str) -> str | None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kernel == "CUDNN_ATTENTION" and not device.startswith("cuda"):
        return "cuDNN is NVIDIA's"
    backend = getattr(SDPBackend, kernel, None)
    if backend is None:
        return "this torch does not know it"
    dtype = torch.float32 if device.startswith(("cpu", "mps")) else torch.bfloat16
    query = torch.ones(1, 2, 64, 64, dtype=dtype, device=device)
    with warnings.catch_warnings(), sdpa_kernel(backend):
        warnings.simplefilter("ignore")  # torch warns of each reason, the exception is enough
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    return None if bool(torch.isfinite(result).all()) else "its result is not finite"


def _time(device: str) -> str | None:
    module = torch.get_device_module(device.partition(":")[0])
    with module.device(device) if hasattr(module, "device") else contextlib.nullcontext():
        start, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        start.record()
        torch.ones(1024, device=device).sum()
        end.record()
        end.synchronize()
        elapsed_ms = start.elapsed_time(end)
    return None if elapsed_ms >= 0 else "the time between two events came out negative"


def _capture(device: str) -> str | None:
    """Capture one operation as a graph and replay it."""
    module = torch.get_device_module(device.partition(":")[0])
    make = next((getattr(module, name) for name in ("CUDAGraph", "XPUGraph") if hasattr(module, name)), None)
    capture = getattr(module, "graph", None)
    if make is None or capture is None:
        return "torch offers no graphs on this kind of device"
    with module.device(device):
        total = torch.zeros(1, device=device)
        module.synchronize()
        graph = make()
        with capture(graph):
            total += 1
        graph.replay()
        module.synchronize()
    return None if float(total) == 1 else "a replayed graph did not do its work"


def device_facts(device: str, root: Path = Path("/")) -> DeviceFacts:
    """Facts of a device named as torch does (cpu, cuda, cuda:1, xpu, mps); never raises."""
    missing = Missing()
    tree = Tree(root)
    kind, _, number = device.partition(":")
    index = int(number) if is_digits(number) else None
    facts = stated(DeviceFacts, device=device, kind=kind, index=index, name=None, uuid=None, counts_as=None,
                   memory_total_bytes=None)  # fmt: skip
    try:
        on_cpu = kind == "cpu"
        own = cpu_device_facts(tree, missing) if on_cpu else _accelerator(kind, index, tree, missing)
        facts = overlaid(facts, own)
    except Exception as error:  # facts never end a run
        missing.add("device", f"{type(error).__name__}: {error}")
    try:
        facts = replace(facts, torch=torch_facts(missing))
    except Exception as error:
        facts = overlaid(facts, stated(DeviceFacts, torch=None))
        missing.add("torch", f"torch cannot be imported: {type(error).__name__}: {error}")
    named = {entry.what for entry in missing.entries}
    for name in ("name", "uuid", "counts_as", "memory_total_bytes"):
        if getattr(facts, name) is None and name not in named:
            missing.add(name, "neither torch nor the vendor's interface states it")
    return replace(facts, missing=tuple(missing.entries))


def _accelerator(kind: str, index: int | None, tree: Tree, missing: Missing) -> DeviceFacts:
    """torch's own properties, and over them what the vendor's interface knows better."""
    module = torch.get_device_module(kind)
    current = getattr(module, "current_device", None)
    if index is None:
        index = int(current()) if current is not None else 0
    facts = DeviceFacts(index=index, counts_as="one GPU")
    ask = getattr(module, "get_device_properties", None)
    if ask is None:  # MPS
        most = getattr(module, "recommended_max_memory", None)
        missing.add("uuid", f"torch offers no properties of {kind} devices")
        return replace(facts, name="Apple GPU", memory_total_bytes=int(most()) if most is not None else None)
    facts = overlaid(facts, properties_facts(ask(index)))
    rocm = getattr(torch.version, "hip", None)
    vendor = {"cuda": "amd" if rocm else "nvidia"}.get(kind)
    if vendor is None:
        missing.add("clocks, power_limit, temperatures_c, processes", f"no reader for {kind} devices yet")
    return with_vendor(facts, vendor, tree, missing)


def properties_facts(properties: Any) -> DeviceFacts:
    """What torch's device properties hold, whichever of them this build and device have."""
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    arch = getattr(properties, "gcnArchName", None)
    capability = f"{major}.{minor}" if major is not None and minor is not None else None
    uuid = getattr(properties, "uuid", None)
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [place for place in places if isinstance(place, int)]
    address = normal_address("{:04x}:{:02x}:{:02x}.0".format(*numbers)) if len(numbers) == 3 else None
    units = getattr(properties, "multi_processor_count", None)
    return stated(
        DeviceFacts,
        name=getattr(properties, "name", None),
        uuid=str(uuid) if uuid is not None else None,
        memory_total_bytes=getattr(properties, "total_memory", None),
        capability=capability,
        architecture=arch or (f"sm_{major}{minor}" if capability else None),
        multiprocessors=units if units is not None else getattr(properties, "max_compute_units", None),
        l2_cache_bytes=getattr(properties, "L2_cache_size", None),
        driver=getattr(properties, "driver_version", None),
        pci=PciLink(address),
    )
