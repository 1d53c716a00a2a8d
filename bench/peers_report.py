# SPDX-License-Identifier: Apache-2.0
"""What peers.py prints: a block of text a case, lines of a sweep, and Markdown tables."""
from peers_case import Case
from peers_judge import LONGEST_S


def ranges(numbers):
    """[0, 1, 2, 5] as "0-2,5"."""
    parts = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def digits(x):
    """Three significant ones, but no fewer than the integer has."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def case_of(entry):
    return Case(entry["case"], *entry["shape"], entry["causal"], entry["dtype"], entry.get("v_in_k", False))


def speed(case, ms):
    return f"{digits(ms)} ms, {digits(case.rate(ms))} {case.unit}"


def ratio(result):
    low, middle, high = result["ratio"]
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def medians(result):
    """Those of the kept repetitions, if there are none those of all; None without either."""
    found = result if result.get("ratio") else result.get("all", {})
    return found if found.get("ratio") else None


def level_of(head):
    """The instruction-set level whose products are the ceiling of attn's run."""
    return head.get("level") or head.get("isa")


def kernel_of_attn(head):
    kernel, isa = head.get("kernel", "?"), head.get("isa")
    return f"{kernel} ({isa})" if isa else kernel


def rival(head):
    return f"{head['version']} ({head['backend']}), {head['kernel']}"


def threads_of(count):
    return f"{count} thread{'' if count == 1 else 's'}"


def best_judged(entry):
    """The result with the most kept repetitions, whose times of attn stand for attn; None without any."""
    judged = [result for result in [*entry["peers"].values(), entry.get("alone", {})] if medians(result)]
    return max(judged, key=lambda result: (result["kept"], result["taken"]), default=None)


def share(case, entry):
    """"83 % of 174 GFLOP/s (avx512)", or "" if nothing was judged."""
    result = best_judged(entry)
    if result is None:
        return ""
    found = medians(result)
    of = f" ({level_of(entry['head'])})" if case.ceiling == "fma" else " of reading"
    percent = case.rate(found["ours_ms"]) / found["ceiling"] * 100
    return f"{percent:.0f} % of {digits(found['ceiling'])} {case.unit}{of}"


def fastest(entry):
    """Of the peers, as "1.23 (torch)": its time / attn's."""
    found = {name: medians(result)["ratio"][1] for name, result in entry["peers"].items() if medians(result)}
    name = min(found, key=found.get, default=None)
    return f"{found[name]:.2f} ({name})" if found else ""


def heading(data):
    return (f"{data['machine']}\n{data['system']}, {data['date']}\n{data['attn']}\n{data['command']}\n"
            "Every process is confined to the CPUs named, its threads are not bound further; idle threads sleep.")


# ---- Text -------------------------------------------------------------------------------------------

def our_line(case, entry):
    result = best_judged(entry)
    if result is None:
        return f"not measured; {kernel_of_attn(entry['head'])}"
    return f"{speed(case, medians(result)['ours_ms'])}, {share(case, entry)}; {kernel_of_attn(entry['head'])}"


def peer_line(case, result):
    if "missing" in result:
        return f"missing: {result['missing']}"
    counts = f"{result['kept']} of {result['taken']} kept" + ("" if result["enough"] else ", too few")
    if result["seconds"] > LONGEST_S:
        counts += f", {result['seconds']:.1f} s each"
    found = medians(result)
    if found is None:  # in a file of an older version
        return f"{counts}; {rival(result['head'])}, {threads_of(result['head']['threads'])}"
    return (f"{ratio(found)} x attn's time{'' if result['kept'] else ' in all'}, {counts}; "
            f"{speed(case, found['peer_ms'])}; {rival(result['head'])}, {threads_of(result['head']['threads'])}")


def block(entry):
    case = case_of(entry)
    mask = ", causal" if case.causal else ""
    where = f"{threads_of(entry['threads'])}, CPUs {entry['cpus']}"
    lines = [f"\n{case.name} {case.dtype} ({case.shape_text}{mask}): {where}"]
    if "missing" in entry:
        return "\n".join(lines + [f"  attn         missing: {entry['missing']}"])
    lines.append(f"  {'attn':<12} {our_line(case, entry)}")
    lines += [f"  {name:<12} {peer_line(case, result)}" for name, result in entry["peers"].items()]
    return "\n".join(lines)


def sweep_line(entry):
    found = [f"{name} {digits(one['gflops'])}" for name, one in entry["contestants"].items()]
    lost = [f"{name} missing: {why}" for name, why in entry["missing"].items()]
    steady = f"{entry['steady']} of {len(entry['rounds'])} rounds steady"
    return f"{entry['case']:<12} {entry['dtype']:<4} {', '.join(found + lost)} GFLOP/s; {steady}"


# ---- Markdown -----------------------------------------------------------------------------------------

def cell(case, result):
    if result is None:
        return ""
    if "missing" in result:
        return "-"
    found, mark = medians(result), "" if result["enough"] else " (too few)" if result["kept"] else " (all)"
    if found is None:
        return f"0 of {result['taken']} kept"
    return f"{digits(found['peer_ms'])} ms; {ratio(found)}, {result['kept']}/{result['taken']}{mark}"


def our_cell(case, entry):
    if "missing" in entry:
        return "-"
    result = best_judged(entry)
    return speed(case, medians(result)["ours_ms"]) if result else ""


def legend(entries, name):
    """Which version and kernel served which cases, and what was missing where and why."""
    uses = {}
    for entry in entries:
        where = f"{entry['case']} {entry['dtype']}"
        if name == "attn":
            text = entry.get("missing") or kernel_of_attn(entry["head"])
        elif name not in entry["peers"]:
            continue
        else:
            result = entry["peers"][name]
            text = f"missing: {result['missing']}" if "missing" in result else rival(result["head"])
        uses.setdefault(text, []).append(where)
    return [f"* {name}: {text}: {', '.join(dict.fromkeys(where))}" for text, where in uses.items()]


def markdown(data):
    lines = [f"{data['machine']}; {data['system']}; {data['date']}; {data['attn']}."]
    lines += [f"Command: `{data['command']}`", ""]
    if data["results"]:
        lines += case_table(data["results"])
    if data["sweep"]:
        lines += sweep_table(data["sweep"])
    return "\n".join(lines)


def case_table(entries):
    names = list(dict.fromkeys(name for entry in entries for name in entry["peers"]))
    heads = ["case", "B,Hq,Hkv,Sq,Sk,D,Dv", "type", "threads", "attn", "share of the ceiling", *names, "fastest peer / attn"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|--:|---|---|" + "---|" * len(names) + "---|"]
    for entry in entries:
        case = case_of(entry)
        cells = [case.name, case.shape_text + (" causal" if case.causal else ""), case.dtype, str(entry["threads"]),
                 our_cell(case, entry), share(case, entry)]
        cells += [cell(case, entry["peers"].get(name)) for name in names] + [fastest(entry)]
        lines.append("| " + " | ".join(cells) + " |")
    places = dict.fromkeys(f"{threads_of(entry['threads'])} on CPUs {entry['cpus']}" for entry in entries)
    lines += ["", "Of a peer: its median time; its time / attn's, median [quartiles] of the kept repetitions; kept / taken. "
              "*All*: none was kept, and the medians are those of all. The ceiling is that of the same repetitions. "
              f"Every process was confined to its CPUs ({', '.join(places)}), its threads not bound further.", ""]
    for name in ["attn"] + names:
        lines += legend(entries, name)
    return lines


def peak_of(entries):
    """The best ceiling that the rounds of these saw."""
    return max((r[side] for entry in entries for r in entry["rounds"] for side in ("before", "after")), default=0)


def levels(entries):
    """"f32 1,723 (avx512)" for each type."""
    heads = {entry["dtype"]: entry["contestants"]["attn"]["head"] for entry in entries if "attn" in entry["contestants"]}
    return [f"{dtype} {digits(peak_of([e for e in entries if e['dtype'] == dtype]))} ({level_of(head)})"
            for dtype, head in heads.items()]


def sweep_table(entries):
    names = list(dict.fromkeys(name for entry in entries for name in entry["contestants"]))
    lines = ["| B,Hq,Hkv,Sq,Sk,D,Dv | type | mask | " + " | ".join(names) + " |", "|---|---|---|" + "--:|" * len(names)]
    for entry in entries:
        found = entry["contestants"]
        speeds = [digits(found[name]["gflops"]) if name in found else "-" for name in names]
        words = [",".join(str(n) for n in entry["shape"]), entry["dtype"], "causal" if entry["causal"] else "none"]
        lines.append("| " + " | ".join(words + speeds) + " |")
    return lines + ["", f"GFLOP/s, medians; {threads_of(entries[0]['threads'])}; peak of {', '.join(levels(entries))}."]
