"""What of a streamed text may be shown: thoughts and tool markup are taken out, also when split over deltas."""

import re

from kernel.adapters.model.reading import mended

_THOUGHTS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}
_MARKUP = {
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
    "<function=": "</function>",
    "<invoke ": "</invoke>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
    "[TOOL_CALLS]": "[/TOOL_CALLS]",
}
_WRAPPERS = ("<tool_calls>", "<function_calls>", "<minimax:tool_call>")
_BLOCKS = _THOUGHTS | _MARKUP
_TAGS = (*_BLOCKS, *_BLOCKS.values(), *_WRAPPERS, *(f"</{tag[1:]}" for tag in _WRAPPERS))
_TAG = re.compile("|".join(map(re.escape, _TAGS)))


class Speech:
    """`feed` what the model says and show what comes back; `close` gives what was held back until then."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.markup: list[str] = []
        self._shown: list[str] = []
        self._inside: list[str] = []
        self._rest = ""
        self._open = ""

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(self._shown)

    def feed(self, text: str) -> str:
        self._rest += text
        shown: list[str] = []
        while True:
            if self._open:
                if not self._through(_BLOCKS[self._open]):
                    break
            elif tag := _TAG.search(self._rest):
                shown.append(self._show(tag.start()))
                self._rest = self._rest[len(tag[0]) :]
                if tag[0] in _BLOCKS:
                    self._open = tag[0]
                elif tag[0] in _THOUGHTS.values():  # never opened: all of it until here was thought
                    self.thoughts.append(self.text.strip())
                    self._shown.clear()
                    shown.clear()
            else:
                shown.append(self._show(self._safe()))
                break
        return "".join(shown)

    def close(self) -> str:
        """The end of the text. A block that never closed is filed, not shown."""
        if not self._open:
            return self._show(len(self._rest))
        self._file(self._rest, "")
        return ""

    def _through(self, end: str) -> bool:
        """Read on in the open block, and out of it where it ends; what was read once is not looked at again."""
        inside, closed, after = self._rest.partition(end)
        if closed:
            self._file(inside, after)
            return True
        keep = len(self._rest) - len(end) + 1
        if keep > 0:
            self._inside.append(self._rest[:keep])
            self._rest = self._rest[keep:]
        return False

    def _safe(self) -> int:
        """How much may be shown now: a tag or a surrogate pair may be starting at the end."""
        start = max(self._rest.rfind("<"), self._rest.rfind("["))
        if start >= 0 and any(tag.startswith(self._rest[start:]) for tag in _TAGS):
            return start
        return len(self._rest) - ("\ud800" <= self._rest[-1:] <= "\udbff")

    def _show(self, count: int) -> str:
        piece, self._rest = mended(self._rest[:count]), self._rest[count:]
        if not self._shown:
            piece = piece.lstrip()
        if piece:
            self._shown.append(piece)
        return piece

    def _file(self, inside: str, after: str) -> None:
        whole = mended("".join([*self._inside, inside])).strip()
        (self.thoughts if self._open in _THOUGHTS else self.markup).append(whole)
        self._inside.clear()
        self._open, self._rest = "", after
