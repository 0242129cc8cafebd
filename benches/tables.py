"""What the scripts here share that write tables of the documentation."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
END = "<!-- end of the table -->\n"


def gib(count):
    return f"{count / 2**30:.1f} GiB"


def answer(binary, command, config, more=()):
    """What a program answers in JSON to a command with a run config."""
    words = [binary, command, "-", "--json", *more]
    ran = subprocess.run(words, cwd=ROOT, input=config, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    return json.loads(ran.stdout)


def compiled_bytes(memory):
    """What a device needs of memory by a compiler's figures."""
    return memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporary"]


def known_rows(page, begin):
    """The rows of the table behind a marker, by their first cell."""
    table = page.read_text().split(begin)[1].split(END)[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]
    return {cells[0]: cells for cells in rows}


def write(page, begin, head, rows):
    """Writes the table behind a marker anew."""
    before, rest = page.read_text().split(begin)
    _, after = rest.split(END, 1)
    lines = [f"| {' | '.join(head)} |\n", "|---" * len(head) + "|\n", *(f"| {' | '.join(cells)} |\n" for cells in rows)]
    page.write_text(before + begin + "".join(lines) + END + after)
