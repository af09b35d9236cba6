"""`osiris evaluate RUN --compatibility`: the encoders after all tasks of a run, each against the later ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from osiris.console import notice, progress
from osiris.devices import open_device
from osiris.errors import UserError
from osiris.evaluation.evaluate import check_features
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.scores import Compatibility, write_record
from osiris.evaluation.versions import measure_compatibility
from osiris.files import require_writable
from osiris.runs.directory import START, RunDirectory, read_config, refuse_links_to_elsewhere, task_name
from osiris.training.evaluating import Request, check, load_at_size, load_encoders, normalised_for


def evaluate_compatibility(request: Request) -> tuple[Compatibility, Path]:
    """(the numbers, their file): in the run if they are measured on its own data, else in `out`. They are computed from
    the weights at every call."""
    check(request)
    path = place(request)
    require_writable(path.parent)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    device = open_device(request.device)
    encoders = {name: one for name, one in load_encoders(request).items() if name != START}
    expected = [task_name(task) for task in range(len(encoders))]
    if len(encoders) < 2 or list(encoders) != expected:
        raise UserError(
            "compatibility compares the encoders after all tasks, of which there must be two or more: "
            f"{request.target} has the weights of {', '.join(encoders)}."
        )
    first = encoders[expected[0]]
    benchmark, _ = normalised_for(first, load_at_size(first.image_size, request.data))
    notice(*benchmark.notices)
    images = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    versions = []
    for name, encoder in encoders.items():
        with progress(f"embedding with {name}", images) as ticker:
            versions.append(embed_benchmark(encoder.module.to(device), benchmark, device, ticker))
        check_features(versions[-1], benchmark)
    with progress("pairs of encoders", len(versions) * (len(versions) - 1) // 2) as ticker:
        record = measure_compatibility(versions, benchmark, ticker)
    write_record(path, record)
    return record, path


def place(request: Request) -> Path:
    """Where the numbers go."""
    run = request.target
    if run is None or not run.is_dir() or request.baseline is not None:
        raise UserError("--compatibility compares the encoders of a run: give its directory, and no --baseline.")
    if request.out is not None:
        return request.out / RunDirectory(run).compatibility.name
    own = read_config(run).data
    if replace(request.data, data_dir=own.data_dir) != own:
        raise UserError("this is not the data that the run was evaluated on: give a folder for the numbers with --out.")
    refuse_links_to_elsewhere(run)
    return RunDirectory(run).compatibility
