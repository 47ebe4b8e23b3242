"""Tables of the decoder beside others' ways: vLLM, a chat model's JSON, speculative decoding."""

from __future__ import annotations

from rtcontrol.bench.table import Document, Table, conditions, ms

SERVING = {
    "one_pass": "one packed pass, text to typed call",
    "simpletool": "SimpleTool's way (vLLM as it comes)",
    "simpletool_best": "its best form",
    "vllm_json": "JSON under vLLM's grammar, best form",
}
CASES = {
    "late": "15 M, four heads of 8 tokens told apart by the last",
    "early": "15 M, four heads of 8 tokens told apart by the first",
    "lander": "the bundled lander",
}
CHAT = {
    "sequential": "`sequential`",
    "parallel": "`parallel`",
    "skip_forced": "JSON, forced tokens skipped",
    "token_by_token": "JSON, token by token",
}
SPECULATIVE = {
    "none": "no guess",
    "prompt": "the prompt's text",
    "draft_2": "a smaller model's call, depth 2",
    "draft_3": "depth 3",
    "draft_4": "depth 4",
    "draft_whole": "all of it",
}


def serving(document: Document) -> list[Table]:
    """A table a case and dtype."""
    found = []
    for name, result in document["cases"].items():
        case, _, dtype = name.partition(", ")
        counts, one, rows = result["counts"], result["ms"]["one_pass"]["p50"], []
        for way, label in SERVING.items():
            took = result["ms"][way]
            ours = way == "one_pass"
            passes = counts["one_pass_passes"] if ours else counts.get(f"{way}_steps")
            cells = [f"{took['p50'] / one:.2f}"]
            cells += ["-", "-"] if ours else [f"{counts[f'{way}_tokens']:.0f}", f"{counts[f'{way}_cached']:.0f}"]
            equal = "-" if ours else f"{counts[f'{way}_legal']:.0%} / {counts[f'{way}_equal']:.0%}"
            times = (ms(took[p]) for p in ("p50", "p90", "p99"))
            rows.append((label, "-" if passes is None else f"{passes:.1f}", *times, *cells, equal))
        columns = ("way", "passes", "p50 ms", "p90", "p99", "times one pass", "tokens written", "prompt tokens cached")
        info, threads = result["info"], result["threads"]
        note = (
            f"{result['decisions']} decisions; prompts of {result['prompt_tokens']} tokens, {result['heads']} heads; "
            f"{info['parameters'] / 1e6:.1f} M parameters; threads: {threads['ours']} of ours, {threads['vllm']} of "
            f"vLLM's in this process; one pass evaluates {counts['one_pass_tokens']:.0f} tokens; grammar by "
            f"{result['backend']}."
        )
        title = f"{CASES[case]}, {dtype}"
        found.append(Table(title, (*columns, "legal calls / equal to ours"), tuple(rows), note, "p50 ms"))
    return found


def chat(document: Document) -> list[Table]:
    """A row an agent and way."""
    rows, notes = [], list[str]()
    for agent, result in document["cases"].items():
        one = result["passes"]["sequential"]
        for way, label in CHAT.items():
            count, took = result["passes"][way], result["ms"][way]
            rows.append((f"{agent}: {label}", f"{count:.2f}", f"{count / one:.1f}", ms(took["p50"]), ms(took["p99"])))
        notes.append(f"{agent} {result['same_call']:.0%} of {result['decisions']}")
        told = result["info"]
    note = (
        f"{told['model']}, {told['parameters'] / 1e6:.1f} M parameters, {told['dtype']} on {told['device']}, "
        f"{result['threads']} thread(s); the same call by `sequential` and both ways of JSON: {', '.join(notes)}."
    )
    columns = ("agent: way", "passes", "times `sequential`", f"p50 ms, {told['model']}", "p99")
    return [Table("A chat model's calls", columns, tuple(rows), note, columns[3])]


def speculative(document: Document) -> list[Table]:
    """A row a way."""
    result = document["result"]
    none, rows = result["counts"]["none"]["passes"], []
    for way, label in SPECULATIVE.items():
        counts, took = result["counts"][way], result["ms"][way]
        accepted = f"{counts['right'] / counts['guessed']:.1%}" if counts["guessed"] else "-"
        cells = (f"{counts['passes']:.1f}", f"{none / counts['passes']:.2f}", f"{counts['tokens']:.1f}", accepted)
        rows.append((label, *cells, ms(took["p50"]), f"{result['ms']['none']['p50'] / took['p50']:.2f}"))
    columns = ("guess", "passes", "fewer", "tokens evaluated", "guessed tokens accepted", "p50 ms", "times faster")
    draft = result["draft"]
    note = (
        f"{result['decisions']} calls with a text of {result['value_tokens']} tokens; {conditions(result)}; target "
        f"{result['info']['parameters'] / 1e6:.1f} M parameters, draft {draft['parameters'] / 1e6:.1f} M, its time "
        f"included; set: {result['wrong']:.0%} of its tokens are others."
    )
    return [Table("A free value by what it is guessed from", columns, tuple(rows), note, "p50 ms")]
