# SPDX-License-Identifier: Apache-2.0
"""Which source lines the machine code of a kernel comes from, and which ways a plain step of its loop takes.

The sources mark statements that a plain step leaves out: `// model: rare` and `// model: end`, each on a line of its
own. An instruction is rare where any function on its way, as inlined, was at a marked line."""
import pathlib
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Set, Tuple

Place = Tuple[str, int]  # file name without folders, line
Chain = Tuple[Place, ...]  # innermost first
Chains = Dict[int, Chain]  # by address

MARK = re.compile(r"^\s*// model: (\w+)$")
SECTION = re.compile(r"^\.text\.(\w+):")
PLACE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,6})\*/\s+\S")

# What the compiler puts at a branch, of whatever line.
CONTROL = frozenset(("BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "BMOV"))
# The compiler moves the arithmetic of a condition or a call in front of what it leads to, but none of these.
WORK = frozenset(("HMMA", "BAR", "MUFU", "SHFL", "LDS", "STS", "LDG", "STG", "LD", "ST", "ATOM", "RED", "EXIT"))
RARE_REST = 0.1  # share of such arithmetic


class CodeError(Exception):
    """Marks or machine code that this cannot make sense of."""


def marked_lines(name: str, text: str) -> Set[Place]:
    """The lines between `// model: rare` and `// model: end`."""
    marked: Set[Place] = set()
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.match(line)
        if mark:
            if mark.group(1) != ("end" if inside else "rare"):
                raise CodeError(f"{name}:{number}: `model: {mark.group(1)}` does not fit here")
            inside = not inside
        elif inside:
            marked.add((name, number))
    if inside:
        raise CodeError(f"{name}: `model: rare` without its end")
    return marked


def marked_in(folder: pathlib.Path) -> Set[Place]:
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".cu", ".cuh", ".h")]
    return set().union(*(marked_lines(path.name, path.read_text(encoding="utf-8")) for path in files))


def line_info(text: str) -> Dict[str, Chains]:
    """What `nvdisasm -c -gi` says: of each kernel, the places of each address."""
    kernels: Dict[str, Chains] = {}
    chains: Chains = {}
    current: List[Place] = []
    fresh = True  # the next place starts a chain
    for line in text.splitlines():
        section, place, instruction = SECTION.match(line), PLACE.match(line), INSTRUCTION.match(line)
        if section:
            chains = kernels.setdefault(section.group(1), {})
            current, fresh = [], True
        elif place:
            current = [] if fresh else current
            current.append((place.group(1).rsplit("/", 1)[-1], int(place.group(2))))
            fresh = False
        elif instruction:
            chains[int(instruction.group(1), 16)] = tuple(current)
            fresh = True
    return kernels


# ---- Ways through a loop ---------------------------------------------------------------------------------------------

class Step:
    """One loop of a kernel, as the model's module splits it into blocks."""

    def __init__(self, model: Any, kernel: Any, chains: Mapping[int, Chain], marked: Set[Place]):
        self.model, self.kernel = model, kernel
        self.rare_at = {address for address, chain in chains.items() if not marked.isdisjoint(chain)}
        loops = model.find_loops(kernel)
        self.loop = model.choose_loops(kernel, loops, "auto")[0]
        with_products = [loop for loop in loops if loop.hmma == self.loop.hmma and loop.depth < self.loop.depth]
        if not self.loop.hmma or not with_products:
            raise CodeError(f"{kernel.name}: the loop of the steps is not the inner one of a loop of tasks")
        self.inner = [loop for loop in loops if loop.blocks < self.loop.blocks]
        blocks = model.build_cfg(kernel)
        self.blocks: Dict[int, Tuple[int, List[int]]] = {
            first: (last, [way for way in ways if way in self.loop.blocks])
            for first, (last, ways) in blocks.items() if first in self.loop.blocks}

    def reached(self, start: int, heads: FrozenSet[int]) -> Set[int]:
        """Blocks from `start` on, without another round of the loops with these heads."""
        found: Set[int] = set()
        work = [] if start in heads else [start]
        while work:
            block = work.pop()
            if block not in found:
                found.add(block)
                work += [way for way in self.blocks[block][1] if way not in heads]
        return found

    def is_rare(self, blocks: Iterable[int]) -> bool:
        """Whether nearly all instructions are from marked lines, and the others no more than prepare for these."""
        counted = [inst for first in blocks for inst in self.kernel.insts[first:self.blocks[first][0] + 1]
                   if inst.base not in CONTROL and not inst.never]
        others = [inst for inst in counted if inst.addr not in self.rare_at]
        return len(others) <= RARE_REST * len(counted) and len(others) < len(counted) and \
            all(inst.base not in WORK for inst in others)

    def taken(self) -> Set[int]:
        """Addresses of forward branches that a plain step takes, since what they jump over is rare."""
        found: Set[int] = set()
        for block, (last, ways) in self.blocks.items():
            if len(ways) != 2:
                continue
            around = [loop for loop in self.inner if block in loop.blocks]
            heads = frozenset(self.kernel.index[loop.start] for loop in around + [self.loop])
            fall, jump = (self.reached(way, heads) for way in ways)
            if self.is_rare(fall - jump) and not self.is_rare(jump - fall):
                found.add(self.kernel.insts[last].addr)
        return found

    def trips(self, products: int) -> Dict[int, int]:
        """How often inner loops run in a step, by their first address. One with HMMA: as often as its share of the
        step's HMMA says, which must come out even. Others once: loops over keys have a thread for each, and rare ones
        are not run in a plain step."""
        trips = {loop.start: 1 for loop in self.inner}
        with_products = [loop for loop in self.inner if loop.hmma]
        if len(with_products) > 1:
            raise CodeError(f"{self.kernel.name}: more than one inner loop with HMMA")
        for loop in with_products:
            rounds, rest = divmod(products - (self.loop.hmma - loop.hmma), loop.hmma)
            if rest or rounds < 1:
                raise CodeError(f"{self.kernel.name}: {products} HMMA do not come out of {self.loop.hmma} in the loop "
                                f"of the steps, {loop.hmma} of which are in an inner loop")
            trips[loop.start] = rounds
        return trips
