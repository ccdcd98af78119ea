"""Lines of setup in a file whose format has # comments, and the way to take them out again.

A comment says how many lines follow it and has their checksum. There is no mark at their end: programs that rewrite
their own TOML would put new tables in front of it. A line of the user that stands in the way becomes a comment that
holds it. So a file tells by itself how it was before, to the byte, whatever was added elsewhere since.
"""

import re
import zlib

from deepseek_cursor_proxy.cli.setup.editors.documents import ChangedLines, line_end, split_lines

_REPLACED = "# deepseek-cursor-proxy replaced: "
_MARK = re.compile(r"[ ]*# deepseek-cursor-proxy: the next (\d+) lines? .*\[([0-9a-f]{8})\]\s*")


def insert(text: str, at: int, lines: list[str], client: str) -> str:
    """Insert lines, with the comment that marks them, before the line with that number."""
    indent = re.match(r"[ ]*", lines[0])
    assert indent is not None
    noun = "1 line is" if len(lines) == 1 else f"{len(lines)} lines are"
    how = f"from `setup {client}`, and `--undo` takes them out"
    mark = f"{indent[0]}# deepseek-cursor-proxy: the next {noun} {how} [{_checksum(lines)}]"
    end, there = line_end(text), split_lines(text)
    new = [f"{line}{end}" for line in (mark, *lines)]
    if there and at == len(there) and not there[-1].endswith("\n"):
        # The file ends without a line end, and so it does with ours: `take_out` goes by that.
        there[-1] += end
        new[-1] = new[-1].removesuffix(end)
    return "".join((*there[:at], *new, *there[at:]))


def comment_out(line: str) -> str:
    return f"{_REPLACED}{line}"


def take_out(text: str) -> str:
    """The text without our lines, and with those that they replaced. ChangedLines if ours are not as they were."""
    found: list[str] = []
    lines = split_lines(text)
    at = 0
    while at < len(lines):
        mark = _MARK.fullmatch(lines[at])
        if mark is None:
            found.append(lines[at].removeprefix(_REPLACED))
            at += 1
            continue
        last = at + int(mark[1])
        ours = [line.rstrip("\r\n") for line in lines[at + 1 : last + 1]]
        if len(ours) != int(mark[1]) or _checksum(ours) != mark[2]:
            raise ChangedLines(f"the {mark[1]} lines below line {at + 1} are no longer as setup wrote them")
        at = last + 1
        if at == len(lines) and found and not lines[-1].endswith("\n"):
            found[-1] = found[-1].removesuffix("\n").removesuffix("\r")
    return "".join(found)


def _checksum(lines: list[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode('utf-8', 'surrogatepass')):08x}"
