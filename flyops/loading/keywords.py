# SPDX-License-Identifier: Apache-2.0
"""Words that a play, a block, a task and a handler may use; and Ansible's words that are not built yet."""

from __future__ import annotations

INHERITED = (
    "any_errors_fatal",
    "become",
    "become_method",
    "become_user",
    "check_mode",
    "connection",
    "diff",
    "ignore_errors",
    "ignore_unreachable",
    "no_log",
    "port",
    "remote_user",
    "run_once",
)
SHARED = (*INHERITED, "environment", "name", "tags", "vars")

PLAY = (
    *SHARED,
    "force_handlers",
    "gather_facts",
    "gather_subset",
    "handlers",
    "hosts",
    "max_fail_percentage",
    "post_tasks",
    "pre_tasks",
    "secret_vars",
    "serial",
    "tasks",
    "vars_files",
)
BLOCK = (*SHARED, "always", "block", "delegate_to", "rescue", "when")
TASK = (
    *SHARED,
    "action",
    "args",
    "changed_when",
    "delay",
    "delegate_to",
    "failed_when",
    "loop",
    "loop_control",
    "notify",
    "register",
    "retries",
    "until",
    "when",
    "with_items",
)
HANDLER = (*TASK, "listen")
LOOP_CONTROL = ("label", "loop_var", "index_var", "extended")

NOT_YET = frozenset(
    {
        "async",
        "become_exe",
        "become_flags",
        "break_when",
        "collections",
        "debugger",
        "delegate_facts",
        "extended_allitems",
        "fact_path",
        "gather_timeout",
        "local_action",
        "module_defaults",
        "order",
        "pause",
        "poll",
        "roles",
        "strategy",
        "throttle",
        "timeout",
        "validate_argspec",
        "vars_prompt",
    }
)
NOT_YET_MODULES = frozenset(
    [
        "add_host",
        "apt_key",
        "apt_repository",
        "assemble",
        "async_status",
        "blockinfile",
        "command",
        "copy",
        "cron",
        "deb822_repository",
        "debconf",
        "debug",
        "dnf",
        "dnf5",
        "dpkg_selections",
        "expect",
        "fetch",
        "file",
        "find",
        "gather_facts",
        "get_url",
        "getent",
        "git",
        "group_by",
        "hostname",
        "import_role",
        "include_role",
        "ini_file",
        "iptables",
        "known_hosts",
        "authorized_key",
        "mount",
        "package",
        "package_facts",
        "pip",
        "raw",
        "reboot",
        "replace",
        "rpm_key",
        "script",
        "service_facts",
        "set_stats",
        "slurp",
        "subversion",
        "sysctl",
        "systemd",
        "sysvinit",
        "tempfile",
        "unarchive",
        "archive",
        "validate_argument_spec",
        "wait_for_connection",
        "yum_repository",
    ]
)


def is_not_yet(word: str) -> bool:
    """A word that Ansible has and we do not."""
    return word in NOT_YET or (word.startswith("with_") and word != "with_items")
