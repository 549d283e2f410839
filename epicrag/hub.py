"""A model fetched from the Hugging Face hub: safetensors, configuration and tokenizer, never pickles."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from epicrag.errors import DeviceError, EpicragError, OfflineError, UsageError

WANTED = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*")
UNWANTED = ("original/*", "onnx/*", "openvino/*", "runs/*", "consolidated*", "*_adapter/*")
"""Copies of the same weights in other layouts, as big as the model itself."""


def download(repo: str, folder: Path) -> None:
    """Fetch `repo` into `folder`, going on where an interrupted download stopped.

    Raises UsageError where the repository is unknown, gated or holds only pickled weights,
    OfflineError where the hub cannot be reached, and DeviceError where the disk is full.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if sys.stderr is None or not sys.stderr.isatty():
            disable_progress_bars()
        refuse_pickles(repo, hub.HfApi().list_repo_files(repo))
        hub.snapshot_download(
            repo, local_dir=folder, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except EpicragError:
        raise
    except (
        Exception
    ) as error:  # the hub's client raises its own, its HTTP library's and the system's
        raise _translate(error, repo) from error


def refuse_pickles(name: str, files: Sequence[str]) -> None:
    """Raise unless weights are there as safetensors: loading a pickle runs whatever code is in it."""
    weights = [file for file in files if fnmatch(file, "*.safetensors")]
    if any(not fnmatch(file, "consolidated*") for file in weights):
        return
    pickles = [file for file in files if Path(file).suffix in (".bin", ".pt", ".pth", ".pkl")]
    if pickles:
        raise UsageError(
            f"{name} has its weights only as pickles ({pickles[0]}), which run code when loaded.",
            "Choose a model that offers safetensors, or convert it where you trust its author.",
        )
    raise UsageError(
        f"{name} has no weights in the safetensors format.",
        "Give a causal language model or a sentence-transformers model: `epicrag models list`.",
    )


def cached(repo: str) -> Path | None:
    """Return the newest snapshot of `repo` in the hub's own cache, if it has one; opens no socket."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    folder = cache / ("models--" + repo.replace("/", "--"))
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _translate(error: Exception, repo: str) -> EpicragError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return UsageError(
            f"{repo} is gated: its licence has to be accepted first.",
            f"Accept it on the model's page, log in with `hf auth login`, "
            f"and repeat `epicrag models pull {repo}`.",
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return UsageError(
            f"The hub has no model {repo}, or it is private.", "Known: `epicrag models list`."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DeviceError(
            f"The disk is full while fetching {repo}.", "Free some space, or move EPICRAG_HOME."
        )
    return OfflineError(
        f"{repo} cannot be fetched: {error or type(error).__name__}",
        f"Check the network and repeat `epicrag models pull {repo}`; what has arrived is kept.",
    )
