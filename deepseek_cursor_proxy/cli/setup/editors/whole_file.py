"""An edit of a file that is setup's alone, such as a catalogue: its whole text."""

from dataclasses import dataclass

from deepseek_cursor_proxy.cli.setup.editors.documents import ChangedLines, EditResult, Record


@dataclass(frozen=True)
class WholeFile:
    text: str

    def apply(self, text: str) -> EditResult:
        return EditResult(self.text, [])

    def revert(self, text: str, record: Record) -> str:
        """Nothing is left of a file that is ours; what others made of it meanwhile is theirs."""
        if text not in ("", self.text):
            raise ChangedLines("it is no longer as setup wrote it")
        return ""

    def by_hand(self) -> str:
        return self.text
