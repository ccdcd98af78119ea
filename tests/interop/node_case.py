"""What the tests of packages from npm share: a script of ours that uses them, run by node, and what it printed.

The scripts lie in `node/`. Node looks for packages where a script lies, so it gets a copy beside them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.interop.command_line import KEY, ClientCase, Program

SCRIPTS = Path(__file__).parent / "node"
RUN_SECONDS = 60


class NodeCase(ClientCase):
    def run_script(self, name: str, **given: Any) -> Any:
        """The JSON that a script printed."""
        script = Path(shutil.copy(SCRIPTS / name, self.commands.parent.parent))
        parameters = self.home / "parameters.json"
        parameters.write_text(json.dumps({"apiKey": KEY, **given}), encoding="utf-8")
        program = Program(("node", str(script)), (), RUN_SECONDS)
        return json.loads(self.run_client(program, str(parameters)))
