# SPDX-License-Identifier: Apache-2.0
"""The command line of the double."""

import sys

from tests.beds.doublecard import main

sys.exit(main(sys.argv[1:]))
