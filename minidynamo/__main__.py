"""`python -m minidynamo`: what is installed and whether it works; exit status 1 if it does not."""

import sys

from minidynamo.support import report

if __name__ == "__main__":
    holds, text = report()
    print(text)
    sys.exit(not holds)
