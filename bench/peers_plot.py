# SPDX-License-Identifier: Apache-2.0
"""The plot of a sweep: throughput over sequence length, a panel for each head size and mask."""
import matplotlib

import peers_report

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Darkness, dashes and markers differ, so that a grey print can be read too.
STYLE = {
    "attn": {"color": "#08306b", "linestyle": "-", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "torch": {"color": "#d9691e", "linestyle": "--", "marker": "s"},
    "onnxruntime": {"color": "#1f6f5f", "linestyle": "-.", "marker": "^"},
    "blas": {"color": "#9a9a9a", "linestyle": ":", "marker": "D"},
}


def panels(sweep):
    """{(D, causal): entries by length}"""
    groups = {}
    for entry in sorted(sweep, key=lambda e: e["shape"][4]):
        groups.setdefault((entry["shape"][5], entry["causal"]), []).append(entry)
    return dict(sorted(groups.items()))


def label(name, data):
    heads = [e["contestants"][name]["head"] for e in data["sweep"] if name in e["contestants"]]
    if name == "attn":
        return f"{' '.join(data['attn'].split()[:2])} ({heads[0]['isa']})"
    product = heads[0]["version"].rsplit(" ", 1)[0]
    versions = {".".join(head["version"].rsplit(" ", 1)[1].split(".")[:3]) for head in heads}
    return f"{product} {', '.join(sorted(versions))}"


def draw_panel(axes, entries, labels, peak, level):
    for name, text in labels.items():
        points = [(e["shape"][4], e["contestants"][name]["gflops"]) for e in entries if name in e["contestants"]]
        axes.plot(*zip(*points), label=text, markersize=6, markeredgecolor="white", markeredgewidth=0.7, **STYLE[name])
    axes.axhline(peak, color="black", linewidth=1, linestyle=(0, (8, 4)), label=f"FMA peak ({level})")
    lengths = [e["shape"][4] for e in entries]
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.grid(axis="y", color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def strip_lines(file):
    """matplotlib ends lines of SVG with blanks, which version control counts as mistakes."""
    with open(file, encoding="utf-8") as f:
        lines = f.read().splitlines()
    with open(file, "w", encoding="utf-8") as f:
        f.writelines(line.rstrip() + "\n" for line in lines)


def draw(data, files):
    sweep = data["sweep"]
    groups = panels(sweep)
    labels = {name: label(name, data) for name in STYLE if any(name in e["contestants"] for e in sweep)}
    # The ceiling is that of the instructions that attn used.
    level = next(e["contestants"]["attn"]["head"]["isa"] for e in sweep if "attn" in e["contestants"])
    peak = max(r[side] for e in sweep for r in e["rounds"] for side in ("before", "after"))
    rows = (len(groups) + 1) // 2
    height = 1.4 + 3.4 * rows  # inches, as the distances from the edges below
    figure, grid = plt.subplots(rows, 2, figsize=(10, height), sharey=True, squeeze=False)
    for axes, ((d, causal), entries) in zip(grid.flat, groups.items()):
        draw_panel(axes, entries, labels, peak, level)
        axes.set_title(f"head size {d}, {'causal' if causal else 'full'}", fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length, tokens")
    for axes in grid[:, 0]:
        axes.set_ylabel("throughput, GFLOP/s of visible pairs")
        axes.set_ylim(bottom=0)
    first = sweep[0]
    title = (f"Attention forward, {first['dtype']}, batch {first['shape'][0]}, {first['shape'][1]} heads, "
             f"{peers_report.threads_of(first['threads'])}")
    figure.text(0.5, 1 - 0.1 / height, title, ha="center", va="top", fontsize=13)
    place = f"{data['machine']}; {data['date']}"
    figure.text(0.5, 1 - 0.4 / height, place, ha="center", va="top", fontsize=9.5, color="0.3")
    handles, texts = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="lower center", ncols=len(texts), frameon=False, fontsize=9, handlelength=2.9,
                  columnspacing=1.4)
    figure.tight_layout(rect=(0, 0.4 / height, 1, 1 - 0.62 / height))
    for file in files:
        figure.savefig(file, dpi=160)
        if str(file).endswith(".svg"):
            strip_lines(file)
