"""A GGUF file as a model of transformers' and its tokenizer: read once, quickly, and without other libraries' bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from rtcontrol.models.errors import UserError

GGUF = ".gguf"
# By what a GGUF file calls its architecture.
ARCHITECTURES = {"gemma3": "Gemma 3", "qwen2": "Qwen2 and 2.5", "qwen3": "Qwen3", "llama": "Llama"}
PLAIN = ("F32", "F16", "BF16", "F64")  # kinds of weights that nobody rounded to a few bits
Stage = Callable[[str, int, int], None]  # what is done now, how much of it, and of how much


class Base(NamedTuple):
    """A causal language model of transformers', and its tokenizer. `quantized`: the kinds of weights that a file had,
    the most frequent first; they are plain numbers now."""

    model: Any
    tokenizer: Tokenizer
    quantized: tuple[str, ...] = ()


def is_gguf(path: Path) -> bool:
    """Whether a base is such a file."""
    return path.suffix == GGUF and path.is_file()


def read_gguf(path: Path, stage: Stage) -> Base:
    """Its weights as they were before they were quantised, as far as that can be told. Raises UserError."""
    if find_spec("gguf") is None:
        raise UserError("A GGUF file needs the package gguf, which is not here.", "pip install 'rtcontrol[train]'.")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stage("reading the file", 0, 1)
    try:
        reader = _open(path)
        field = reader.get_field("general.architecture")
        kind = "" if field is None else str(field.contents())
    except Exception as error:  # whatever a file can be wrong in
        raise UserError(f"{path} is no GGUF file ({error}).", "Download it again, or give a model's folder.") from None
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{path} is a model of the architecture {kind!r}.",
            f"Give a GGUF file of {', '.join(ARCHITECTURES.values())} (text models), or a folder of safetensors.",
        )
    safe: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    try:
        with _told_by(reader, stage):
            model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **safe)
            stage("building the tokenizer", 0, 1)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **safe)
    except Exception as error:  # a part of it is missing, or of a kind that transformers does not read
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot read {path} ({told}).", "Give another file of the model.") from None
    # These weights are plain numbers now.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return Base(model, tokenizer.backend_tokenizer, tuple(k for k, _ in kinds.most_common() if k not in PLAIN))


def _open(path: Path) -> Any:
    """gguf's reader. It slices a numpy.memmap for each of a vocabulary's tokens, thrice: over a plain array these
    slices cost a fifth."""
    import gguf

    class Quick(gguf.GGUFReader):
        plain: Any = None

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if self.plain is None:
                self.plain = np.asarray(self.data)
            kind = np.dtype(dtype).newbyteorder(self.byte_order if override_order is None else override_order)
            return self.plain[offset : offset + kind.itemsize * int(count)].view(kind)

    return Quick(path)


@contextmanager
def _told_by(reader: Any, stage: Stage) -> Iterator[None]:
    """transformers opens the file anew for the configuration, the tokenizer and the weights, seconds each: inside, it
    gets the reader that is open. Its warnings and bars are silent; the one of the weights tells `stage`."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    package: Any = import_module("gguf")
    theirs: Any = modeling_gguf_pytorch_utils

    def told(tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
        every = list(tensors)
        for done, tensor in enumerate(every):
            stage("dequantising the weights", done, len(every))
            yield tensor

    def put(changed: tuple[Any, Any]) -> None:
        package.GGUFReader, theirs.tqdm = changed

    loud, bars, before = logging.get_verbosity(), logging.is_progress_bar_enabled(), (package.GGUFReader, theirs.tqdm)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    put((lambda *_, **__: reader, told))
    try:
        yield
    finally:
        put(before)
        logging.set_verbosity(loud)
        if bars:
            logging.enable_progress_bar()
