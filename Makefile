# Every command that a person types here. `make` alone lists them.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
# The set-up is done when this file is there. Its name holds what the set-up depends on, so that neither a new date on a
# file nor a tree that was moved or copied with its .venv (whose scripts name the old place) can deceive.
STAMP := .venv/set-up-$(firstword $(shell { cat requirements.lock pyproject.toml; pwd; } 2>&1 | sha256sum))

# May be given: make report PARAMS=params/datapaths.yaml; make test PYTEST="-k stats" (instead of what it selects)
PARAMS := params/datapaths-quick.yaml
PYTEST :=
ENVIRONMENT := environment.yml

# Some containers set it. Each worker of pytest would compile all tests anew, and each program that they start labkit.
unexport PYTHONDONTWRITEBYTECODE

# pyproject.toml says what the markers `long` and `alone` mean. make ends with 2 whatever failed, so pytest's own exit
# code is left in a file.
define run-pytest
mkdir -p .pytest_cache
code=0
$(BIN)/python -m pytest $(if $(PYTEST),$(PYTEST),$(1)) || code=$$?
if [[ $${types-} ]]; then
	[[ $$code != 2 ]] || { kill $$types || true; exit 2; }  # Ctrl-C, which a program in the background ignores
	wait $$types || { echo "mypy failed:"; cat .pytest_cache/types; code=2; }
fi
echo $$code >.pytest_cache/exit-code
exit $$code
endef
define ruff
$(BIN)/ruff check .
$(BIN)/ruff format --check .
endef
MYPY := $(BIN)/mypy --strict labkit studies benchmarks
# One worker more than CPUs: an experiment waits for nearly half of its time.
PARALLEL := --numprocesses=$(shell echo $$(($$(nproc) + 1))) --dist=loadfile --no-loadscope-reorder

.PHONY: help setup debian report check test test-long test-alone test-exhaustive test-all bench docs-reference figures docs lab lock environment

help:  ## list these commands
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1\t/p' Makefile | expand -t 22

setup: debian $(STAMP)  ## install what is missing: Debian packages (as root), .venv with the locked Python packages

report: setup  ## measure: the quick datapaths sweep, its verdicts in the terminal and an HTML report
	@$(BIN)/labkit sweep $(PARAMS)

check: setup  ## ruff and mypy
	@$(ruff)
	$(MYPY) --num-workers auto

# mypy runs beside the tests, without workers of its own, which a busy machine does not start in the 3 s that they have.
test: setup  ## ruff, mypy, and the tests that take about four minutes on two quiet CPUs
	@$(ruff)
	mkdir -p .pytest_cache
	$(MYPY) >.pytest_cache/types 2>&1 & types=$$!
	$(call run-pytest,$(PARALLEL) -m "not long and not alone and not exhaustive")

test-long: setup  ## the tests that take longer: lab VMs, notebooks, browsers, faults
	@$(call run-pytest,$(PARALLEL) -m "long and not alone and not exhaustive")

test-alone: setup  ## the tests that measure: they need a machine on which nothing else runs
	@$(call run-pytest,-m "alone and not exhaustive" tests/lab tests/notebooks tests/vm)

test-exhaustive: setup  ## what takes long for what it adds: CI runs others of each kind
	@$(call run-pytest,-m exhaustive tests/lab tests/notebooks tests/vm)

test-all: test test-long test-alone test-exhaustive  ## all tests

bench: setup  ## what labkit promises about its own speed
	@$(BIN)/python -m benchmarks

docs-reference: setup  ## the page of all commands and the manual page, in build/reference
	@rm -rf build/reference
	mkdir -p build/reference
	$(BIN)/python -P -m labkit.commands.reference build/reference/COMMANDS.md
	cp docs/conf.py build/reference
	$(BIN)/python -m sphinx -q -b man -D root_doc=COMMANDS build/reference build/reference/man
	echo "build/reference/man/labkit.1 (man -l)"

figures: setup  ## draw the published figures from data/results anew (needs a browser), and write docs/FINDINGS.md
	@$(BIN)/python -P -m studies.documents.pictures figures
	$(BIN)/python -P -m studies.documents.document docs/FINDINGS.md

docs: setup  ## the documentation as pages, with executed notebooks, in build/docs; nothing is fetched
	@rm -rf build/docs
	mkdir -p build/docs
	$(BIN)/python -P docs/sources.py build/docs/source data/results
	$(BIN)/python -P docs/executed.py build/docs/source/notebooks
	$(BIN)/python -m sphinx -q -b html build/docs/source build/docs/html
	echo "build/docs/html/index.html"

lab: setup  ## JupyterLab on the notebooks, for this machine only; its address with the token is printed
	@$(BIN)/labkit kernels install
	exec $(BIN)/jupyter lab --ip=127.0.0.1 --no-browser --MappingKernelManager.kernel_info_timeout=300 $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.root_dir="$$PWD" --ServerApp.preferred_dir="$$PWD/notebooks"

# Asked at every start (20 ms): a package can be taken away, or root come later.
debian:
	@command -v dpkg-query apt-get >/dev/null || { echo "No Debian here: labkit doctor names what is missing, and its packages for dnf and pacman." >&2; exit 0; }
	installed() { [[ $$(dpkg-query --show --showformat='$${db:Status-Status}' "$$1" 2>/dev/null) == installed ]]; }
	known() { [[ $$(apt-cache show "$$1" 2>/dev/null) ]]; }
	missing=
	for package in $$(sed '$(if $(LABKIT_NO_SKIP),,/^# CI:/Q;) s/#.*//' packages.debian); do
		[[ $$package == *"|"* && -e $${package#*|} ]] || installed "$${package%%|*}" || missing+=" $$package"
	done
	[[ $$missing ]] || exit 0
	if [[ $$(id -u) != 0 ]]; then
		echo "Not root, so these Debian packages stay missing:$$missing; install them as root, or do without what packages.debian says they are for." >&2
		exit 0
	fi
	# Sets `available` and `unknown`: releases differ, and one name that apt does not know would stop the others.
	choose() {
		available= unknown=
		for package in $$missing; do
			name=$${package%%|*}
			if known "$$name"; then available+=" $$name"; elif [[ $$package == "$$name" ]]; then unknown+=" $$name"; fi
		done
	}
	export DEBIAN_FRONTEND=noninteractive
	choose
	if [[ $$available ]] || ! known bash; then apt-get update; choose; fi
	[[ ! $$unknown ]] || echo "apt offers no$$unknown here; packages.debian says what it is for, and labkit doctor what else provides it." >&2
	[[ ! $$available ]] || apt-get install --yes --no-remove --no-install-recommends $$available

define find-python
for python in python3.11 python3 python3.13 python3.12 none; do
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && break
done
[[ $$python != none ]] || { echo "labkit needs Python 3.11, 3.12 or 3.13, and neither python3 nor python3.11 to python3.13 is one." >&2; exit 1; }
endef

# The lock names every package, so pip has nothing to decide or to build: no dependencies, no build environment of its
# own, only wheels, each with its hash. `pip check` tells if the lock forgot one.
$(STAMP):
	@$(find-python)
	echo "Installing $$(grep -c == requirements.lock) Python packages into .venv: a minute or two."
	rm -f .venv/set-up-*
	$$python -m venv .venv
	pip="$(BIN)/python -m pip --disable-pip-version-check"
	$$pip install --require-hashes --no-deps --only-binary :all: --requirement requirements.lock | awk '
		/^Collecting/ && ++count % 40 == 0 { print "  " count " packages so far"; fflush() }
		/Downloading .*\([0-9]+\.[0-9]+ MB\)/ { match($$0, /\(.* MB\)/); if (substr($$0, RSTART + 1) + 0 >= 20) { print "  fetching " $$2, $$3, $$4; fflush() } }
		/^Installing collected/ { print "  all fetched, now unpacking"; fflush() }'
	$$pip install --quiet --no-deps --no-build-isolation --editable .
	$$pip check
	mkdir -p .venv/share/jupyter/labextensions .venv/etc/jupyter/jupyter_server_config.d
	ln -sfn "$$PWD/labkit/jupyter/labextension" .venv/share/jupyter/labextensions/labkit
	ln -sfn "$$PWD/labkit/jupyter/labkit.json" .venv/etc/jupyter/jupyter_server_config.d/labkit.json
	ln -sfn "$$PWD/labkit/jupyter/jupyter_nbconvert_config.py" .venv/etc/jupyter/jupyter_nbconvert_config.py
	touch $@

# Resolved for Debian 12's Python (3.11.2: some packages want a later 3.11) whatever Python runs here.
# Versions stay as they are where they can; remove requirements.lock first to have the newest of everything.
lock:  ## write requirements.lock anew from pyproject.toml
	@$(find-python)
	tool=$$(mktemp --directory)
	trap 'rm -rf "$$tool"' EXIT
	$$python -m venv "$$tool"
	"$$tool/bin/pip" --disable-pip-version-check install --quiet uv
	"$$tool/bin/uv" pip compile --quiet --no-cache --python "$$tool/bin/python" --python-version 3.11.2 --all-extras \
		--generate-hashes --only-binary :all: --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

# by_pip: names that conda-forge lacks, or has later. It writes jupyter_client with an underscore.
define ENVIRONMENT_TEXT
import re, tomllib
by_pip = {"jumpavg", "ovs", "plotly", "MLRsearch", "hdrhistogram", "kaleido", "lbr-trex-client", "duckdb", "playwright", "ruff"}
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
pip = [one for one in wanted if re.match("[\\w-]+", one)[0] in by_pip]
conda = ["python" + project["requires-python"], "pip", *(one.replace("jupyter-", "jupyter_") for one in wanted if one not in pip)]
print("# Made from pyproject.toml by `make environment`, for users of conda: `conda env create -f environment.yml`.")
print("# packages.debian lists iperf3 and the other programs that labkit runs.")
print("name: labkit\nchannels:\n  - conda-forge\ndependencies:")
print(*(f"  - {one}" for one in conda), "  - pip:", *(f"      - {one}" for one in [*pip, "-e ."]), sep="\n")
endef
export ENVIRONMENT_TEXT

environment:  ## write environment.yml anew from pyproject.toml
	@$(find-python)
	$$python -c "$$ENVIRONMENT_TEXT" >$(ENVIRONMENT)
