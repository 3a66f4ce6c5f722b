"""The commands, in the order of the help text. COMMANDS is the one place to add a new one.

A command is the module of its name in this folder. It has NOTES (the text below the arguments in its help),
`add_arguments(parser)` and `run(given)`, which returns the exit code. JSON is what its option --json prints: each field
with its meaning. JSON_LINES is true if it prints a list of such objects, JSON_ROWS if it prints rows. `run` imports
what it alone needs (pandas, rich), so that the help of a command is quick.
"""

COMMANDS = {
    "doctor": "show what this kernel and machine can do, and how to get the rest",
    "new": "create a project: a folder with labkit's notebooks and sweep files",
    "run": "run one experiment",
    "sweep": "run a notebook for every point of a grid, and write one report about all of them",
    "report": "write the executed notebook of a run or a sweep as one HTML file that works offline",
    "import": "make a run of files that iperf3 -J wrote, and judge it",
    "rows": "write the rows of a run or a sweep as Parquet, CSV or JSON for other programs",
    "publish": "write a run or a sweep as a few files for others, in data/results for example",
    "compare": "compare two runs or sweeps point by point",
    "track": "keep a history of runs, and mark where it changes",
    "bisect": "find the first kernel, change or value with which a benchmark is worse",
    "why": "explain why two profiled arms, runs or points differ, as one HTML page: functions, counters, losses",
    "kernels": "list the kernels that a lab VM can boot, and what each of them can do",
    "check": "name what slows or breaks the path between two existing ends: containers, namespaces",
    "attach": "add a network interface to a running Docker or Podman container",
    "shell": "open a shell inside a live topology, for ip, ping, tcpdump",
    "monitor": "watch the packets of an interface, selected in the kernel and sampled",
    "draw": "build a topology, and draw it as the kernel reports it",
    "clone": "write the path between two existing ends as a network of parts, to build and to change",
    "completion": "print a script that completes labkit's words in a shell",
}
