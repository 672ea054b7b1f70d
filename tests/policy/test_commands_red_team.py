"""What an attack on the policy by somebody who had not read it found, and the alarms it found to be false.

Each row of the first two lists was allowed once. The rest of that corpus (1,200 lines) was judged
rightly from the beginning, and is of the same kinds as the lists beside this file.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from judging import around, request, verdict

from llm_agent.policy import Facts, danger_floor
from llm_agent.policy.commands import commands_of, matches
from llm_agent.policy.evaluation import suggestion_for

FLOOR = danger_floor(home="/home/ann", config="/home/ann/.config/agent")
UNDER_FLOOR = [*(rule.to_dict() for rule in FLOOR), {"tool": "*", "decision": "allow"}]
GIT_ONLY = [{"tool": "run", "decision": "allow", "command": "git"}]
NO_RM = [{"tool": "*", "decision": "allow"}, {"tool": "run", "decision": "deny", "command": "rm"}]

# Git, made to write where it is told, or to believe a folder that it is told of.
GIT_ABUSES = [
    "git log -1 --format='[core]%nfsmonitor=x' --output=.git/config", "git diff --output=.git/config",
    "git show --outp=x HEAD", "git archive -o /root/.profile HEAD", "git archive --output=/root/.profile HEAD",
    "git --git-dir=notes status", "git --git-dir notes status", "git --work-tree=/ checkout -- etc",
    "git apply --unsafe-paths x", "git --work-tree / checkout x",
]  # fmt: skip
# Programs that run another one, which nobody had listed.
CARRIERS = [
    "rbenv exec rm x", "pyenv exec rm x", "dotenv rm x", "op run -- rm x", "cargo watch -s 'rm x'", "msgfilter rm x",
    "rustc -C linker=rm x.rs", "rustc -Clinker=rm x.rs", "yt-dlp --exec 'rm x' u", "gh alias set x '!rm x'",
    "bat --pager 'rm x' f", "ag --pager='rm x' y", "delta --pager rm", "install --strip-program=rm -s a b",
    "install --strip rm -s a b", "ssh-add -s ./x.so", "flatpak-spawn --host rm x", "machinectl shell x /bin/rm",
    "gcloud compute ssh x --command 'rm x'", "ctest --build-and-test x", "mix run -e x", "crystal eval x", "gjs -c x",
    "xdg-open x",
]  # fmt: skip
XARGS = [
    "ls | xargs rm", "ls | xargs -n1 rm", "ls | xargs -n 1 -0 rm", "ls | xargs -P4 env rm", "xargs sh -c",
    "xargs -a f x", "find . -name x | xargs -0 rm -f", "xargs -I{} {} x", "xargs -i rm {}", "xargs find", "xargs -- rm",
    "xargs xargs rm", "xargs bash", "xargs $X",
    "xargs --no-such-option ls", "xargs timeout 5", "xargs env",
]  # fmt: skip
HOME_WHOLE = [
    "mv ~ /dev/null", "mv /home/ann /tmp", "mv / x", "mv -t /tmp ~", "chmod -R 000 /", "chmod -R 777 ~", "chown -R x /",
    "chgrp -R x /home", "chattr -R +i /", "setfacl -R -b /", "rmdir /", "unlink /home/ann", "trash ~",
    "rsync -a --delete empty/ /", "rsync -a --del empty/ /home/ann/", "rsync -a --remove-source-files ~/ x",
    "tar --remove-files -cf x /home/ann", "zip -rm a /", "env mv ~ x", "sh -c 'mv ~ x'",
]  # fmt: skip
GIT_WORK = [
    "git checkout -- .", "git checkout .", "git checkout -f main", "git checkout --force main", "git restore .",
    "git restore -SW .", "git restore --staged --worktree .", "git switch -f main", "git switch --discard-changes main",
    "git rm -rf .", "git branch -D x", "git branch --delete --force x", "git worktree remove --force x",
    "git worktree remove -f x",
    "git update-ref -d HEAD", "git rm --f x", "git rm --for x",
]  # fmt: skip
SECRETS = [
    "cat ~/.aws/credentials", "cat ~/.kube/config", "cp ~/.gnupg/x .", "cat ~/.git-credentials",
    "echo x > /etc/cron.d/x", "echo x > /etc/profile.d/x.sh", "echo x >> /etc/ld.so.preload",
]  # fmt: skip
# What a pattern is for one program is a place for another, and after a `--` for all of them.
NO_PATTERNS = [
    "cat --exclude .git/config", "grep x -- --exclude .git/config", "grep --exclude=x -r y .git", "find .git -name x",
    "tar cf x --exclude y .git", "find . -path ./.git/x -delete", "./find -name .git/config",
]  # fmt: skip
SED = [
    "sed '/a/e rm x' f", "sed '/a/,/b/e' f", "sed '/a/s/x/y/e' f", "sed -e p -e '1e rm x' f", "sed -e p -f x f",
    "sed '/[/]e rm x/p' f", "sed '/a/w x' f", "sed -e", "sed '/a;e rm x;/p' f", "sed '/a/r x' f",
]  # fmt: skip
# Two lines are two commands, whatever a tree makes of them; and not all that is run for each file only reads it.
LINES_AND_RUNS = [
    "[ -f x\nevil ]", "[ -f x -a\nevil ]", "[-f x ] && ls", "[ -f x] && ls", "[ a < b ]", "[ a > b ]", "[[ a -eq b ]]",
    "select f in a; do ls; done", "for ((i=0; i<3; i++)); do ls; done", "for x in a\nevil; do ls; done",
    "find . -exec evil {} +", "find . -exec ./cat {} +", "find . -exec cat {}", "find . -exec {} x \\;",
    "find . -exec cat {} \\; -delete", "find . -exec cat {} + -exec rm {} +", "find . -execdir cat {} +",
    "find . -exec rg --pre x {} +", "find . $X -exec cat {} +", "find . -exec cat ~/.ssh/x \\;",
    "find . -exec sh -c 'cat {}' \\;",
]  # fmt: skip
LOOKS = ["docker run x", "docker -H x ps", "docker ps --context x", "kubectl get pods --kubeconfig=x", "kubectl exec x",
         "kubectl get pods -s x", "kubectl get pods --profile-output=x"]  # fmt: skip
ORDINARY = [
    "git ls-files | xargs wc -l", "find . -name '*.py' | xargs grep -n foo", "ls | xargs -n1 echo", "xargs -0 cat < f",
    "git config user.name", "git checkout main", "git checkout -b x", "git restore --staged x", "git switch main",
    "git branch -d x", "git worktree list", "git log --oneline", "git archive HEAD", "git rm --cached x",
    "sed -i.bak -e 's/a/b/' f", "sed '/^#/d' f", "sed -n '/def test/p' f", "sed -n '/a/,/b/p' f", "sed -e p -e 1d f",
    "sed -n '1,20p' f", "sed '/x/s/a/b/g; 3d' f", "find . -name '*.py' -not -path './.git/*'",
    "grep -r x --exclude-dir=.git .", "find . -path ./.git -prune -o -name x", "git branch -a", "sed -e s/a/b/ f",
    "docker ps --all", "docker logs --tail 9 x", "kubectl logs x --since=1h", "kubectl get pods --selector a=b",
    "rg x -g '!.git'", "tree -I .git", "rsync -a --exclude .git a b", "go test -v ./pkg -run TestX", "docker ps -a",
    "docker logs -f x", "kubectl get pods -n x", "RUST_LOG=debug cargo run", "GOOS=linux go build ./...",
    "mv a b", "mv x ~/", "chmod +x run.sh", "chmod -R u+w build", "rsync -a --delete a/ b/", "bat f", "pyenv versions",
    "for f in a b; do cat $f; done", "for f in *.py; do wc -l \"$f\"; done", "for d in a b\ndo ls $d\ndone",
    "[ -f x ] && cat x", "if [ ! -d build ]; then mkdir build; fi", "[ a != b ] || echo x", "[ x -gt 3 ] && ls",
    "find . -name '*.py' -exec grep -n x {} +", "find . -type f -exec wc -l {} \\;",
    "install -m 755 a b", "gh pr list", "cargo build", "rustc x.rs", "ssh-add -l", "rmdir build",
]  # fmt: skip


def decided(rules: list[dict[str, Any]], line: str) -> str:
    return verdict(rules, request("run", command=line), checks=FLOOR.checks).decision


@pytest.mark.parametrize("line", GIT_ABUSES)
def test_git_alone_does_not_write_or_believe_what_it_is_told(line: str) -> None:
    """Allowing `git` is not allowing to write its configuration, which is to run anything."""
    assert decided(GIT_ONLY, line) == "ask"
    assert decided(UNDER_FLOOR, line) == "ask"


@pytest.mark.parametrize("line", [*CARRIERS, *XARGS])
def test_a_denied_program_is_not_run_by_another(line: str) -> None:
    """And what is run that nobody sees is asked about by the floor."""
    assert decided(NO_RM, line) == "deny"
    assert decided(UNDER_FLOOR, line) == "ask"


@pytest.mark.parametrize("line", [*HOME_WHOLE, *GIT_WORK, *SECRETS, *NO_PATTERNS, *SED, *LOOKS, *LINES_AND_RUNS])
def test_the_floor_asks(line: str) -> None:
    """A home may be lost by more than `rm`, and work that git keeps by more than a reset."""
    assert decided(UNDER_FLOOR, line) == "ask"


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_command_is_not_asked_about(line: str) -> None:
    """A false alarm teaches people to say yes."""
    assert decided(UNDER_FLOOR, line) == "allow"


def test_xargs_is_judged_by_what_it_runs() -> None:
    """As far as its words are there: more arguments come from its input."""
    exact = [{"tool": "run", "decision": "allow", "command": "grep", "args": ["-n", "x"], "exact": True}]
    grep = [{"tool": "run", "decision": "allow", "command": "grep"}]

    assert decided(grep, "xargs grep -n x") == "allow"
    assert decided(exact, "xargs grep -n x") == "ask"
    assert decided(GIT_ONLY, "xargs git log") == "ask"


def test_what_find_hands_to_a_reader_is_not_taken_for_its_name() -> None:
    """`{}` is any file, and any number of them."""
    find, cat = commands_of({"command": "find . -exec cat {} +"})

    assert (find.program, find.tokens, find.is_opaque) == ("find", (".",), False)
    assert matches({"command": "cat"}, cat, "allow") is True
    assert matches({"command": "cat", "args": ["{}"], "exact": True}, cat, "allow") is None
    assert matches({"command": "cat", "args": ["secret"]}, cat, "deny") is None


def test_a_backslash_in_a_program_is_read_as_a_shell_would_too() -> None:
    """Some tools join program and arguments for a shell; a drive says that it is none."""
    call = request("run", command="r\\m", args=["-rf", "x"])

    assert decided(NO_RM, "r\\m x") == "deny"
    assert verdict(NO_RM, call).decision == "deny"
    assert verdict(UNDER_FLOOR, call, checks=FLOOR.checks).decision == "ask"


SUGGESTED = {
    "git status -s": (["status"], False),
    "cargo build --release": (["build"], False),
    "git stash list": (["stash", "list"], True),
    "git push origin main": (["push", "origin", "main"], True),
    "git branch -a": (["branch", "-a"], True),
    "git remote -v": (["remote", "-v"], True),
    "pip install x": (["install", "x"], True),
    "npm run build": (["run", "build"], True),
    "gh pr list": (["pr", "list"], True),
    "gh api x": (["api", "x"], True),
}


@pytest.mark.parametrize("line", SUGGESTED)
def test_always_is_for_no_more_than_was_seen(line: str) -> None:
    """Where the words after the subcommand say what is done, they are remembered, too."""
    rule = suggestion_for(Facts("run", {"command": line}, around()))

    assert rule is not None
    assert (list(rule.args), rule.exact) == SUGGESTED[line]


def test_git_really_runs_what_such_a_line_writes(tmp_path: Path) -> None:
    """The abuse is none on paper only: `--output` into the configuration, and the next status runs it."""
    silent = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, env=silent, check=False, capture_output=True, timeout=5)

    git("init", "-q")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    git("log", "-1", "--format=[core]%n fsmonitor = touch ran;false", "--output=.git/config")
    git("status")

    assert (tmp_path / "ran").exists()
