"""Container, pod or job around this process, and the environment variables that change results, without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from prony_node.contract.facts import ContainerFacts, ContainerRuntime, SchedulerJob
from prony_node.contract.secret import looks_secret, redacted
from prony_node.contract.typed import stated
from prony_node.facts.host import hypervisor_facts, parse_membership
from prony_node.facts.tree import Missing, Tree, parse_keys

ALLOWED_PREFIXES = (
    "CUDA_", "NCCL_", "RCCL_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ONEDNN_", "DNNL_",
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "CUDNN_", "CUBLAS_", "CUBLASLT_",
    "NVTE_", "HIP_", "ROCR_", "HSA_", "ROCBLAS_", "MIOPEN_", "AMD_", "ZE_", "ZES_", "SYCL_", "MALLOC_",
    "MIMALLOC_", "UCX_", "FI_", "GLOO_",
)  # fmt: skip
ALLOWED_NAMES = frozenset((
    "LD_PRELOAD", "LD_LIBRARY_PATH", "GPU_MAX_HW_QUEUES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
    "CUDNN_LOGINFO_DBG", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHON_GIL", "CC", "CXX", "LOCAL_RANK", "RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_JOB_NODELIST",
    "SLURMD_NODENAME", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU", "SLURM_PROCID", "SLURM_LOCALID",
))  # fmt: skip
LONGEST_VALUE = 2000


def environment_facts(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Allowed variables with their values, credentials inside of a value redacted."""
    given = os.environ if environ is None else environ
    return {name: redacted(value)[:LONGEST_VALUE] for name, value in sorted(given.items()) if allowed(name)}


def allowed(name: str) -> bool:
    """Whether a variable may stand in a record."""
    return (name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)) and not looks_secret(name)


FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel gives the first one this number at boot
# A pattern in a control group's path, and what makes groups of that name.
CGROUP_HINTS = (
    (r"kubepods", "kubernetes"), (r"/docker[-/]", "docker"), (r"libpod", "podman"), (r"crio-", "cri-o"),
    (r"cri-containerd|/containerd", "containerd"), (r"/lxc[./]", "lxc"), (r"ecs/", "amazon-ecs"),
    (r"apptainer|singularity", "apptainer"), (r"slurmstepd|/slurm", "slurm"), (r"garden", "garden"),
)  # fmt: skip
NOT_CONTAINERS = ("slurm", "gvisor", "firecracker")
IMAGE_VARIABLES = (
    "NVIDIA_PYTORCH_VERSION", "NVIDIA_BUILD_ID", "NVIDIA_PRODUCT_NAME", "CUDA_VERSION", "CUDNN_VERSION",
    "NCCL_VERSION", "ROCM_VERSION", "PYTORCH_VERSION",
)  # fmt: skip


def container_facts(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> ContainerFacts:
    tree, missing = Tree(root), Missing()
    given = os.environ if environ is None else environ
    found = _runtimes(tree, given)
    hypervisor = hypervisor_facts(tree, Missing())
    if hypervisor.name in ("gVisor", "Firecracker"):
        found.setdefault(hypervisor.name.lower(), str(hypervisor.evidence))
    image = _image(tree, given, found)
    if found and image is None and set(found) & {"docker", "podman", "kubernetes", "containerd"}:
        missing.add("image", "the runtime does not tell a container its image")
    return stated(
        ContainerFacts,
        runtime=next((name for name in found if name not in NOT_CONTAINERS), None),
        runtimes=tuple(ContainerRuntime(name, evidence) for name, evidence in found.items()),
        image=image,
        image_versions={name: redacted(given[name]) for name in IMAGE_VARIABLES if given.get(name)},
        pid_namespace=pid_namespace(tree, missing),
        root_file_system=_root_file_system(tree),
        job=_job(given),
        missing=tuple(missing.entries),
    )


def _runtimes(tree: Tree, environ: Mapping[str, str]) -> dict[str, str]:
    """Every layer that left a trace, with the trace."""
    found: dict[str, str] = {}
    if tree.exists("/.dockerenv"):
        found["docker"] = "/.dockerenv exists"
    if tree.exists("/run/.containerenv"):
        found["podman"] = "/run/.containerenv exists"
    if tree.exists("/.singularity.d"):
        found["apptainer"] = "/.singularity.d exists"
    elif environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        found["apptainer"] = "the environment names its image"
    if tree.exists("/var/run/secrets/kubernetes.io") or environ.get("KUBERNETES_SERVICE_HOST"):
        found["kubernetes"] = "a service account or service address is present"
    if environ.get("SLURM_JOB_ID"):
        found["slurm"] = "SLURM_JOB_ID is set"
    hint = environ.get("container", "")
    if re.fullmatch(r"[a-z][a-z0-9-]{1,30}", hint):  # systemd's convention, also kept by podman and enroot
        found.setdefault(hint, "the variable `container` names it")
    paths = " ".join(parse_membership(tree.text("/proc/self/cgroup")).values())
    for pattern, name in CGROUP_HINTS:
        if re.search(pattern, paths):
            found.setdefault(name, "the control group's path")
    return found


def _image(tree: Tree, environ: Mapping[str, str], found: dict[str, str]) -> str | None:
    if "podman" in found:
        image = parse_keys(tree.text("/run/.containerenv"), "=").get("image")
        if image:
            return redacted(image)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if environ.get(name):
            return Path(environ[name]).name  # the folder may be private, the image's name is what counts
    return None


def pid_namespace(tree: Tree, missing: Missing | None = None) -> str | None:
    """`first` or `own`: in a namespace of its own a container cannot see the machine's other processes."""
    link = tree.link("/proc/self/ns/pid")
    if link is None:
        if missing is not None:
            missing.add("pid_namespace", "the kernel does not state it")
        return None
    return "first" if link == FIRST_PID_NAMESPACE else "own"


def _root_file_system(tree: Tree) -> str | None:
    """Kind of the file system at /: overlay, squashfs and 9p are the mark of a container."""
    kind = None
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        before, found, after = line.partition(" - ")
        words = before.split()
        if found and len(words) > 4 and words[4] == "/" and after.split():
            kind = after.split()[0]
    return kind


def _job(environ: Mapping[str, str]) -> SchedulerJob | None:
    if environ.get("SLURM_JOB_ID"):
        partition, nodes = (environ.get(f"SLURM_JOB_{name}") or None for name in ("PARTITION", "NUM_NODES"))
        return SchedulerJob("slurm", environ["SLURM_JOB_ID"], partition, nodes)
    if environ.get("PBS_JOBID"):
        return SchedulerJob("pbs", environ["PBS_JOBID"])
    if environ.get("LSB_JOBID"):
        return SchedulerJob("lsf", environ["LSB_JOBID"])
    return None
