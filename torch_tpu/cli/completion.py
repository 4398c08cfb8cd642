"""`torch-tpu completion`: a script for the shell, made from the command line's own description, so
that completing starts no Python."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field
from typing import Any

_DESCRIPTION = """\
Prints a completion script. To have it in every shell:

  bash   torch-tpu completion bash > ~/.local/share/bash-completion/completions/torch-tpu
  zsh    torch-tpu completion zsh > ~/.zfunc/_torch-tpu   (~/.zfunc in fpath, before compinit)
  fish   torch-tpu completion fish > ~/.config/fish/completions/torch-tpu.fish
"""


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_SHELLS))
    parser.set_defaults(run=_run, needs_device=False)


@dataclass
class Node:
    """A command: its options with their help and choices, its subcommands, and its words."""

    path: tuple[str, ...]
    help: str = ""
    options: list[tuple[list[str], str, list[str] | None]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), text: str = "") -> Node:
    """All commands below `parser`."""
    node = Node(path, text)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            node.children = [
                tree(child, (*path, name), texts.get(name, ""))
                for name, child in action.choices.items()
            ]
        elif action.option_strings:
            # None: a switch. Else the value's choices; an empty list stands for a file or a number.
            values = None if action.nargs == 0 else list(map(str, action.choices or ()))
            node.options.append((list(action.option_strings), action.help or "", values))
        elif action.choices:
            node.words += map(str, action.choices)
    return node


def _all(node: Node) -> list[Node]:
    return [node, *(deeper for child in node.children for deeper in _all(child))]


def _bash(root: Node) -> str:
    cases, values = [], []
    for node in _all(root):
        names = [child.path[-1] for child in node.children]
        options = [name for names_, _, _ in node.options for name in names_]
        key = " ".join(node.path)
        cases.append(
            f'    "{key}") words={shlex.quote(" ".join([*names, *node.words, *options]))};;'
        )
        for option_names, _, choices in node.options:
            if choices:
                patterns = "|".join(f'"{key} {name}"' for name in option_names)
                values.append(f"    {patterns}) words={shlex.quote(' '.join(choices))};;")
    commands = "|".join(f'"{" ".join(node.path)}"' for node in _all(root) if node.path)
    return f"""\
# bash completion of torch-tpu; made by `torch-tpu completion bash`
_torch_tpu() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local path="" words="" try i
  for ((i = 1; i < COMP_CWORD; i++)); do
    try="${{path:+$path }}${{COMP_WORDS[i]}}"
    case "$try" in {commands}) path=$try;; esac
  done
  case "$path" in
{chr(10).join(cases)}
  esac
  case "$path $previous" in
{chr(10).join(values) or '    "") ;;'}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $current != -* ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _torch_tpu torch-tpu
"""


def _zsh(root: Node) -> str:
    cases = []
    for node in _all(root):
        rows = [f"{child.path[-1]}:{child.help}" for child in node.children] + node.words
        rows += [f"{name}:{text}" for names, text, _ in node.options for name in names]
        quoted = " ".join(_zsh_quote(row) for row in rows)
        cases.append(f'    "{" ".join(node.path)}") words=({quoted});;')
    commands = "|".join(f'"{" ".join(node.path)}"' for node in _all(root) if node.path)
    return f"""\
#compdef torch-tpu
# made by `torch-tpu completion zsh`
_torch_tpu() {{
  local place="" try i
  local -a words_before
  words_before=("${{(@)words[2,CURRENT-1]}}")
  for i in "${{words_before[@]}}"; do
    try="${{place:+$place }}$i"
    case "$try" in ({commands}) place=$try;; esac
  done
  local -a words
  case "$place" in
{chr(10).join(cases).replace('    "', '    ("')}
  esac
  _describe 'torch-tpu' words
  _files
}}
compdef _torch_tpu torch-tpu
"""


def _zsh_quote(text: str) -> str:
    name, sign, rest = text.partition(":")
    return shlex.quote(name + sign + rest.replace(":", "\\:"))


def _fish(root: Node) -> str:
    lines = ["# fish completion of torch-tpu; made by `torch-tpu completion fish`"]
    for node in _all(root):
        seen = " ".join(node.path)
        names = " ".join(child.path[-1] for child in node.children)
        tests = [f"__fish_seen_subcommand_from {word}" for word in node.path]
        if names:
            tests.append(f"not __fish_seen_subcommand_from {names}")
        when = f" -n {shlex.quote('; and '.join(tests))}" if tests else ""
        if seen or names:
            for child in node.children:
                text = shlex.quote(child.help)
                lines.append(f"complete -c torch-tpu{when} -f -a {child.path[-1]} -d {text}")
        for word in node.words:
            lines.append(f"complete -c torch-tpu{when} -f -a {word}")
        for option_names, text, choices in node.options:
            flags = "".join(
                f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
                for name in option_names
            )
            value = "" if choices is None else " -r"
            value += f" -f -a {shlex.quote(' '.join(choices))}" if choices else ""
            lines.append(f"complete -c torch-tpu{when}{flags}{value} -d {shlex.quote(text)}")
    return "\n".join(lines) + "\n"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _run(args: argparse.Namespace) -> int:
    from torch_tpu.cli import parser

    print(_SHELLS[args.shell](tree(parser())), end="")
    return 0
