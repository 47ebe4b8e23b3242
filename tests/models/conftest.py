"""Small models gain nothing from threads, and lose much where other work shares the cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
