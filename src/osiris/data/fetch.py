"""The hub: every download goes through here."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from osiris.console import notice
from osiris.errors import UserError


def fetch(repository: str, configuration: str | None = None) -> Any:
    """`datasets.load_dataset` of a hub repository: split name -> data set."""
    if not hub_reachable():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # look into the hub's own cache, without half a minute of retries
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    notice(f"fetching {repository} from the Hugging Face hub")
    try:
        return datasets.load_dataset(repository, configuration)
    except DatasetNotFoundError:
        raise UserError(f"the hub has no data set {repository!r} that you may read. Check the name.") from None
    except (OSError, HfHubHTTPError) as error:  # no connection, offline mode, a proxy's refusal
        raise_if_disk_full(error)
        raise UserError(by_hand(repository, error)) from error
    except (ValueError, DatasetGenerationError) as error:  # several configurations, files that cannot be read
        raise_if_disk_full(error)
        raise UserError(
            f"{repository}: {one_line(error)} (name a configuration with dataset:{repository}@CONFIGURATION)"
        ) from None


def by_hand(repository: str, error: Exception) -> str:
    folder = repository.split("/")[-1]
    return (
        f"could not fetch {repository} from the hub ({type(error).__name__}). Without a network, get the data by hand: "
        f"on a connected machine run `hf download {repository} --repo-type dataset --local-dir {folder}` (or download "
        f"the files of https://huggingface.co/datasets/{repository}), copy the folder here and pass it with "
        "--data-dir, or set OSIRIS_DATA to the folder that holds it."
    )


def raise_if_disk_full(error: BaseException | None) -> None:
    """`datasets` may wrap the operating system's error in its own; the cache explains it (see cache.py)."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise error
        error = error.__cause__ or error.__context__


def one_line(error: Exception) -> str:
    """What a library says, fit for a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def hub_reachable() -> bool:
    """Whether the hub's name can be resolved. Behind a proxy that says nothing, so there the answer is yes."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname or "huggingface.co"
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
