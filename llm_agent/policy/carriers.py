"""Programs that run what their arguments say, without being wrappers: `find -exec`, `git -c`, `python -c`.

The law: a program on one of these lists is a carrier unless its words are known to carry nothing.
One that is on none is taken to run itself alone, so that denying a program is no containment.
Files that a program reads by itself (a Makefile, a script, a hook) are not looked into: what may
be written there is the sandbox's business.

Pure: words in, a verdict out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from llm_agent.policy.shell import Word, names

# Those that name or read a command in a way that is not followed here.
ALWAYS: Final = names("""
    sudo sudoedit doas su pkexec run0 runuser sg newgrp setpriv capsh parallel ssh sshpass mosh rsh podman
    nerdctl oc lxc chroot fakechroot nsenter unshare bwrap firejail proot fakeroot systemd-run systemd-nspawn
    start-stop-daemon daemonize daemon chpst softlimit taskset chrt numactl prlimit cpulimit cgexec caffeinate script
    watch strace ltrace gdb lldb valgrind perf flock lockfile entr inotifywait at batch crontab unbuffer expect socat
    nc ncat telnet rlwrap tmux screen dtach abduco dbus-run-session faketime xvfb-run setarch linux32 linux64 i386
    x86_64 catchsegv ld.so vi vim vimdiff view ex nvim emacs emacsclient ed nano less more man osascript wsl winpty
    rundll32 mshta wscript cscript conda mamba micromamba direnv mise asdf nix nix-shell guix vagrant toolbox
    distrobox flatpak snap logsave setlock run-parts ftp sftp mail mailx mutt byobu zellij hyperfine
    git-shell git-remote-ext m4 gs pdb bpftrace dtrace tclsh wish sshd inetd tcpserver ip docker-compose
    podman-compose buildah ctr crictl multipass incus virsh wine box64 qemu-x86_64 qemu-aarch64 qemu-arm qemu-i386
    chronic ifne pee vipe vipw vigr visudo envdir envuidgid setuidgid s6-setuidgid choom uclampset multitime pexec
    torify torsocks tsocks proxychains proxychains4 aoss genie userv ksu rlogin openvt xterm startx dbus-launch
    ssh-agent watchexec nodemon ansible ansible-console salt puppet facter msfconsole check_by_ssh run-mailcap
    irb pry rake bpython slsh octave gnuplot erl elixir iex scala groovy jshell jrunscript jjs ghc ghci runghc ocaml
    guile racket sbcl clisp ecl raku dc r sqlite3 psql mysql mariadb nmap logrotate
    msgfilter msgexec flatpak-spawn machinectl dotenv gjs qjs crystal xdg-open open
    """)
# Their first argument says what is done, and the others to what.
WITH_SUBCOMMANDS: Final = names(
    "apt apt-get brew bundle cargo conda docker dotnet flutter git go gradle helm hg kubectl mvn npm nox pip pip3 "
    "pnpm podman poetry rake rustup svn systemctl terraform tox uv yarn"
)
# Of these first arguments, the next say what is done: `git stash list` and `git stash drop`, `pip install this`.
DECIDED_LATER: Final = names("""
    bisect branch checkout clean config notes push reflog remote reset restore rm stash submodule switch
    symbolic-ref tag update-ref worktree
    install i uninstall remove upgrade run compose image container volume system network repo env tool plugin pip
    state workspace publish cache owner source key feature mod context set delete apply patch
    """)
# Naming one of these in a rule is naming everything it can run.
INTERPRETERS: Final = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|php|lua|luajit|deno|bun|Rscript|julia|ipython)[0-9.]*", re.IGNORECASE
)
_LOADER: Final = re.compile(r"ld-(?:linux|musl).*|ld[0-9]*\.so.*", re.IGNORECASE)
# `deno eval`, `bun exec`: the next word is code.
_CODE_WORDS: Final = names("eval exec x repl task")
_PYTHON_MODULES: Final = names(
    "pytest unittest pip venv build mypy ruff black isort flake8 pylint coverage json.tool compileall tox"
)

# Words that make a program run another, or read one: as they are, or as `word=...`, or glued to a value.
_CARRYING: Final[Mapping[str, tuple[str, ...]]] = {
    "find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "fdfind": ("-x", "-X", "--exec", "--exec-batch"),
    "rg": ("--pre", "--hostname-bin"),
    "tar": ("--checkpoint-action", "--to-command", "-I", "--use-compress-program", "--rsh-command", "-F",
            "--info-script", "--new-volume-script", "--rmt-command"),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "scp": ("-S", "-o", "-F", "-D"),
    "zip": ("-T", "-TT", "--unzip-command", "--test"),
    "sort": ("--compress-program",),
    "split": ("--filter",),
    "fzf": ("--preview", "--bind", "--become", "--with-shell"),
    "hg": ("--config", "--debugger"),
    "cpio": ("--rsh-command",),
    "tcpdump": ("-z",),
    "apt": ("-o", "--option", "-c"),
    "apt-get": ("-o", "--option", "-c"),
    "ssh-keygen": ("-D",),
    "make": ("--eval", "-f", "--file", "--makefile", "-I", "--include-dir", "-E"),
    "gmake": ("--eval", "-f", "--file", "--makefile", "-I", "--include-dir", "-E"),
    "go": ("-exec", "-toolexec", "-vettool", "generate", "tool", "run"),
    "cargo": ("--config", "watch"),
    "npm": ("exec", "x", "explore", "--script-shell"),
    "pnpm": ("exec", "dlx", "--script-shell"),
    "yarn": ("exec", "dlx", "node"),
    "curl": ("-K", "--config"),
    "wget": ("--use-askpass", "-e", "--execute", "--config"),
    "openssl": ("engine", "-engine", "-provider-path"),
    **dict.fromkeys(
        ("tex", "latex", "pdftex", "pdflatex", "xelatex", "luatex", "lualatex"),
        ("-shell-escape", "-enable-write18", "--shell-escape", "--enable-write18"),
    ),
    "pandoc": ("-F", "-L", "--filter", "--lua-filter", "--pdf-engine"),
    "rpm": ("-E", "--eval", "--pipe", "-D", "--define"),
    "mvn": ("exec:exec", "exec:java"),
    "install": ("--strip-program",),
    "yt-dlp": ("--exec", "--netrc-cmd", "--downloader", "--external-downloader", "--config-locations"),
    "gh": ("alias", "extension", "ssh"),
    "gcloud": ("--command", "ssh"),
    "ctest": ("--build-and-test", "-S", "-SP", "--script"),
    "ssh-add": ("-s",),
    "mix": ("run", "eval"),
    "op": ("run",),
    **dict.fromkeys(("pyenv", "rbenv", "nodenv", "goenv"), ("exec",)),
    **dict.fromkeys(("bat", "batcat", "delta", "ag", "ack"), ("--pager",)),
}  # fmt: skip

# The same, of programs whose letters do not come in clusters: what such a word begins with.
_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "cmake": ("-E", "-P"),
    "aria2c": ("--on-", "--conf-path"),
    "rustc": ("linker=", "-Clinker=", "--codegen=linker="),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), ("-wrapper", "-fplugin", "-B", "-Xclang")),
}

# First arguments that only look, at what the usual server has.
_LOOKS: Final[Mapping[str, frozenset[str]]] = {
    "docker": names("ps images logs inspect version info port top stats history"),
    "kubectl": names("get describe logs version explain top api-resources cluster-info"),
}
_OTHER_SERVER: Final = re.compile(
    r"-[Hs]|--(?:host|config|context|cluster|kubeconfig|server|token|tls|user|as|certificate|client|cache|profile)"
)

# `uv run pytest`: the words that are followed by a command.
RUNNERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "pipx"), ("run",)),
    "bundle": ("exec",),
    **dict.fromkeys(("npx", "bunx", "pnpx", "uvx"), ()),
}

# What `find -exec` may run and be no more than it: they read the files that they are given, and write none.
_READERS: Final = names(
    "basename cat cksum dirname du echo egrep fgrep file grep head ls md5sum printf readlink realpath rg sha1sum "
    "sha256sum stat tail wc"
)

_GIT_FLAGS: Final = names(
    "--no-pager -P --bare --no-replace-objects --literal-pathspecs --glob-pathspecs --noglob-pathspecs "
    "--icase-pathspecs --no-optional-locks --no-advice --no-lazy-fetch --version -v --help -h --html-path --man-path "
    "--info-path -p --paginate"
)
_GIT_VALUED: Final = names("-C --git-dir --work-tree --namespace -c --config-env --super-prefix --exec-path")
# A folder that is called a repository says what is run. `-C` is as good as being there, and is let pass.
_GIT_CARRYING: Final = names("-c --config-env --exec-path --super-prefix --git-dir --work-tree")
_GIT_HARMLESS_KEY: Final = re.compile(
    r"(?:user\.(?:name|email)|color\.[a-z.]+|core\.quotepath|advice\.[a-z]+)=.*", re.I
)
_GIT_SUBCOMMANDS: Final = names(
    "add am apply archive bisect blame branch bundle cat-file check-attr check-ignore checkout cherry cherry-pick "
    "clean clone commit config count-objects describe diff diff-files diff-index diff-tree fetch for-each-ref "
    "format-patch fsck gc grep hash-object init log ls-files ls-remote ls-tree merge merge-base mv name-rev notes "
    "prune pull push range-diff rebase reflog remote repack reset restore rev-list rev-parse revert rm shortlog "
    "show show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag update-index "
    "update-ref verify-commit verify-tag version whatchanged worktree write-tree"
)
_GIT_LONG: Final = (
    "--exec", "--upload-pack", "--receive-pack", "--open-files-in-pager", "--ext-diff", "--config", "--template",
    "--extcmd", "--strategy", "--interactive", "--output", "--unsafe-paths",
)  # fmt: skip
_GIT_SHORT: Final = {"rebase": "xis", "grep": "O", "clone": "uc", "merge": "s", "pull": "s", "am": "i", "archive": "o"}
_GIT_WORDS: Final = {"bisect": ("run", "visualize", "view"), "submodule": ("foreach",), "sparse-checkout": ()}
_GIT_HELPER: Final = re.compile(r"(?:-[a-z-]*=)?[A-Za-z0-9_-]+::")
_GIT_CONFIG_SCOPES: Final = names(
    "--global --local --system --worktree --show-origin --show-scope -z --null --name-only"
)
_GIT_CONFIG_READS: Final = names("--get --get-all --get-regexp --list -l get list")

# However one comes to /dev and /proc from here.
_INPUT: Final = re.compile(r"^[/.]*/(?:dev|proc)/|(?:^|/)(?:stdin|tty|fd)(?:/|$)")
_SED_PLACE: Final = r"(?:[0-9]+|\$|/(?:[^/\n\\]|\\[^\n])+/)"
_SED_SCRIPT: Final = re.compile(
    rf"\s*(?:{_SED_PLACE}(?:,\s*{_SED_PLACE})?)?\s*"
    r"(?:[pdq=]|s([/|#,:@])(?:(?!\1)[^\n\\]|\\[^\n])*\1(?:(?!\1)[^\n\\]|\\[^\n])*\1[gpIi0-9]*)\s*"
)
_SED_FLAGS: Final = re.compile(r"-[nEruszi]+|--(?:quiet|silent|regexp-extended|posix|sandbox)|-i\.[A-Za-z0-9]+")


def carries(program: str, words: Sequence[str], is_sealed: bool) -> bool:
    """Return whether *program* may run something that its words do not show to us.

    *is_sealed*: there may be more words than these.
    """
    name = program.casefold()
    if name in ALWAYS or _LOADER.fullmatch(name):
        return True
    reading = _reading(name)
    return reading is not None and (is_sealed or reading(words))


def _reading(name: str) -> Callable[[Sequence[str]], bool] | None:
    if name in _LOOKS:
        return lambda words: not words or words[0] not in _LOOKS[name] or any(map(_OTHER_SERVER.match, words))
    if name in ("make", "gmake"):
        return lambda words: _has_any(words, _CARRYING[name]) or _sets_any(words)
    if name in ("tar", "gtar", "bsdtar"):  # `tar cIf program archive` needs no dash
        return lambda words: _has_any([f"-{words[0]}", *words] if words else (), _CARRYING["tar"])
    if name in _CARRYING:
        return lambda words: _has_any(words, _CARRYING[name])
    if name in _PREFIXES:
        return lambda words: any(word.startswith(_PREFIXES[name]) for word in words)
    if INTERPRETERS.fullmatch(name):
        return _python if name.startswith(("python", "pypy")) else _interpreter
    return {"git": _git, "sed": _sed, "gsed": _sed, "awk": _awk, "gawk": _awk, "mawk": _awk, "nawk": _awk}.get(name)


def _has_any(words: Sequence[str], carrying: Sequence[str]) -> bool:
    return any(_is_option(word, option) for word in words for option in carrying)


def _is_option(word: str, option: str) -> bool:
    """*word* is *option*, an abbreviation of it that getopt would accept, or holds its value or other letters too."""
    if option.startswith("--"):
        return abbreviates(word.partition("=")[0], option)
    if len(option) == 2 and option.startswith("-"):
        return word.startswith("-") and not word.startswith("--") and option[1] in word
    return word == option or word.startswith(f"{option}=") or (option.startswith("-") and word == f"-{option}")


def abbreviates(word: str, *options: str) -> bool:
    """Whether *word* is one of these long options, or so much of its beginning as getopt might accept."""
    return len(word) > 2 and any(option.startswith(word) for option in options)


def _sets_any(words: Sequence[str]) -> bool:
    return any("=" in word or "$" in word for word in words)


def _interpreter(words: Sequence[str]) -> bool:
    """Anything but a script file in the first place: code in the arguments, on the input, or an option before it."""
    if list(words) in (["--version"], ["-v"], ["-V"]):  # `python -v -c` is not a question
        return False
    return not words or words[0].startswith("-") or words[0] in _CODE_WORDS or is_input(words[0])


def _python(words: Sequence[str]) -> bool:
    if len(words) > 1 and words[0] == "-m":
        return words[1] not in _PYTHON_MODULES
    return _interpreter(words)


def is_input(word: str) -> bool:
    """Whether a file of that name is what a program is given, not something that was written before."""
    return word == "-" or _INPUT.search(word) is not None


def _sed(words: Sequence[str]) -> bool:
    operands = [word for word in words if not _SED_FLAGS.fullmatch(word)]
    scripts = []
    while len(operands) > 1 and operands[0] == "-e":
        scripts.append(operands[1])
        del operands[:2]
    if not scripts and operands:
        scripts.append(operands.pop(0))
    if not scripts or any(word.startswith("-") for word in (*scripts, *operands)):
        return scripts != ["--version"]
    return not all(_SED_SCRIPT.fullmatch(part) for script in scripts for part in script.split(";"))


def _awk(words: Sequence[str]) -> bool:
    operands = [word for word in words if not re.fullmatch(r"-F.+|-v[A-Za-z_]\w*=[^\\]*", word)]
    return not operands or operands[0].startswith("-") or bool(re.search(r"system|getline|[|>@]", operands[0]))


def split_find(words: Sequence[Word]) -> tuple[tuple[Word, ...], list[tuple[Word, ...]]]:
    """Take what reads each file found, `-exec grep -n x {} +`, out of the *words* of a `find`.

    What stands for a file comes back as an unreadable word. Anything else that is run stays where it is.
    """
    if None in words:  # it may be the end of a command, or the beginning of one
        return tuple(words), []
    own: list[Word] = []
    runs: list[tuple[Word, ...]] = []
    place = 0
    while place < len(words):
        if words[place] != "-exec" or _READERS.isdisjoint(words[place + 1 : place + 2]):
            own.append(words[place])
            place += 1
            continue
        end = _end_of_run(words, place)
        if end == len(words):  # nor does any command after it end
            return (*own, *words[place:]), runs
        runs.append(tuple(None if word is None or "{}" in word else word for word in words[place + 1 : end]))
        place = end + 1
    return tuple(own), runs


def _end_of_run(words: Sequence[Word], start: int) -> int:
    """Where the command that begins at *start* ends: at a `;`, or a `+` after all files; else past the last word."""
    for place in range(start, len(words)):
        if words[place] == ";" or (words[place] == "+" and words[place - 1] == "{}"):
            return place
    return len(words)


def git_parts(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what follows `git` into its global options (with their values) and the rest, subcommand first."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        takes_next = words[place] in _GIT_VALUED and words[place] != "--exec-path"
        place += 2 if takes_next else 1
    return tuple(words[:place]), tuple(words[place:])


def _git(words: Sequence[str]) -> bool:
    before, after = git_parts(words)
    if _git_globals(before) or not after:
        return bool(after) or not set(before) <= _GIT_FLAGS
    subcommand, *rest = after
    if subcommand not in _GIT_SUBCOMMANDS or any(_GIT_HELPER.match(word) for word in rest):
        return True
    if subcommand == "config":  # `git config key value list` writes
        asked = [word for word in rest if word not in _GIT_CONFIG_SCOPES]
        is_key_alone = len(asked) == 1 and not asked[0].startswith("-") and "." in asked[0]
        return not asked or not (is_key_alone or asked[0] in _GIT_CONFIG_READS)
    letters = _GIT_SHORT.get(subcommand, "")
    return (
        _has_any([word for word in rest if word.startswith("--")], _GIT_LONG)
        or any(re.match(rf"-[A-Za-z]*[{letters}]", word) for word in rest if letters)
        or bool(set(rest) & set(_GIT_WORDS.get(subcommand, ())))
    )


def _git_globals(words: Sequence[str]) -> bool:
    """Whether the options before the subcommand set what is run, or are not known."""
    place = 0
    while place < len(words):
        name = words[place].partition("=")[0]
        value = words[place + 1] if place + 1 < len(words) else ""
        if name in _GIT_CARRYING and not (name == "-c" and _GIT_HARMLESS_KEY.fullmatch(value)):
            return True
        if name not in _GIT_FLAGS | _GIT_VALUED:
            return True
        place += 2 if words[place] in _GIT_VALUED else 1
    return False
