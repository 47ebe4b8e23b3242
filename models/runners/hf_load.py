"""Loads any causal model of transformers', and finds out by trial how it can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.decode.protocol import Ask, Tree, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.hf_runner import WAYS, HFRunner, TreeRunner
from rtcontrol.models.runners.torch_runner import ONE_THREAD, choose_device, choose_dtype
from rtcontrol.models.runners.weights import shared, unchanged

LENGTH, WINDOW = 24, 8  # tokens of the trial's prompt, and a sliding window's while it lasts
LONGEST = 1024  # of a trial that a model's other windows ask for
# Mean distance of scores, in their own deviations, that is rounding; or so many times that of the model's own ways.
ROUNDING, TIMES = {torch.float32: 1e-3}, 4.0
ROUNDING_16 = 2e-2
# The trial's tree in two passes, as parents; the nodes of the second stand behind those of the first.
TREES = ([-1, 0, 0, 1, -1, 4], [2, 6, 3])
LEAVES = (5, 7, 8)


def load(folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> HFRunner:
    """The runner of a checkpoint: whoever asks for the same unchanged one, dtype, device and threads shares it. Raises
    UserError."""
    place = choose_device(device)
    if threads is not None and threads < 1:
        raise UserError(f"{threads} CPU threads run nothing.", "Give 1 or more.")
    if read_config(folder).get("quantization_config"):
        raise UserError(
            f"{folder} is quantised; the engine transformers runs it in full precision alone.",
            "Use --engine torch (it is dequantised) or --engine vllm.",
        )
    kind = choose_dtype(dtype, folder, place)
    files = unchanged(sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]))
    if threads is None and sum(size for _, size, _ in files) < ONE_THREAD:
        threads = 1
    return shared(("transformers", files, kind, place, threads), lambda: runner(_model(folder, kind, place), threads))


def _model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        ).to(device)
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"transformers cannot load {folder} ({type(error).__name__}: {told}).",
            "Restore the checkpoint, or choose a causal model of an architecture that transformers has.",
        ) from None


def runner(model: Any, threads: int | None = None) -> HFRunner:
    """The fastest way of asking the model that gives what forwards of whole sequences give: a tree in one pass, path by
    path behind a cache, the same token by token, or without a cache."""
    model.eval()
    found, why = False, ""
    with _small_windows(model) as length:
        for make in _ways(model, threads, length is not None):
            try:
                if found := _agrees(make(), length or LENGTH):
                    break
                why = "its scores of whole sequences are others than those of one token after another"
            except Exception as error:
                why = repr(error).splitlines()[0]
    if not found:
        raise UserError(
            f"The {model.config.model_type} model cannot be asked for a tree: {why}.", "Choose another one."
        )
    return make()


def _ways(model: Any, threads: int | None, trees: bool) -> Iterator[Callable[[], HFRunner]]:
    config = model.config.get_text_config()
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    slides = getattr(config, "sliding_window", None) is not None and kinds != ["full_attention"]
    if trees and {*kinds} <= {"full_attention", "sliding_attention"}:
        for own in (kinds, ()) if len(kinds) > 1 else ((),):
            # The window is read when it is made: for the trial it is a small one.
            yield lambda own=own: TreeRunner(  # type: ignore[misc]
                model, threads, own, config.sliding_window if slides else None
            )
    for way in WAYS:
        yield lambda way=way: HFRunner(model, threads, way)  # type: ignore[misc]


@contextmanager
def _small_windows(model: Any) -> Iterator[int | None]:
    """What the model does beyond a window shows within few tokens. Gives the length of the trial; None: where a window
    of another name would need a long one, trees are not tried."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    others = [v for k, v in config.to_dict().items() if any(w in k for w in ("window", "chunk", "block", "local"))]
    long = [v for v in others if isinstance(v, int) and not isinstance(v, bool) and v != window]
    if isinstance(window, int) and window > WINDOW:
        config.sliding_window = WINDOW
    try:
        yield None if max(long, default=0) > LONGEST else LENGTH + max(long, default=0)
    finally:
        if window is not None:
            config.sliding_window = window


def _agrees(made: HFRunner, length: int) -> bool:
    """Whether a runner scores prompts that begin alike, and a tree behind each, as forwards of whole sequences do."""
    length = min(length, made.slots - 16)
    ids = torch.randint(made.caps.vocabulary, (2 * length,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [ids[:length], [*ids[: length // 2], *ids[length : length + length // 3]]]
    handle, _ = made.open(ids[: length // 3])
    other = made.copy(handle, handle.prefix)
    columns = torch.randint(made.caps.vocabulary, (256,), generator=torch.Generator().manual_seed(1)).tolist()
    each = ((prompts[0], handle), (prompts[1], handle), (prompts[0], other))
    return all(_scores_agree(made, used, prompt, columns, ids[-16:]) for prompt, used in each)


def _scores_agree(made: HFRunner, handle: Any, prompt: Sequence[int], columns: list[int], tokens: list[int]) -> bool:
    handle.start(prompt, 16)
    paths: list[list[int]] = []
    got: list[list[float]] = []
    for parents in TREES:
        base = len(paths)
        for i, parent in enumerate(parents, start=base):
            paths.append([*(paths[parent] if parent >= 0 else ()), tokens[i]])
        depths = [len(path) - 1 for path in paths[base:]]
        tree = Tree(tokens[base : len(paths)], parents, depths, [Ask(range(len(parents)), columns)])
        got += made.run([Work(handle, tree)])[0][0]
    # A leaf's forward has the scores of all nodes on its way.
    expected = torch.empty(len(paths), len(columns))
    for leaf in LEAVES:
        rows, _ = made.called([*prompt, *paths[leaf]], len(paths[leaf]))
        for i, path in enumerate(paths):
            if path == paths[leaf][: len(path)]:
                expected[i] = rows[len(path) - 1, columns]
    # How far apart the model's own ways are: a node's score as an end, and within a longer sequence.
    alone, _ = made.called([*prompt, *paths[0]], 1)
    noise = (alone[0, columns].cpu() - expected[0]).abs().mean()
    far = (torch.tensor(got) - expected).abs().mean(-1).max()
    return bool(far <= max(TIMES * noise, ROUNDING.get(made.model.dtype, ROUNDING_16) * expected.std()))
