"""Tables of a pretrained model's passes, and of its calls beside Hugging Face's."""

from __future__ import annotations

from rtcontrol.telemetry.figure_table import Document, Table, ms


def pretrained(document: Document) -> list[Table]:
    """A row a model and dtype; then Hugging Face's own forwards."""
    rows, others, notes = [], [], []
    for name, result in document["models"].items():
        took, label = result["ms"], f"{result['layers']} layers, {result['parameters'] / 1e6:.0f} M"
        for dtype, ratios in result["ratios"].items():
            one, bare = took[f"{dtype} one_pass"], took[f"{dtype} bare_forward"]
            times = (ms(one["p50"]), ms(one["p99"]), ms(bare["p50"]), ms(bare["p99"]))
            over = (f"{ratios['bare_forward']:.2f}", f"{ratios['bare_forward_own_compute']:.2f}")
            equal = f"{result['equal'][dtype]} of {result['decisions']}"
            rows.append((f"{label}: {dtype}", *times, *over, equal, str(result["differ_without_near_tie"][dtype])))
            if f"{dtype} hf" in took:
                plain, scores = took[f"{dtype} hf"], took[f"{dtype} hf_scores"]
                shown = (ms(plain["p50"]), ms(plain["p99"]), ms(scores["p50"]), ms(scores["p99"]))
                others.append((f"{label}: {dtype}", *shown, f"{plain['p50'] / one['p50']:.2f}"))
        notes.append(
            f"{result['layers']} layers ({name}): {result['tokens']} tokens behind {result['cached_tokens']} cached "
            f"ones, {result['forward_passes']} pass(es), {result['near_ties']} near-ties"
        )
    told = document["instructions"]
    note = (
        f"{document['agent']}'s situations, {result['decisions']} decisions, {result['threads']} thread(s); this CPU "
        f"has {', '.join(told) or 'not told which instructions'}; load from {document['load'][0]} to "
        f"{document['load'][1]}{' (a busy machine)' if document['busy'] else ''}. {'; '.join(notes)}. Own compute is "
        "the deciding thread's processor time. A near-tie: a lead of less than "
        f"{document['tolerance']:g} of the node's largest score, in fp32; untrained heads have many."
    )
    columns = ("model: dtype", "one pass p50 ms", "p99", "bare forward p50", "p99", "one pass / bare", "own compute")
    first = Table(
        "One packed pass of a pretrained model",
        (*columns, "calls equal to fp32's", "differ, no near-tie"),
        tuple(rows),
        note,
        columns[1],
    )
    more = ("forward p50 ms", "p99", "with one token's scores p50", "p99", "times our one pass")
    note = "Hugging Face, sdpa, behind its own cache: the same tokens as one plain sequence, which decides nothing."
    return [first, Table("Hugging Face's forward of as many tokens", ("model: dtype", *more), tuple(others), note)]


def equal(document: Document) -> list[Table]:
    """A row a dtype; then each call that is another."""
    result, rows, apart = document["result"], [], []
    for dtype, one in result["dtypes"].items():
        counts = (
            f"{one['equal']} of {result['decisions']}",
            str(one["near_ties"]),
            str(one["differ_without_near_tie"]),
        )
        leads = f"{one['leads'][0]:.1e} to {one['leads'][1]:.1e}" if one["leads"] else "-"
        rows.append((dtype, *counts, f"{one['tolerance']:g}", leads))
        if dtype == "fp32":
            apart = [
                (
                    str(other["number"]),
                    other["judge"],
                    other["ours"],
                    f"{other['lead']:.1e}",
                    f"{other['relative']:.1e}",
                )
                for other in one["others"]
            ]
    tokens = result["prompt_tokens"]
    beyond = f", {result['beyond_window']} of them beyond the window" if result["window"] else ""
    note = (
        f"{document['model']}, {result['layers']} layers; seed {result['seed']}, {result['sets_of_tools']} sets of "
        f"drawn tools, prompts of {tokens[0]} to {tokens[2]} tokens (the middle one {tokens[1]}){beyond}; "
        f"{result['arguments']} arguments; the judge took {result['judges_forwards']} forwards. A near-tie: some "
        "choice of the judge led by less than the tolerance, as a part of the largest legal score there."
    )
    columns = ("dtype", "calls equal to the judge's", "near-ties of the judge", "differ, no near-tie", "tolerance")
    found = [
        Table(
            "Packed calls beside Hugging Face's, token by token",
            (*columns, "leads where calls differ"),
            tuple(rows),
            note,
        )
    ]
    if apart:
        heading = ("decision", "Hugging Face's call", "ours", "smallest lead, logits", "as a part")
        found.append(Table("Calls of fp32 that differ", heading, tuple(apart)))
    return found
