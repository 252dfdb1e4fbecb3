#!/usr/bin/env python3
"""Compares README.md and docs/ with the program: links, paths, keys, commands and their options, and
the snippets' syntax.

    tests/docs_test.py BUILD

BUILD is a folder with `saturate` and compile_commands.json in it. Prints a line for each error,
and exits with 1 if there are any.
"""

import argparse
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "python/README.md",
         *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("src/", "include/", "tests/", "tools/", "bench/", "docs/", "recipes/", "ladders/",
           "examples/", "results/", "python/", "cmake/")

TENSORS = {"schedule.plateau"}  # of docs/checkpoint_format.md: look like keys, but are not


def prose_and_blocks(text):
    """The text without its fenced blocks, and the blocks: (language, text)."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S), blocks


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    prose, _ = prose_and_blocks(page.read_text())
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page, prose):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"link to {target}, which does not exist"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"link to {target}, which has no such heading"


def missing_paths(prose):
    for text in re.findall(r"`([^`\n]+)`", prose):
        for word in text.split():
            if word.startswith(FOLDERS) and not any(c in word for c in "*{<=" ) and word.isascii():
                path = re.sub(r"[:,;)].*$", "", word)
                if path != path.upper() and not (ROOT / path).exists() and not re.search("[A-Z]{3}", path):
                    yield f"path {word}, which does not exist"


class Command:
    """The commands and options that `saturate` prints."""

    def __init__(self, program):
        self.program = program
        self.keys = set(re.findall(r"^\| `([\w.]+)` \|", self.output("list", "options", "--markdown"), re.M))
        self.sections = {key.split(".")[0] for key in self.keys if "." in key}

    @functools.cache
    def output(self, *arguments):
        result = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=60)
        return result.stdout if result.returncode == 0 else ""

    def wrong_keys(self, text):
        for key in re.findall(r"(?<![\w./-])((?:%s)\.[a-z]\w*)(?![\w(/])" % "|".join(self.sections), text):
            if key not in self.keys and not (ROOT / "src" / key).exists() and key.split(".")[1] not in (
                    "cpp", "h", "md", "toml", "json", "jsonl", "html", "onnx", "py", "pt2", "pt", "safetensors") and key not in TENSORS:
                yield f"key {key}, which no recipe has"

    def wrong_options(self, line):
        words = shlex.split(line, comments=True)
        if not words or pathlib.Path(words[0]).name != "saturate":
            return
        # launch ... -- train ...: a separate command follows.
        if "--" in words:
            yield from self.wrong_options(shlex.join(["saturate", *words[words.index("--") + 1:]]))
            words = words[:words.index("--")]
        commands = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
        text = ""
        while commands and not (text := self.output(*commands, "--help")):
            commands.pop()
        if not commands:
            return (yield f"command {line!r}, which there is not")
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(words)):
            if option not in text:
                yield f"option {option} of saturate {' '.join(commands)}, which there is not"


def compiler_of(build):
    """The command that compiles a source of the command line, without the source and the output."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if "/saturate_command.dir/" in entry["command"]:
            words = shlex.split(entry["command"])
            return [*words[:words.index("-o")], f"-I{ROOT}/include"]
    sys.exit(f"{build}/compile_commands.json does not say how the command's sources are compiled")


def unfinished(line):
    """Patterns such as [--set ...] and A|B are not command lines, but the names in them are checked."""
    return re.sub(r"[\[\]]|\.\.\.|\|", " ", line)


def broken_snippet(language, text, compiler):
    if language == "python":
        try:
            compile(text, "snippet", "exec")
        except SyntaxError as error:
            yield f"Python snippet: {error}"
    if language == "cpp":
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
            # Statements are put into a function, after the snippet's own includes.
            includes = "".join(line + "\n" for line in text.splitlines() if line.startswith("#include"))
            rest = "".join(line + "\n" for line in text.splitlines() if not line.startswith("#include"))
            whole = "int main(" in rest or re.search(r"^(class|struct|namespace|[\w:]+ \w+\(.*\) {$)", rest, re.M)
            file.write(includes + (rest if whole else f"void snippet() {{\n{rest}}}\n"))
            file.flush()
            result = subprocess.run([*compiler, "-fsyntax-only", "-w", file.name],
                                    capture_output=True, text=True)
            if result.returncode != 0:
                yield "C++ snippet does not compile:\n" + result.stderr[:1000]


def problems(page, command, compiler):
    text = page.read_text()
    prose, blocks = prose_and_blocks(text)
    yield from broken_links(page, prose)
    yield from missing_paths(prose)
    if page.name != "CHANGELOG.md":  # it names keys of earlier versions
        yield from command.wrong_keys(text)
    for language, block in blocks:
        yield from broken_snippet(language, block, compiler)
        if language in ("", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from command.wrong_options(unfinished(line).replace("'", "").replace('"', ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    build = parser.parse_args().build.resolve()
    command = Command(str(build / "saturate"))
    if not command.keys:
        sys.exit(f"{build}/saturate lists no options")
    compiler = compiler_of(build)
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in PAGES
             for problem in problems(page, command, compiler)]
    print("\n".join(found) or f"{len(PAGES)} pages hold")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
