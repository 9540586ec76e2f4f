"""Environment variables that change results: by allow-list, and never anything that looks like a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping

from prony_node.contract.secret import looks_secret, redacted

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
