# SPDX-License-Identifier: Apache-2.0
"""What an operator asks for: each file picks a playbook and variables, runs it and reads the result. The steps are in playbooks/."""
