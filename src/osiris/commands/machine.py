"""`osiris doctor` and `osiris bench`: what this machine has, what is missing, and how fast it is.

No torch at import: `osiris doctor` also works where it is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path

from rich.markup import escape
from rich.table import Table

import osiris
from osiris.commands import command
from osiris.console import console
from osiris.data.load import describe_benchmarks
from osiris.errors import UserError, install_extra

REQUIREMENT = re.compile(r"(?P<package>[\w-]+)[^;]*(;.*extra == ['\"](?P<extra>\w+)['\"])?")


@command("bench")
def bench_command(repeats: int = 5) -> None:
    """Measure how fast osiris-d trains on this machine, in a few minutes; on a GPU, by precision.

    Shows the images per second, their rate as a fraction of that of the encoder passes alone, and the FLOP/s as a
    fraction of those of a matrix product.

    Examples:
      osiris bench
      osiris bench --repeats 9

    Args:
        repeats: Repeats of each measurement; the median is shown.
    """
    import torch

    from osiris.bench import speeds

    if repeats < 1:
        raise UserError(f"--repeats {repeats} measures nothing; use a positive number, such as 5.")
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    table = Table(title=f"osiris-d on {where}, medians of {repeats} turns")
    for name in ("training", "images per second", "of its encoder passes", "of a matrix product"):
        table.add_column(name, justify="left" if name == "training" else "right")
    with console.status("measuring"):
        for one in speeds(repeats, "cuda" if gpu else "cpu"):
            table.add_row(one.what, f"{one.images:.0f}", f"{one.of_passes:.2f}", f"{one.of_products:.2f}")
    console.print(table)


@command("doctor")
def doctor_command(out: Path = Path("runs")) -> int:
    """Show versions, device, threads, data found and free disk; exit code 1 when something needed is missing.

    Examples:
      osiris doctor
      osiris doctor --out /scratch/runs

    Args:
        out: Where runs would go: its free space is shown.
    """
    table = Table(title=f"osiris {osiris.__version__} on {platform.platform()}", show_header=False)
    table.add_row("python", platform.python_version())
    missing = False
    for package, extra in requirements():
        installed = version(package)
        if extra:
            table.add_row(f"{package} (extra)", installed or f"not installed ({escape(install_extra(extra))})")
        else:
            table.add_row(
                package, installed or "[red]missing: pip install -c constraints.txt -e . in the folder of osiris[/red]"
            )
            missing |= installed is None
    for name, text in [*([] if version("torch") is None else _devices()), *_data()]:
        table.add_row(name, text)
    parent = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(parent).free / 2**30
    writable = "" if os.access(parent, os.W_OK) else " [red](not writable: choose another --out)[/red]"
    table.add_row("free disk", f"{free:.1f} GiB for {escape(str(out))}{writable}")
    console.print(table)
    return 1 if missing else 0


def requirements() -> list[tuple[str, str]]:
    """(package, the extra that installs it) of everything that osiris can use; no extra for what it needs."""
    if version("osiris-ucl") is None:  # it runs from its sources, without being installed
        return []
    matches = [REQUIREMENT.match(line) for line in metadata.requires("osiris-ucl") or ()]
    return [(match["package"], match["extra"] or "") for match in matches if match]


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[tuple[str, str]]:
    import torch

    from osiris.devices import choose_device

    rows = [("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        rows.append(("cuda", ", ".join(names)))
    elif shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        problem = "cannot use it: update the driver" if torch.version.cuda else "is for CPUs: install one with CUDA"
        rows.append(("cuda", f"[red]there is a GPU, but this torch {problem} (https://pytorch.org/get-started)[/red]"))
    rows.append(("mps", "yes" if torch.backends.mps.is_available() else "no"))
    return [*rows, ("device chosen by auto", choose_device("auto").type)]


def _data() -> list[tuple[str, str]]:
    folder = os.environ.get("OSIRIS_DATA")
    rows = [("OSIRIS_DATA", escape(folder or "not set: data comes from the hub"))]
    return rows + [(f"data: {row.name}", escape(row.present)) for row in describe_benchmarks()]
