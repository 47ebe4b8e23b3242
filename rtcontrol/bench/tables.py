"""Tables of measured figures, one reading of a bench's document for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable

from rtcontrol.bench.batch import PAPER, SIZES
from rtcontrol.bench.pretrained_tables import equal, pretrained
from rtcontrol.bench.scaling_tables import crowd
from rtcontrol.telemetry.figure_table import NOT_MEASURED, Document, Table, conditions, ms
from rtcontrol.telemetry.policy_table import policy_faults

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


NAMES = {
    "bare_forward": "bare forward (the floor)",
    "one_pass": "one packed pass, text to typed call",
    "token_by_token": "token by token, parallel heads",
    "token_by_token_skip_forced": "the same, forced tokens skipped",
    "json": "JSON call in this engine, token by token",
    "json_skip_forced": "JSON call in this engine, forced tokens skipped",
    "hf_json": "JSON call, Hugging Face generate",
    "simthinkd": "simthinkd: one choice of 7 actions, its own model, states and threads",
}
WIRE = {
    "echo": "bare pyzmq ROUTER/DEALER echo of the same bytes (the floor)",
    "null_zmq": "msgpack over ZeroMQ, null decoder",
    "null_ws": "JSON over WebSocket, null decoder",
    "model_zmq": "msgpack over ZeroMQ, {model}",
    "model_ws": "JSON over WebSocket, {model}",
    "model_http": "`POST /v1/function_call`, {model}",
    "model_chat": "`POST /v1/chat/completions`, {model}",
    "openpi_echo": "openpi's client (WebSocket, msgpack), echo server",
}
QUESTIONS = {
    "bare_decide": "`decide` behind a bare socket (the floor), {model}",
    "model_decisions": "`POST /v1/decisions`, {model}",
    "model_systemone": "`POST /v1/systemone`, {model}",
}
SCHEMAS = {"bundled": "own tools", "long": "long", "long_arguments": "long, held to a function of three arguments"}


def decide(document: Document) -> list[Table]:
    """A table a list of tools, and, unless it is a part of a document, the worst of all decisions."""
    found = []
    for name, result in document["schemas"].items():
        one, tokens = result["ms"]["one_pass"]["p50"], result["tokens"]
        rows = []
        for way, label in NAMES.items():
            took = result["ms"].get(way)
            if took is None:
                rows.append((label, *["-"] * 5, f"{NOT_MEASURED} (not installed)"))
                continue
            passes = 1 if way == "bare_forward" else tokens.get(f"{way}_passes")
            shown = "-" if passes is None else f"{passes:.0f}"
            times = f"{took['p50'] / one:.2f}"
            rows.append((label, shown, *(ms(took[p]) for p in ("p50", "p90", "p99", "max")), times))
        packed = f"{tokens['uncached_prompt_tokens']:.0f} uncached prompt tokens, {tokens['packed_tokens']:.0f} packed"
        budget = ", ".join(f"{k} {v}" for k, v in result["info"]["budget"].items())
        found.append(
            Table(
                f"{document['agent']}, {SCHEMAS[name]}: {result['decisions']} decisions",
                ("way", "passes", "p50 ms", "p90", "p99", "max", "times one pass"),
                tuple(rows),
                f"{conditions(result)}; {packed}, {tokens['floor_tokens']:.0f} in the floor; all ways gave the same "
                f"call in {result['agreement']:.1%} of decisions; chosen at load: {budget}.",
                "p50 ms",
            )
        )
    return found if document.get("part") else [*found, _tail(document)]


def _tail(document: Document) -> Table:
    rows = []
    for name, result in document["schemas"].items():
        for way in ("one_pass", "bare_forward"):
            wall, cpu = result["tail"][way]["wall"], result["tail"][way]["cpu"]
            figures = (f"{wall['max_over_p50']:.2f}", str(wall["above_5x"]), ms(cpu["p50"]))
            worst = (f"{cpu['max_over_p50']:.2f}", str(cpu["above_5x"]))
            rows.append((f"{SCHEMAS[name]}: {NAMES[way]}", str(result["tail"][way]["decisions"]), *figures, *worst))
    columns = ("", "decisions", "max / p50, clock", "above 5x", "p50 of own compute, ms", "max / p50", "above 5x")
    note = "Own compute is the deciding thread's processor time: what the machine did meanwhile is in the clock alone."
    return Table(f"{document['agent']}: the worst decision as a multiple of the median", columns, tuple(rows), note)


def sizes(document: Document) -> list[Table]:
    """A row a shape: one pass, without graphs, its floor, and the other ways."""
    rows, notes = [], []
    for name, result in document["shapes"].items():
        took, counts = result["ms"], result["tokens"]
        graphless = took.get("without_graphs")
        cells = [f"{result['info']['parameters'] / 1e6:.0f} M", *(ms(took["one_pass"][p]) for p in ("p50", "max"))]
        cells += [ms(took["bare_forward"]["p50"]), ms(graphless["p50"]) if graphless else "-"]
        for way in ("token_by_token", "json", "json_skip_forced", "hf_json"):
            passes = counts[f"{way}_passes"]
            cells.append(f"{ms(took[way]['p50'])} ({passes:.0f}; {took[way]['p50'] / took['one_pass']['p50']:.1f}x)")
        rows.append((name, *cells))
        notes.append(f"{name}: {conditions(result)}, {result['decisions']} decisions, {result['agreement']:.1%} equal")
    columns = ("shape", "parameters", "one pass p50 ms", "max", "bare forward p50", "one pass without graphs, p50")
    others = (NAMES[way] for way in ("token_by_token", "json", "json_skip_forced", "hf_json"))
    note = f"p50 ms of the other ways, in brackets passes and times one pass. {'; '.join(notes)}."
    return [Table("One decision by size", (*columns, *others), tuple(rows), note)]


def batch(document: Document) -> list[Table]:
    """By size: sessions together beside one alone, the floor, and the paper's efficiency."""
    result = document["result"]
    one, rows = result["alone_ms"]["p50"], []
    for size in (n for n in SIZES if str(n) in result["ms"]["sessions"]):
        took = {way: by[str(size)] for way, by in result["ms"].items()}
        p50, floor = took["sessions"]["p50"], took["bare"]["p50"]
        cells = (ms(p50), ms(took["sessions"]["p99"]), f"{p50 / one:.2f}", ms(floor), f"{p50 / floor:.2f}")
        rest = (
            f"{1e3 * size / p50:.0f}",
            ms(took["situations"]["p50"]),
            f"{100 * one / p50:.1f}",
            f"{PAPER[size]:.1f}",
        )
        rows.append((str(size), *cells, *rest))
    columns = ("together", "p50 ms", "p99", "times one", "floor p50", "times the floor", "decisions/s")
    more = ("of one session, p50", "one / together, %", "the paper's efficiency, %")
    return [
        Table(
            f"{document['agent']}: decisions of different sessions together",
            (*columns, *more),
            tuple(rows),
            f"{conditions(result)}; {result['tokens_each']} tokens each, at most {result['together']} decisions a "
            f"pass, {result['rounds']} rounds; one alone: {ms(one)} ms. The floor is the bare forward of the same "
            "tokens. The paper's column is its table of batch scaling (average of six models of 0.5 to 14 B "
            "parameters, a step's time at B = 1 over that at B), measured by its authors on their GPUs: a GPU that "
            "waits for its memory takes more rows for nothing, a CPU does not.",
            "p50 ms",
        )
    ]


def heads(document: Document) -> list[Table]:
    """By number of heads: one packed pass, and a sequence a head."""
    result = document["result"]
    rows = []
    for n, nodes in result["nodes"].items():
        packed, together, turn = (result["ms"][way][n]["p50"] for way in result["ms"])
        rows.append(
            (n, str(nodes), ms(packed), ms(together), ms(turn), f"{together / packed:.2f}", f"{turn / packed:.2f}")
        )
    columns = (
        "heads",
        "nodes",
        "packed p50 ms",
        "a sequence a head, one pass",
        "in turns",
        "one pass / packed",
        "in turns / packed",
    )
    note = (
        f"{conditions(result)}; {result['values']} values in all heads together, {result['rounds']} rounds; all ways "
        f"read the same values in {result['agreement']:.1%}."
    )
    return [Table("One decision by its number of heads", columns, tuple(rows), note, "packed p50 ms")]


def prefix(document: Document) -> list[Table]:
    """What a cached prefix saves."""
    labels = {
        "open_computed": "open a session, prefix computed",
        "open_disk": "open a session, prefix from disk",
        "first_computed": "open and decide, prefix computed",
        "first_disk": "open and decide, prefix from disk",
        "cached": "decide, prefix cached",
        "nothing_cached": "decide, nothing cached",
    }
    found = []
    for name, result in document["schemas"].items():
        rows = tuple((text, *(ms(result["ms"][key][p]) for p in ("p50", "p90", "max"))) for key, text in labels.items())
        note = f"{conditions(result)}; {result['rounds']} rounds; the weights are loaded before."
        title = f"{document['agent']}, {SCHEMAS[name]}: a prefix of {result['prefix_tokens']} tokens"
        found.append(Table(title, ("", "p50 ms", "p90", "max"), rows, note, "p50 ms"))
    return found


def memory(document: Document) -> list[Table]:
    """MiB by stage."""
    result, found = document["result"], []
    for name, case in result["cases"].items():
        rows = [(stage, f"{mib['rss']:.1f}", f"{mib['uss']:.1f}") for stage, mib in case["mib"].items()]
        seconds = case["open_s"]
        found.append(
            Table(
                name,
                ("", "RSS MiB", "USS MiB"),
                tuple(rows),
                f"{case['vocabulary']:,} tokens in the vocabulary, weights of {case['weights_mib']:.1f} MiB, a prefix "
                f"of {case['prefix_tokens']} tokens; opened in {seconds['first']:.2f} s, {result['sessions']} further "
                f"sessions in {seconds['further']:.3f} s each (median).",
            )
        )
    return found


def dtype(document: Document) -> list[Table]:
    """bf16 beside fp32 and itself."""
    rows = []
    for name, result in document["results"].items():
        equal = (f"{result['equal'][way]}" for way in ("fp32", "token_by_token", "together"))
        clear = result["differ_without_near_tie"]
        own = clear["token_by_token"] + clear["together"]
        cells = (str(result["near_ties"]), str(own), str(clear["fp32"]), f"{result['largest_difference']:.4f}")
        rows.append((name, str(result["decisions"]), *equal, *cells))
        tolerance, together = result["tolerance"], result["together"]
    columns = ("", "decisions", "equal to fp32", "to itself token by token", f"to itself, {together} together")
    more = ("near-ties", "not near-ties that differ from itself", "from fp32", "largest difference")
    note = (
        f"A near-tie: some choice led by less than {tolerance:g} of the largest score that its node was asked for. The "
        "largest difference is that of two leads at one node, packed and token by token, by the same measure."
    )
    return [Table("Calls of bf16", (*columns, *more), tuple(rows), note)]


def engines(document: Document) -> list[Table]:
    """Engines beside the first of them."""
    rows, versions, result = [], [], document["result"]
    for name, one in result["engines"].items():
        took, info = one["ms"], one["info"]
        figures = (f"{took[p]:.2f}" for p in ("p50", "p99", "max"))
        weights = f", {info['weights']}" if "weights" in info else ""
        versions.append(f"{name} {one['version']} in {info['dtype']} on {info['device']}{weights}; ")
        counts = (str(one["equal"]), str(one["differ_without_near_tie"]), f"{one['forward_passes']:.2f}")
        rows.append((name, *counts, *figures, f"{info['load_ms'] / 1e3:.1f}"))
    rows += [(name, *["-"] * 6, f"{NOT_MEASURED} (not installed)") for name in result["not_installed"]]
    first = next(iter(result["engines"]))
    columns = ("engine", f"calls equal to {first}'s", "differ, no near-tie", "passes", "p50 ms", "p99 ms", "max ms")
    note = (
        f"{''.join(versions)}{result['decisions']} decisions each, {result['near_ties']} near-ties: a lead of less "
        f"than {result['tolerance']:g} of the largest score. Text to typed call, in turns."
    )
    return [Table(f"{document['model']} by each engine", (*columns, "load s"), tuple(rows), note, "p50 ms")]


def wire(document: Document) -> list[Table]:
    """Round trips beside a bare echo of the same bytes."""
    floor, rows = document["ms"]["echo"]["p50"], []
    for way, label in WIRE.items():
        took = document["ms"].get(way)
        if took is None and way != "openpi_echo":
            continue
        if took is None:
            rows.append((label, *["-"] * 4, f"{NOT_MEASURED} (not installed)"))
            continue
        figures = (f"{took[p]:.3f}" for p in ("p50", "p99", "p99_9", "max"))
        rows.append((label.format(model=document["model"]), *figures, f"{took['p50'] - floor:+.3f}"))
    note = f"{document['trips']} round trips each, {document['bytes']} bytes out."
    columns = ("way", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "p50 above the echo")
    found = [Table("Observation out to call in", columns, tuple(rows), note)]
    if "over_decide_ms" not in document:
        return found
    over, rows = document["over_decide_ms"], []
    for way, label in QUESTIONS.items():
        took, more = document["ms"][way], over[way]
        shown = (f"{ms:.3f}" for ms in (took["p50"], took["p99"], more["p50"], more["p99"]))
        above = f"{more['p50'] - over['bare_decide']['p50']:+.3f}"
        rows.append((label.format(model=document["model"]), *shown, above))
    columns = ("way", "p50 ms", "p99 ms", "over `decide`, p50", "over `decide`, p99", "inside the server, p50")
    note = "Over `decide`: the round trip without the decision itself. Inside the server: above the bare socket."
    return [*found, Table("Three questions about an observation", columns, tuple(rows), note)]


def load(document: Document) -> list[Table]:
    """What many clients of one server got."""
    rows = []
    for case in document["cases"]:
        http, took = case["http"], case["way_ms"]
        beside = f"{http['answers']} answers, p50 {http['s']['p50'] or 0:.2f} s" if http else "-"
        causes = ", ".join(f"{cause} {n}" for cause, n in case["misses_by_cause"].items()) or "none"
        counts = (f"{case['calls']} of about {case['expected']}", str(case["missing"]), causes)
        shown = (f"{case['clients']} at {case['hz']:g} Hz, {case['model']}, {case['seconds']:g} s", *counts)
        rows.append((*shown, f"{took['p50'] or 0:.2f} / {took['p99'] or 0:.2f}", beside))
    columns = ("clients", "calls", "never came", "misses", "sent to received, p50 / p99 ms", "HTTP client beside them")
    note = "Never came: lost, or the release skipped. The HTTP client sends new tools and 1,200 words each time."
    return [Table("Many clients of one server", columns, tuple(rows), note)]


TABLES: dict[str, Callable[[Document], list[Table]]] = {
    "decide": decide,
    "sizes": sizes,
    "batch": batch,
    "heads": heads,
    "prefix": prefix,
    "memory": memory,
    "wire": wire,
    "load": load,
    "crowd": crowd,
    "dtype": dtype,
    "engines": engines,
    "pretrained": pretrained,
    "equal": equal,
    "serving": serving,
    "chat": chat,
    "speculative": speculative,
    "policy-drill": policy_faults,
}


def tables(document: Document) -> list[Table]:
    """Of any bench's document."""
    return TABLES[document["bench"]](document)
