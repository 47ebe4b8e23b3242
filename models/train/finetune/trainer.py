"""transformers' Trainer over packed groups: a rate for each part, one loss over the whole step, whole checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.models.train.finetune import checkpoints
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupCollator, Groups, SameToolsSampler
from rtcontrol.models.train.finetune.model import TreeLM, dtype_of, parameter_groups, trained
from rtcontrol.models.train.loss import bf16_products

Progress = Callable[[dict[str, Any]], None]
LOG = "log.jsonl"
BETAS = (0.9, 0.999)


def arguments(
    recipe: FinetuneRecipe, folder: Path, device: torch.device, steps: int, processes: int
) -> TrainingArguments:
    """The Trainer's own settings; `folder` is for the checkpoints. Raises UserError where the groups of a step cannot
    be shared by the processes."""
    together = recipe.device_groups * processes
    if recipe.groups % together:
        raise UserError(
            f"{recipe.groups} groups a step are no multiple of {recipe.device_groups} on each of {processes} devices.",
            "Choose groups and device_groups that divide.",
        )
    made = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=recipe.device_groups,
        gradient_accumulation_steps=recipe.groups // together,
        max_steps=steps,
        learning_rate=recipe.lora_rate,
        lr_scheduler_type=recipe.schedule,
        warmup_steps=math.ceil(recipe.warmup * steps),
        max_grad_norm=recipe.clip,
        bf16=dtype_of(recipe, device) == torch.bfloat16,
        use_cpu=device.type == "cpu",
        seed=recipe.seed,
        data_seed=recipe.seed,
        logging_steps=recipe.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # a loss that is no number ends the run
        save_steps=recipe.save_every,
        report_to=["tensorboard"] if recipe.tensorboard else [],
        dataloader_num_workers=recipe.workers,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    if processes == 1:
        made._n_gpu = min(made.n_gpu, 1)  # of several GPUs that are seen one is used; more are torchrun's to start
    return made


class GroupTrainer(Trainer):
    """Trains a `TreeLM`; `told` is the run's identity, which every checkpoint carries."""

    optimizer: Any

    def __init__(
        self,
        model: TreeLM,
        recipe: FinetuneRecipe,
        groups: Groups,
        collator: GroupCollator,
        args: TrainingArguments,
        told: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> None:
        self.recipe, self._told = recipe, told
        self._folder = Path(args.output_dir)
        self._staging = False
        self._order: SameToolsSampler | None = None
        super().__init__(model=model, args=args, train_dataset=groups, data_collator=collator)
        self.remove_callback(PrinterCallback)
        self.add_callback(_Log(self._folder.parent / LOG, progress))
        if recipe.batches == "same-tools":
            self._order = SameToolsSampler(groups.sets, recipe.device_groups, recipe.seed)
            self.add_callback(_Epoch(self._order))

    def restore(self, checkpoint: Path) -> None:
        """Model and state of the run's end. Raises UserError."""
        checkpoints.read_trained(checkpoint, trained(self.model), self._told)
        with checkpoints.reading(checkpoint):
            self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW, each part of the model at its own rate."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameter_groups(self.model, self.recipe), betas=BETAS)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self._order if self._order is not None else super()._get_train_sampler(train_dataset)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """With them the sum of all label weights of the step, of all processes: what its loss is divided by."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        total = torch.tensor(sum(float(b["batch"].weights.sum()) for b in batches), device=device)
        if self.args.world_size > 1:
            total = self.accelerator.gather(total.reshape(1)).sum()
        return batches, total

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
        """Forward and backward, their products as the recipe says."""
        with bf16_products(self.recipe.products == "bf16"):
            return super().training_step(*given, **named)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This batch's part of the step's weighted mean."""
        loss, correct = model(batch=inputs["batch"], normaliser=float(num_items_in_batch))
        loss = loss * self.accelerator.num_processes  # whose gradients are averaged
        return (loss, correct) if return_outputs else loss

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted."""
        return 0

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder / checkpoints.STAGING) if self._staging else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                checkpoints.finish(self._folder, self.state.global_step, self.recipe.keep)
            self.accelerator.wait_for_everyone()
        except checkpoints.FULL as error:
            checkpoints.drop_staged(self._folder)
            raise checkpoints.not_saved(self._folder, error) from None
        finally:
            self._staging = False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.args.should_save:
            checkpoints.write_trained(Path(output_dir or self._folder), trained(self.model), self._told)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        checkpoints.read_trained(Path(resume_from_checkpoint), trained(self.model), self._told)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with checkpoints.reading(Path(checkpoint or "")):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with checkpoints.reading(Path(checkpoint or "")):
            super()._load_rng_state(checkpoint)


class _Epoch(TrainerCallback):
    """Tells a sampler which epoch begins, also one that begins in its middle: accelerate tells none whose batches it
    skips in several processes."""

    def __init__(self, order: SameToolsSampler) -> None:
        self._order = order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._order.epoch = int(state.epoch or 0)


class _Log(TrainerCallback):
    """The log, a JSON object a line; after a resume it goes on where the checkpoint was."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._path, self._progress = path, progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._write(state.log_history)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True  # the last step is what a run is judged by

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        told = logs or {}
        if "loss" in told and not math.isfinite(told["loss"]):
            raise UserError(
                f"The loss is {told['loss']} after {state.global_step} steps: nothing is learnt from it.",
                "Lower the rates, or use --dtype fp32; what was saved before is whole.",
            )
        if state.is_world_process_zero:
            self._write(state.log_history)
            if self._progress is not None and "loss" in told:
                self._progress({"step": state.global_step, "steps": state.max_steps, **told})

    def _write(self, history: list[dict[str, Any]]) -> None:
        try:
            replace_file(no_link(self._path), "".join(json.dumps(line) + "\n" for line in history if "loss" in line))
        except OSError as error:
            raise checkpoints.not_saved(self._path.parent / "checkpoints", error) from None
