"""Whether to test all combinations, also those that many ranks on few cores take long for."""

import os

EVERYTHING = os.environ.get("TEST_EVERYTHING") == "1"
