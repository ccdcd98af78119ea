"""python -m deepseek_cursor_proxy"""

import sys

from deepseek_cursor_proxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
