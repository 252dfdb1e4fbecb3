"""Puts the licence texts of all that a wheel contains into its dist-info/licenses, from Debian's packages."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COMMON = pathlib.Path("/usr/share/common-licenses")


def output_of(*command):
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else ""


def package_of(library):
    """The Debian package of a library that auditwheel copied, as libfmt-0a1b2c3d.so.9.1.0."""
    name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library)
    owner = output_of("dpkg-query", "-S", f"*/{name}").partition(":")[0]
    if not owner:
        sys.exit(f"wheels: no Debian package has {name}, so its licence is unknown. Build the wheels on Debian 12, with "
                 "the libraries that tools/setup.sh installs")
    return owner


def text_of(package):
    """Its copyright file, with the licences that it only names. The GPL is only that of Debian's packaging."""
    path = pathlib.Path(f"/usr/share/doc/{package}/copyright")
    if not path.is_file():
        sys.exit(f"wheels: {path} is missing. Install {package} with its documentation, and try again")
    text = path.read_text()
    version = output_of("dpkg-query", "-W", "-f", "${Version}", package)
    named = sorted(set(re.findall(rf"{COMMON}/([A-Za-z0-9.+-]*[A-Za-z0-9])", text)))
    parts = [f"{package} {version}\n\n{text}"]
    parts += [f"{name}\n\n{(COMMON / name).read_text()}" for name in named if not name.startswith("GPL")]
    return f"\n\n{'-' * 80}\n".join(parts)


@contextlib.contextmanager
def unpacked(wheel):
    """Unpacks a wheel, and yields the folder of its files. At the end of the block they replace the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "-d", scratch, wheel], check=True,
                       stdout=subprocess.DEVNULL)
        tree, = pathlib.Path(scratch).iterdir()
        yield tree
        wheel.unlink()
        subprocess.run([sys.executable, "-m", "wheel", "pack", "-d", wheel.parent, tree], check=True,
                       stdout=subprocess.DEVNULL)


def add(wheel, packages, texts, expression):
    """`packages`: those whose headers or files were compiled in; `texts`: licences of libraries that are not Debian's,
    which are found in the wheel. `expression`: SPDX's, of the wheel with them."""
    with unpacked(wheel) as tree:
        libraries = sorted(path.name for path in tree.glob("*.libs/*") if not path.name.startswith("libsaturate_"))
        info, = tree.glob("*.dist-info")
        folder = info / "licenses"
        for package in {*packages, *map(package_of, libraries)}:
            (folder / f"{package}.txt").write_text(text_of(package))
        for text in texts:
            shutil.copy(text, folder)
        metadata = (info / "METADATA").read_text()
        head, gap, description = metadata.partition("\n\n")
        head = re.sub(r"\nLicense-File: .*", "", head.rstrip("\n"))
        head = re.sub(r"\nLicense-Expression: .*", f"\nLicense-Expression: {expression}", head)
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        lines = "".join(f"\nLicense-File: {name}" for name in files)
        (info / "METADATA").write_text(head + lines + (gap or "\n") + description)
