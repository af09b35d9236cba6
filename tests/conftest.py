"""For all tests: one thread, so that results do not depend on the machine and tests do not fight for its cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
