"""What answers, by its name: a checkpoint, or an endpoint."""

from __future__ import annotations

from rtcontrol.evaluation.answerers import Answerer, HeadsAnswerer, ModelOptions
from rtcontrol.evaluation.endpoints import CHAT, ChatAnswerer, QuestionsAnswerer
from rtcontrol.evaluation.json_calls import JsonAnswerer
from rtcontrol.hosts.endpoint import is_endpoint
from rtcontrol.models.errors import UserError


def answerer(options: ModelOptions) -> Answerer:
    """Raises UserError for what is neither."""
    elsewhere = is_endpoint(options.model) or options.model.partition(":")[0] == CHAT
    if options.grammar and options.way != "json":
        raise UserError("--grammar is for a model that writes JSON.", "Give --way json, too, or leave it out.")
    if not elsewhere:
        return JsonAnswerer(options) if options.way == "json" else HeadsAnswerer(options)
    if options.way != "heads":
        raise UserError(
            f"--way {options.way} is for a checkpoint, and {options.model} is an endpoint.", "Leave it out."
        )
    return QuestionsAnswerer(options.model) if is_endpoint(options.model) else ChatAnswerer(options.model)
