"""Read the configuration and the weights of a dense checkpoint. All runners in the process share loaded weights."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.quantized_weights import Packing, read_packing

T = TypeVar("T")
ARCHITECTURES = ("qwen2", "qwen3", "llama")
# Supported RoPE types. The type longrope is unsupported: its frequencies depend on the length of the prompt.
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
MAX_NUMBER = 1 << 31  # maximum of the numbers in a config.json
OTHER_ENGINES = "Run it with host.engine=transformers (any causal model) or host.engine=vllm."


@dataclass(frozen=True)
class ModelConfig:
    """The dimensions of a dense decoder-only model, and the parameters of its rotary embedding."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    context: int
    tied: bool
    inv_freq: tuple[float, ...]
    rope_scale: float
    settings: str  # the whole config as JSON text, part of each key of the prefix cache
    packing: Packing | None = None

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read `config.json`. Raises UserError for an architecture that the torch engine does not support."""
        raw = read_config(folder)
        kind = raw.get("model_type")
        if kind not in ARCHITECTURES:
            problem = f"{folder} is a {kind!r} model; the torch engine runs {', '.join(ARCHITECTURES)}."
            raise UserError(problem, OTHER_ENGINES)
        packed = read_packing(raw, folder)
        activation = raw.get("hidden_act", "silu")
        unknown = {
            "a sliding window": raw.get("use_sliding_window"),
            "an MLP with a bias": raw.get("mlp_bias"),
            f"the activation {activation!r}": activation != "silu",
        }
        if names := [name for name, value in unknown.items() if value]:
            raise UserError(f"{folder} has {', '.join(names)}, unsupported by the torch engine.", OTHER_ENGINES)
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        if missing := [k for k in sizes if not isinstance(raw.get(k), int)]:
            raise UserError(f"{folder / 'config.json'} lacks {', '.join(missing)}.", "Restore the checkpoint.")
        numbers = {"num_key_value_heads": raw["num_attention_heads"]} | {k: v for k, v in raw.items() if v is not None}
        _check_numbers(folder / "config.json", numbers)
        vocabulary, hidden, layers, heads = (raw[k] for k in sizes)
        kv_heads, head_dim = numbers["num_key_value_heads"], raw.get("head_dim") or hidden // heads
        eps, context = raw.get("rms_norm_eps", 1e-6), raw.get("max_position_embeddings", 2048)
        shape = (vocabulary, hidden, layers, heads, kv_heads, head_dim, eps, context)
        settings = json.dumps(raw, sort_keys=True)
        return cls(
            *shape,
            bool(raw.get("tie_word_embeddings", False)),
            *_rotary_parameters(folder / "config.json", raw, head_dim),
            settings,
            packed,
        )


def _check_numbers(path: Path, raw: dict[str, Any]) -> None:
    """Raise UserError, which names the field, if a number of the config is absurd."""
    counts = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    for name in (*counts, "head_dim", "max_position_embeddings", "rms_norm_eps"):
        value, kind = raw.get(name, 1), (int, float) if name == "rms_norm_eps" else int
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not is_number or not 0 < value < MAX_NUMBER:
            problem = f"{path}: {name} is {value!r:.40}, which is not a possible number."
            raise UserError(problem, "Restore the config.json that came with the weights.")
    if raw["num_attention_heads"] % raw["num_key_value_heads"]:
        problem = f"{path}: num_key_value_heads does not divide num_attention_heads."
        raise UserError(problem, "Restore the config.json that came with the weights.")


def _rotary_parameters(file: Path, raw: Mapping[str, Any], head_dim: int) -> tuple[tuple[float, ...], float]:
    """Return the inverse frequencies and the attention scaling of the rotary embedding, as transformers computes them.
    Raises UserError if the configuration (of `file`) is invalid, or its frequencies depend on a prompt's length."""
    rope = raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta", 1e4)}
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    plain = rope in ({"rope_theta": theta}, {"rope_theta": theta, "rope_type": "default"})
    if plain and not raw.get("rope_scaling") and isinstance(theta, int | float) and theta > 0:
        return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2)), 1.0
    # Transformers reads all other forms of the config. Import it only if needed, because the import takes a second.
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    try:
        config = AutoConfig.for_model(**raw)
        kind = config.rope_parameters["rope_type"]
        embedding = LlamaRotaryEmbedding(config) if kind in ROPE_TYPES else None
        if embedding is not None and 2 * len(embedding.inv_freq) != head_dim:
            raise ValueError(f"only a part of the {head_dim} values of a head is rotated")
    except Exception as error:  # transformers may raise any exception
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
        problem = f"{file}: the rotary embedding cannot be read ({reason})."
        raise UserError(problem, "Correct rope_parameters, rope_scaling and rope_theta.") from None
    if embedding is None:
        problem = f"{file}: a rotary embedding of type {kind!r} is unsupported by the torch engine."
        raise UserError(problem, f"Correct rope_parameters (known: {', '.join(ROPE_TYPES)}). {OTHER_ENGINES}")
    return tuple(embedding.inv_freq.tolist()), float(embedding.attention_scaling)


class WeightReader:
    """Reads tensors by name from one safetensors file, or from several files with an index. `packing` is the format of
    quantised weights, if there are any."""

    def __init__(self, folder: Path, packing: Packing | None = None) -> None:
        self.packing = packing
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{index} cannot be read ({error!r}).", "Download or copy it again.") from None
        else:
            files = ["model.safetensors"]
        self.paths = [folder / f for f in files]
        self._where: dict[str, Any] = {}
        for path in self.paths:
            if not path.is_file():
                raise UserError(f"{folder} is not a checkpoint: {path.name} is missing.", "Restore the missing file.")
            try:
                handle = safe_open(str(path), framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} is not a safetensors file ({error}).", "Download or copy it again.") from None
            self._where |= dict.fromkeys(handle.keys(), handle)

    def __contains__(self, name: str) -> bool:
        return name in self._where or (self.packing is not None and self.packing.scales_name(name) in self._where)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor as stored. Raises UserError if it is missing."""
        if name not in self._where:
            raise UserError(f"{self.paths[0].parent}: the tensor {name} is missing.", "Restore the checkpoint.")
        tensor: torch.Tensor = self._where[name].get_tensor(name)
        return tensor

    def get(self, name: str) -> torch.Tensor:
        """Return a weight, dequantised if it is packed."""
        weight = None
        if self.packing is not None and name.endswith("weight"):
            try:
                weight = self.packing.weight(self, name)
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                raise UserError(
                    f"{self.paths[0].parent}: {name} is not packed as its config.json says ({error}).",
                    "Restore the config.json that came with the weights.",
                ) from None
        return self[name] if weight is None else weight


def fingerprint(folder: Path) -> str:
    """Return a hash of the weights for cache keys. Files up to 64 MiB are hashed completely; of larger files, only
    size, modification time and some blocks, because reading gigabytes takes seconds."""
    digest = hashlib.sha256()
    block = 1 << 20
    for path in WeightReader(folder).paths:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            if size <= 64 * block:
                digest.update(file.read())
                continue
            digest.update(str(path.stat().st_mtime_ns).encode())
            for i in range(64):
                file.seek(i * (size - block) // 63)
                digest.update(file.read(block))
    return digest.hexdigest()


@dataclass(frozen=True)
class Layer:
    """The weights of one transformer block, fused: `qkv` [(heads + 2 kv_heads) * head_dim, hidden], `gate_up` [2 *
    intermediate, hidden]."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """All weights of a model on one device. On a CPU with bf16 weights, norms and all operations between matrix
    products are fp32."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    lm_head: torch.Tensor

    @property
    def parameters(self) -> int:
        alone = [self.embedding, self.norm, *([] if self.lm_head is self.embedding else [self.lm_head])]
        linears = [t for layer in self.layers for t in vars(layer).values() if isinstance(t, Linear)]
        norms = [t for layer in self.layers for t in vars(layer).values() if isinstance(t, torch.Tensor)]
        return sum(t.numel() for t in (*alone, *norms)) + sum(t.numel for t in linears)


_instances: WeakValueDictionary[Any, Any] = WeakValueDictionary()
_instances_lock = threading.RLock()


def get_or_create(key: Any, make: Callable[[], T]) -> T:
    """Return the cached object for this key, or create it with `make`. An object is cached while it is in use."""
    with _instances_lock:
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = make()
        return cast("T", instance)


def files_key(paths: Iterable[Path]) -> tuple[tuple[Path, int, int], ...]:
    """Return a key (path, size and modification time of each file) that changes if one of the files changes."""
    return tuple((path.resolve(), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read and fuse the weights of a checkpoint. Callers with the same unchanged checkpoint, dtype and device share the
    tensors. Raises UserError for a missing tensor."""
    reader = WeightReader(folder, config.packing)
    key = (files_key(reader.paths), config, dtype, device)
    return get_or_create(key, lambda: _load(folder, reader, config, dtype, device))


def _load(folder: Path, reader: WeightReader, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    tensors = _WeightLoader(reader, dtype, device)
    layers = tuple(tensors.layer(f"model.layers.{i}.") for i in range(config.layers))
    if f"model.layers.{config.layers}.input_layernorm.weight" in reader:
        problem = f"{folder}: config.json has num_hidden_layers {config.layers}, but the weights have more layers."
        raise UserError(problem, "Restore the config.json that came with the weights.")
    embedding = tensors.get("model.embed_tokens.weight")
    rows = (config.heads + 2 * config.kv_heads) * config.head_dim
    shapes = [layer.qkv.shape == (rows, config.hidden) for layer in layers]
    if embedding.shape != (config.vocabulary, config.hidden) or not all(shapes):
        problem = f"{folder}: the shapes of the tensors do not match its config.json."
        raise UserError(problem, "Restore the config.json that came with the weights.")
    head = tensors.optional("lm_head.weight")
    # If the LM head differs from the embeddings, they are not tied, even if the config says so.
    if head is None or (config.tied and torch.equal(head, embedding)):
        head = embedding
    return Weights(embedding, layers, tensors.norm("model.norm.weight"), head)


class _WeightLoader:
    """Loads the tensors of a checkpoint to one device. On a CPU with bf16 weights the norms are fp32."""

    def __init__(self, reader: WeightReader, dtype: torch.dtype, device: torch.device) -> None:
        self._reader, self._dtype, self._device = reader, dtype, device
        rounded = device.type == "cpu" and dtype != torch.float32
        self._linear = RoundedLinear if rounded else Linear
        self._between = torch.float32 if rounded else dtype

    def get(self, name: str) -> torch.Tensor:
        dtype = self._dtype if "embed" in name or "lm_head" in name else self._between
        return self._reader.get(name).to(device=self._device, dtype=dtype)

    def optional(self, name: str) -> torch.Tensor | None:
        return self.get(name) if name in self._reader else None

    def norm(self, name: str) -> torch.Tensor:
        return self._reader.get(name).to(device=self._device, dtype=self._between)

    def layer(self, prefix: str) -> Layer:
        """Read and fuse the weights of the layer whose tensor names start with `prefix`."""
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

        def norm(name: str) -> torch.Tensor | None:
            return self.norm(name) if name in self._reader else None

        def joined(names: list[str]) -> torch.Tensor:
            return torch.cat([self.get(name) for name in names])

        bias = f"{attention}q_proj.bias" in self._reader
        return Layer(
            self.norm(f"{prefix}input_layernorm.weight"),
            self._linear(
                joined([f"{attention}{p}_proj.weight" for p in "qkv"]),
                joined([f"{attention}{p}_proj.bias" for p in "qkv"]) if bias else None,
            ),
            norm(f"{attention}q_norm.weight"),
            norm(f"{attention}k_norm.weight"),
            self._linear(self.get(f"{attention}o_proj.weight"), self.optional(f"{attention}o_proj.bias")),
            self.norm(f"{prefix}post_attention_layernorm.weight"),
            self._linear(joined([f"{mlp}{p}_proj.weight" for p in ("gate", "up")])),
            self._linear(self.get(f"{mlp}down_proj.weight")),
        )


# -- matrix products with weights: plain, in oneDNN's layout, or rounded to bf16 --------------------------------------


ROWS = 16  # oneDNN's layout is optimised for this number of input rows


class Linear:
    """A linear layer: `x @ weight.T + bias` for x [rows, inputs]. `numel` is the number of elements of weight and bias.

    On a CPU the weight is stored in oneDNN's blocked layout if possible. For 15 rows of the bundled model this takes
    half the time of `F.linear`, which converts the weight to this layout in every call.
    """

    __slots__ = ("_bias", "_packed", "_weight", "numel", "shape")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.shape = tuple(weight.shape)
        self.numel = weight.numel() + (0 if bias is None else bias.numel())
        self._packed = can_pack(weight)
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            y: torch.Tensor = _packed_linear(x, self._weight, self._bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self._bias)


def _find_packed_linear() -> Any:
    """Return oneDNN's linear operator, or None if it does not work. It is private, so future torch may lack it."""
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
        weight = torch.eye(2)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        return operator if torch.equal(operator(weight, packed, None, "none", [], ""), weight) else None
    except (AttributeError, RuntimeError):
        return None


_packed_linear: Any = _find_packed_linear()


def can_pack(weight: torch.Tensor) -> bool:
    """Return whether a weight can be stored in oneDNN's layout: fp32 on a CPU, or bf16 if the CPU multiplies bf16."""
    if _packed_linear is None or weight.device.type != "cpu":
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class RoundedLinear(Linear):
    """A linear layer with weights and inputs rounded to bf16, and fp32 outputs."""

    __slots__ = ()

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight.to(torch.bfloat16), None if bias is None else bias.to(torch.bfloat16))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x.to(torch.bfloat16)).float()
