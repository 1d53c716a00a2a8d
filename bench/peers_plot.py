# SPDX-License-Identifier: Apache-2.0
"""The plot of a sweep: throughput over sequence length, a row for each type and head size, a panel for each mask."""
import matplotlib

import peers_report
from peers_case import ALL

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Darkness, dashes and markers differ, so that a grey print can be read too.
STYLE = {
    "attn": {"color": "#08306b", "linestyle": "-", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "torch": {"color": "#d9691e", "linestyle": "--", "marker": "s"},
    "onnxruntime": {"color": "#1f6f5f", "linestyle": "-.", "marker": "^"},
    "blas": {"color": "#9a9a9a", "linestyle": ":", "marker": "D"},
}


def rows_of(sweep):
    """{(type, D): {causal: entries by length}}"""
    rows = {}
    for entry in sorted(sweep, key=lambda e: (ALL.index(e["dtype"]), e["shape"][5], e["causal"], e["shape"][4])):
        rows.setdefault((entry["dtype"], entry["shape"][5]), {}).setdefault(entry["causal"], []).append(entry)
    return rows


def label(name, data):
    heads = [e["contestants"][name]["head"] for e in data["sweep"] if name in e["contestants"]]
    if name == "attn":
        return f"{' '.join(data['attn'].split()[:2])} ({', '.join(dict.fromkeys(head['isa'] for head in heads))})"
    product = heads[0]["version"].rsplit(" ", 1)[0]
    versions = {".".join(head["version"].rsplit(" ", 1)[1].split(".")[:3]) for head in heads}
    return f"{product} {', '.join(sorted(versions))}"


def draw_peak(axes, row):
    """The ceiling of the instructions that attn used for this type, with their level on the line."""
    entries = [entry for one in row.values() for entry in one]
    heads = [e["contestants"]["attn"]["head"] for e in entries if "attn" in e["contestants"]]
    if not heads:
        return
    peak = peers_report.peak_of(entries)
    axes.axhline(peak, color="black", linewidth=1, linestyle=(0, (8, 4)))
    text = f"peak of {peers_report.level_of(heads[0])}, {peers_report.digits(peak)}"
    axes.annotate(text, (0.01, peak), xycoords=("axes fraction", "data"), xytext=(0, -3), textcoords="offset points",
                  va="top", fontsize=8.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})


def draw_panel(axes, entries, labels):
    for name, text in labels.items():
        points = [(e["shape"][4], e["contestants"][name]["gflops"]) for e in entries if name in e["contestants"]]
        if points:
            axes.plot(*zip(*points), label=text, markersize=6, markeredgecolor="white", markeredgewidth=0.7,
                      **STYLE[name])
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
    rows = rows_of(sweep)
    labels = {name: label(name, data) for name in STYLE if any(name in e["contestants"] for e in sweep)}
    height = 1.4 + 3.4 * len(rows)  # inches, as the distances from the edges below
    figure, grid = plt.subplots(len(rows), 2, figsize=(10, height), sharey="row", squeeze=False)
    for line, ((dtype, d), row) in zip(grid, rows.items()):
        for axes, (causal, entries) in zip(line, row.items()):
            draw_panel(axes, entries, labels)
            draw_peak(axes, row)
            axes.set_title(f"{dtype}, head size {d}, {'causal' if causal else 'full'}", fontsize=11)
        line[0].set_ylabel("throughput, GFLOP/s of visible pairs")
        line[0].set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length, tokens")
    first = sweep[0]
    title = (f"Attention forward, batch {first['shape'][0]}, {first['shape'][1]} heads, "
             f"{peers_report.threads_of(first['threads'])}")
    figure.text(0.5, 1 - 0.1 / height, title, ha="center", va="top", fontsize=13)
    place = f"{data['machine']}; {data['date']}"
    figure.text(0.5, 1 - 0.4 / height, place, ha="center", va="top", fontsize=9.5, color="0.3")
    handles = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False, fontsize=9,
                  handlelength=2.9, columnspacing=1.4)
    figure.tight_layout(rect=(0, 0.4 / height, 1, 1 - 0.62 / height))
    for file in files:
        figure.savefig(file, dpi=160)
        if str(file).endswith(".svg"):
            strip_lines(file)
