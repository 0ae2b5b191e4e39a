"""Limits of a sound node, as Linux prints them in /proc/self/limits (proc_pid_limits(5))."""

SOUND = {"limits": {"open_files": {"soft": 65536, "hard": 65536}}}

FAULTS = {
    "limits.open_files": {"limits.open_files.soft": 1024},
}
